"""
A consumer with an inbox: each message takes effect once, in order, however often it is delivered and whichever process dies.

Theory of operation
-------------------
A handler changes data through a unit of work. What it changes, the events that it records and the *inbox's* record of the
message are one transactional batch; the message is completed only then.

    consumer             the handlers and the rules
      routes             the handler of a subject and version, and the event it is given
      policy             the rules: attempts, times, what becomes of a failure
    handling             one message: is its key parked? have it take effect, wait for a store that is away, or give up
      attempts           is a message that failed tried again, and when?
      waiting_messages   what waits, since when, and for how long?
        circuit          is the handler of a subject called, while it asks for a later time whatever the key?
      inbox              did it take effect before? run the handler for a bounded time, and commit what it changed with the inbox's record
      handler_threads    where the handler's blocking calls run
      parked_messages    a message as a document of the parked store

    delivered --> key parked? --yes--> held behind the others --> completed
                      | no
                  may be known, and in the inbox? --yes--> completed, no effect
                      | no
                  handler --> [documents + events + record] in one batch --> completed
                      | fails, again and again
                  parked: [key + message] --> completed; later messages of the key are held

What holds, and why
-------------------
*One effect.* The record is created under the id of the message, in the batch of the effect. Of any number of attempts, by any
number of processes, one such write succeeds. So it does not matter whether a lock still held, or whether an answer was lost: an
attempt whose outcome is unknown is repeated, and finds the record. An attempt that did not look, or whose read was behind, meets it in
the batch.

*Order.* The session processor delivers a message after the one before was settled, and it is settled once it took effect or
is held. A process that lost its lock may still commit the message at hand, which the new owner then finds in the inbox. It
does not handle a later one.

*No loss.* A message is completed after its batch was committed, after the inbox said so, or after the parked store had it.

*A parked key.* The proof of `cosmos_outbox.parking` holds here with "took effect" for "was sent". A session belongs to one
process at a time, so one look when it is accepted says whether its key is parked. If a process that lost its lock parks a
message that took effect elsewhere, the release finds it in the inbox.

*An outage is no failure.* While the store is busy or away, messages wait, are not counted as delivered and are not parked. If
the handlers fail on every key, after a handful of parked keys the others wait as well.

*Later is no failure either.* A handler that raises `TryLater`, or an error that the consumer waits for, has its message wait in the same
way, its key in order behind it, for as long as the policy says. Once all keys ask, one message at a time is tried.

Limits: what a handler does outside of the unit of work is done again with each attempt; give the other side the message's
`idempotency_key`. A record is forgotten after its time to live, which is to be longer than any message can live.
"""

from cosmos_outbox.consumer.consumer import Consumer
from cosmos_outbox.consumer.handling import Handling
from cosmos_outbox.consumer.inbox import HandlerStuck
from cosmos_outbox.consumer.policy import OnFailure, OnUnknown, Policy
from cosmos_outbox.errors import TryLater
from cosmos_outbox.message_format import Message
from cosmos_outbox.received_cloudevents import CloudEvent

__all__ = [
    "CloudEvent",
    "Consumer",
    "HandlerStuck",
    "Handling",
    "Message",
    "OnFailure",
    "OnUnknown",
    "Policy",
    "TryLater",
]
