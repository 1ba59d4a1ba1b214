"""
Checks of the Azure resources: `cosmos-outbox doctor` makes all of them, and a worker or consumer makes some when it starts.

For each kind of resource, a table lists its checks. A check is a function that gets what was read of the resource and returns whether
something is wrong. For each check, `checks.toml` has the severity, the message and what to do. `grants.toml` has the rights to grant.

Read in this order: `check` (checks and findings), `programs` (which checks are made for which program), `containers`, `leases`,
`service_bus`, `permissions`.
"""
