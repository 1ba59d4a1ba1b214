"""
For `cosmos-outbox verify`: asks an account of Azure, or the emulators, whether they answer as this library and its emulators believe.

A claim is one sentence about Azure with the answer that is expected; a probe asks. What the run writes carries the run's id and a short time
to live, and is deleted at the end; nothing is created beside it.

Read in this order: `claims` (a sentence, and how it is asked), `results` (what was found, and what that means), `site` (what a run works on),
`cosmos_claims` (what Cosmos DB answers), `service_bus_claims` (what Service Bus answers, each asked in its `own_session`). Each part is a
module with `run` and `cost`; the others are
`main_job` (`child_processes` that are killed, a `load`, a `ledger` of effects, the `audit`), `suites` (contracts in
`own_views` of what the caller named), `figures`.
"""
