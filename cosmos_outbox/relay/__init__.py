"""
The relay: the handler that sends each event that the change feed delivers as a message to a topic, in order, at least once.

Theory of operation
-------------------
A change feed processor calls a `Relay` with every page of a lease. The relay returns when the broker has accepted every
event of the page, or the parked store holds it. Only then does the processor move the checkpoint.

    relay                 handle a page: put the events of parked keys into the parked store (hold them), and send all others
    sending_lanes         parse a page once, assign its events to lanes by key, and send the events of each lane in order
    ceiling               limit the messages a second, for all lanes and leases of a process
    topics_and_refusals   send to several topics side by side; decide whether a refusal is the message's fault or the topic's

    on a message's way:    routing (to which topics), cloudevents (in which form), spans (one of each send)
    around the handler:    deletion (of events that were sent)
    for operators:         released_events (the events of a parked key, sent by a release)

A *lane* is one ordered stream to the topic. All events of a partition key in a page are on one lane. Many keys share a
lane, and one batch carries the messages of many keys. A page uses only as many lanes as it has full batches. A key may
change lanes between pages: when a page is done, none of its messages is in flight. Leases begin on different lanes.

    page --------> lane 0: [a1 a2 c1] --publish--> accepted ------------------------------> page done -> checkpoint
                   lane 1: [b1 b2]    --publish--> unavailable -> back off -> same again --^
                   lane 2: [d1 d2 e1] --publish--> rejected -> halves -> d1 alone rejected: e1 is sent,
                                                               d1 and d2 are held ---------^

What holds, and why
-------------------
*Nothing is lost.* A page is done when every event of it was accepted or held. If a crash, a lost lease or an error ends the relay
before that, the page is read again, by this worker or another.

*Order per partition key.* The first copy of each message enters the topic in commit order, for three reasons. A relay sends an event
only after all earlier events of its key in the page were accepted, or in one atomic batch with them. After an unknown outcome it sends
the same messages again before any later one. And every page begins at or before the checkpoint. So when an event first
arrives, every earlier one has arrived, even if two owners of a lease overlap for a while.

*Stable identity.* The id of a message is the id of its event, so the broker's duplicate detection drops a message that is sent again.

Failures
--------
If the broker is unavailable, busy or full, or the topic is missing or disabled, the relay keeps the lease and sends the same
messages again, with back-off, until they are accepted or the lease is lost.

A message that the broker will never accept is found by halving the batch. It and the later events of its partition key are put into the
parked store, and all others of the page are sent. A message is treated the same if the broker fails on it again and again while it
accepts others. If a topic refuses everything, the relay parks a handful of keys and then halts the lease.

Without a parked store, or if the parked store fails, the page fails with an error that names the event. The page is then read again, but
events of it that the topic has accepted are not sent twice. `cosmos_outbox.parking` says how parked events wait.
"""

from cosmos_outbox.relay.relay import Relay

__all__ = ["Relay"]
