"""
A consumer with an inbox: each message takes effect once, in order, however often it is delivered and whichever process dies.

Theory of operation
-------------------
A handler changes data through a unit of work. Its changes, the events that it records and the *inbox's* record of the message are
written in one transactional batch. Only then does the consumer complete the message.

    consumer             the handlers of a service, and the rules for messages that fail
      routes             which handler takes a message, by subject and version, and which event it is given
      policy             the rules: attempts, times, what becomes of a failure
    handling             one message from delivery to settlement: held behind a parked key, handled, tried later or given up
      attempts           whether and when a message that failed is tried again
      waiting_messages   which messages wait, since when, and for how long
        circuit          if a handler asks to get the messages of all keys later: try one message of its subject at a time
      inbox              whether a message took effect before; calls the handler for a limited time; commits the effect and the record
      handler_threads    the threads in which blocking calls of handlers run
      parked_messages    a message as a document of the parked store

    delivered --> key parked? --yes--> held behind the others --> completed
                      | no
                  in the inbox (read if it may be there)? --yes--> completed, no effect
                      | no
                  handler --> [documents + events + record] in one batch --> completed
                      | fails, again and again
                  parked: [key + message] --> completed; later messages of the key are held

What holds, and why
-------------------
*One effect.* The batch of the effect also creates the record, whose id is made of the message's id. However many processes make
however many attempts, only one such batch succeeds. So it does not matter whether a process still had the lock, or whether an
answer was lost: an attempt whose outcome is unknown is repeated, and finds the record. If an attempt did not read the inbox, or its
read was behind, Cosmos DB refuses its batch because the record exists.

*Order.* The session processor delivers a message only after the one before it was settled, and a message is settled once it took
effect or is held. A process that lost its lock may still commit the message that it is handling. The new owner then finds that
message in the inbox. The old process handles no later message.

*No loss.* A message is completed only after its batch was committed, after the inbox showed its record, or after the parked store
held it. A message without a handler is completed or dead-lettered, as the policy says.

*A parked key.* The proof in `cosmos_outbox.parking` also holds here, if "took effect" is read for "was sent". A session belongs to
one process at a time, so the process asks the parked store once, when it gets the session, whether its key is parked. If a process
that lost its lock parks a message that took effect elsewhere, the release finds the message in the inbox.

*An outage is no failure.* While Cosmos DB is busy or away, messages wait. They are neither counted as delivered nor parked. If the
handlers fail on every key, the consumer parks a handful of keys, and then lets the messages of all other keys wait.

*A later time is no failure either.* If a handler raises `TryLater`, or an error that `waits_for` names, its message waits in the same
way, and later messages of the key wait behind it, for as long as the policy says. Once messages of a handful of keys have asked for
a later time, the consumer tries one message of the subject at a time.

Limits: each attempt repeats what a handler does outside of its unit of work, such as a call of another service. Pass the message's
`idempotency_key` to that service. The inbox forgets a record after its time to live, which has to be longer than any message can
live.
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
