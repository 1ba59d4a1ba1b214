"""
Checks: what has to be true of the live resources, in one table of each; `doctor` asks all, a start those that need no rights.

A check is a question with how it is asked of what was read, how bad its finding is, and what to do. Reading raises facts; only
the tables name settings and commands.

Read in this order: `check` (a question and its finding; `checks.toml` and `grants.toml` have the words), `programs` (what is asked of whom),
`containers`, `leases`, `service_bus`, `permissions`.
"""
