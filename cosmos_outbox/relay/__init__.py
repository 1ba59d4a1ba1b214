"""
The outbox's handler: each event that the change feed delivers becomes a message on the topic, in order, at least once.

Theory of operation
-------------------
A `Relay` is what a change feed processor calls with every page of a lease. It returns when the broker has accepted
every event of the page, or the parked store holds it, and only then does the processor move the checkpoint.

    plan       the plan of a page: which events, in which order, on which lane; pure          (plan.py)
    relay      carries the plan out: lanes side by side, inside a lane one after another      (relay.py)
    verdict    tells a message that can never be sent from a topic that takes nothing         (verdict.py)

    around the publisher:  routing (which topics), cloudevents (in which form)   (routing.py, cloudevents.py)
    around the handler:    ttl (what may die unsent), retention (what is deleted once sent)  (ttl.py, retention.py)

A *lane* is one ordered stream to the topic. All events of a partition key in a page are on one lane; many keys share
one, and one batch carries the messages of many keys. A page takes as many lanes as it fills batches, and the next page
may put a key on another lane, for nothing of a page is under way when it is done. Leases begin on different lanes.

    page --plan--> lane 0: [a1 a2 c1] --publish--> accepted ------------------------------> page done -> checkpoint
                   lane 1: [b1 b2]    --publish--> unavailable -> back off -> same again --^
                   lane 2: [d1 d2 e1] --publish--> rejected -> halves -> d1 alone rejected: e1 goes out,
                                                               d1 and d2 are held ---------^

What holds, and why
-------------------
*Nothing is lost.* A page is done when all of it was accepted. Whatever ends a relay before that (a crash, a lost
lease, an error), the page comes again, here or elsewhere.

*Order per partition key.* The first copy of each message enters the topic in commit order: a relay sends a key's
event only after all earlier ones of the page were accepted (or in one atomic batch with them), after an unknown
outcome it sends the same messages again before any later one, and every page begins at or before the checkpoint. So
when an event first arrives, every earlier one has arrived, even if two owners of a lease overlap for a while.

*Stable identity.* The message id is the event id, so the broker's duplicate detection drops what is sent again.

Failures
--------
The broker is unavailable, busy, full, or the topic is missing or disabled: the lease is kept, and the same messages
are sent again with back-off until they are accepted or the lease is lost. A message that the broker will never take
is found by halving; it and later events of its partition key are put into the parked store, all others of the page go
out. So is one at which the broker fails again and again while it takes others; a topic that refuses everything parks a
handful of keys and then halts the lease. Without a parked store, or when
that fails, the page fails with an error that names the event. It comes again then, but what the topic has of it is not
sent twice. What is parked waits in `cosmos_outbox.parking`.
"""

from cosmos_outbox.relay.relay import Relay

__all__ = ["Relay"]
