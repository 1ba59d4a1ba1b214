"""
An emulator of Azure Service Bus: topics, subscriptions, sessions and queues over AMQP 1.0, for the unmodified vendor SDKs.

The emulator is one process and holds everything in memory. `persistence` keeps a copy in a file for the option --data, and
`deviations` let entities do what Azure does not. aiohttp handles HTTP; everything else uses the standard library only. With its
faults, the emulator shows what a sender or a receiver does when the service is slow, is gone, or has stored a message but could
not acknowledge it.

```text
timers        deadlines in one heap, on the clock that the broker was given
  │
entry ── sessions ── queue ── topic ── broker      the engine: no socket, no event loop
rules  sqlfilter  faults  config  message  sas     its values and decisions
  │
primitives ── decoding, encoding ── performatives  AMQP types and frames
  │
framing ── connection ── attach ── publish_link, delivery_link, requests → management
              │            └────── injection       what a fault does on the wire
            channel (AMQP session, link ends)
  │
server        the TCP port; it alone drives the timers
  │
http          the same port for HTTP: WebSockets, and
administration ── descriptions, ruledescriptions ── atom    management of entities, in XML
```

- An entry (a stored message) is in exactly one place: ready, locked under a token, or deferred. A session exists while it has
  messages, a state or a holder. A transfer is stored completely or not at all.
- The engine never waits. Time affects it only when `timers.run_due()` is called at `timers.next_due`, so a test can move the time.
- A connection always keeps reading. Whatever a peer sends is answered, or *the peer's own* connection is closed.
- A peer that does not read gets no more messages until it has caught up. Memory is bounded by the stored messages, by the ids of
  one duplicate-detection window, and by the size limit of one message for each link.
"""
