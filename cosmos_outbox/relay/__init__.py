"""
The outbox's handler: each event that the change feed delivers becomes a message on the topic, in order, at least once.

Theory of operation
-------------------
A change feed processor calls a `Relay` with every page of a lease. The relay returns when the broker has accepted every
event of the page, or the parked store holds it; only then does the processor move the checkpoint.

    relay                 rounds of a page: some keys are sent, others held
    sending_lanes         a page parsed once, its events by key and lane; each lane's share, sent in order
    ceiling               so many messages a second at most, for all lanes and leases of a process
    topics_and_refusals   topics are sent to side by side; is a refusal the message's fault, or theirs?

    on a message's way:    routing (to which topics), cloudevents (its form), spans (of each send)
    around the handler:    deletion (of what was sent)
    for operators:         released_events (of a parked key, sent again)

A *lane* is one ordered stream to the topic. All events of a partition key in a page are on one lane; many keys share a
lane, and one batch carries the messages of many keys. A page uses only as many lanes as it has full batches. A key may
change lanes between pages: when a page is done, none of its messages is in flight. Leases begin on different lanes.

    page --------> lane 0: [a1 a2 c1] --publish--> accepted ------------------------------> page done -> checkpoint
                   lane 1: [b1 b2]    --publish--> unavailable -> back off -> same again --^
                   lane 2: [d1 d2 e1] --publish--> rejected -> halves -> d1 alone rejected: e1 is sent,
                                                               d1 and d2 are held ---------^

What holds, and why
-------------------
*Nothing is lost.* A page is done when all of it was accepted or held. Whatever ends a relay before that (a crash, a lost
lease, an error), the page comes again, here or elsewhere.

*Order per partition key.* The first copy of each message enters the topic in commit order: a relay sends a key's event
only after all earlier ones of the page were accepted (or in one atomic batch with them), after an unknown outcome it sends
the same messages again before any later one, and every page begins at or before the checkpoint. So when an event first
arrives, every earlier one has arrived, even if two owners of a lease overlap for a while.

*Stable identity.* The message id is the event id, so the broker's duplicate detection drops what is sent again.

Failures
--------
If the broker is unavailable, busy or full, or the topic is missing or disabled, the relay keeps the lease and sends the same
messages again, with back-off, until they are accepted or the lease is lost. A message that the broker will never accept is
found by halving; it and later events of its partition key are put into the parked store, and all others of the page are
sent. A message on which the broker fails again and again, while it accepts others, is treated the same; a topic that refuses
everything parks a handful of keys and then halts the lease. Without a parked store, or if it fails, the page fails with an
error that names the event. The page then comes again, but what the topic has of it is not sent twice. What is parked waits
in `cosmos_outbox.parking`.
"""

from cosmos_outbox.relay.relay import Relay

__all__ = ["Relay"]
