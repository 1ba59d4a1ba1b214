"""
The command `cosmos-outbox verify`: check that Cosmos DB and Service Bus, or the emulators, answer as this library expects.

A *claim* is a sentence about what Azure answers to a request, together with the expected answer. A *probe* is the function that sends the
request and returns the actual answer. A *run* is one call of the command. All documents and messages that a run writes have the run's id
and a short time to live, and are deleted at the end. A run creates no containers, topics or subscriptions.

Read the modules in this order: `claims` (a claim and its probe), `results` (the outcome of a claim), `site` (the account and the topic
that a run uses). Then the parts of a run, each a module with `run` and `cost`: `preflight` (rights and settings), `cosmos_claims` (what
Cosmos DB answers), `service_bus_claims` (what Service Bus answers, with the help of `own_session`), `suites` (the contract tests, with
`own_views` of the named containers and topic), `main_job` (workers and consumers under a `load`, with `child_processes`, a `ledger` of
effects, and an `audit`), and `figures` (how long operations take).
"""
