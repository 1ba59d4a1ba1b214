"""
An emulator of Azure Cosmos DB for NoSQL that serves the unmodified vendor SDKs over http or https.

Two halves that know each other through one function. The *engine* holds accounts, containers, partitions and items; it is
synchronous, so that every operation is atomic without a lock, and takes the time as an argument. The *protocol* turns HTTP
requests into engine calls and engine values into the bytes that Azure would send.

```text
server      sockets, added latency, injected faults                     (asyncio, aiohttp)
  gateway   one request -> one reply: routes, key check, error replies  (no sockets from here on)
    resources  databases, containers, offers, partition key ranges
    documents  single operations
    batches    batches, bulk requests; their bodies are JSON or, of .NET, rows of HybridRow
    feeds      queries, change feed; what sessions and lagging replicas may see
      account > container > partition > item                            the engine
      transaction, patch, sql, walk, changefeed                         what can be done with it
```

`seed` fills an account at its start, `persistence` keeps a copy of it in a file, `deviations` stand between server and gateway; the engine
knows of none.

Nothing of a partition changes before a transaction commits, therefore no error on the way can leave half of a batch behind.
"""
