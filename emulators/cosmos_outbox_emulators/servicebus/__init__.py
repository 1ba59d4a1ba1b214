"""
An emulator of Azure Service Bus: topics, subscriptions, sessions and queues over AMQP 1.0, for the unmodified vendor SDKs.

One process, all of it in memory; `persistence` keeps a copy in a file where that is wanted, `deviations` let entities do what Azure does not.
aiohttp speaks HTTP, the standard library
is the rest. It shows what a sender or a receiver does when the service is slow,
gone, or has stored a message and could not say so.

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

- An entry is in exactly one place: ready, locked under a token, or deferred. A session exists while it has messages, state or a
  holder. All of a transfer is stored or none of it.
- The engine never waits. `timers.run_due()` at `timers.next_due` is all that time does to it, so that tests move time by hand.
- A connection always keeps reading. Whatever a peer sends ends in an answer or in the close of *its* connection.
- To a peer that does not read, nothing more is delivered until it has caught up; memory is bounded by the backlog, by the ids of
  one duplicate-detection window, and by the size limit of one message for each link.
"""
