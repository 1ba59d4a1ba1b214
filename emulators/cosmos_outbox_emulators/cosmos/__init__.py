"""
An emulator of Azure Cosmos DB for NoSQL that serves the unmodified vendor SDKs over http or https.

It has two parts. The *engine* holds accounts, containers, partitions and items. It is synchronous, so every operation is atomic
without a lock, and it gets the current time as an argument. The *protocol* turns HTTP requests into calls of the engine, and the
results of the engine into the bytes that Azure would send.

```text
server      sockets, added latency, injected faults                     (asyncio, aiohttp)
  gateway   one request -> one reply: routes, key check, error replies  (no sockets from here on)
    resources  databases, containers, offers, partition key ranges
    documents  single operations
    batches    batches and bulk requests, whose bodies are JSON or (from .NET) HybridRow
    feeds      queries, change feed; what sessions and lagging replicas may see
      account > container > partition > item                            the engine
      transaction, patch, sql, walk, changefeed                         what can be done with it
```

`seed` fills an account at its start, `persistence` keeps a copy of the account in a file, and `deviations` stand between server and
gateway. The engine does not depend on any of them.

A transaction changes a partition only when it commits, so an error before the commit cannot leave half of a batch behind.
"""
