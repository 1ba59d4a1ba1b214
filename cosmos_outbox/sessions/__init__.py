"""
A session processor: several processes share the sessions of a subscription or queue, and hand each message to a handler.

Theory of operation
-------------------
The broker keeps the messages of a *session* in order, and lets one receiver at a time lock it. The processor has a number
of slots, each of which can handle one session. Messages of a session are handled one at a time, those of different sessions
side by side.

    processor      how many sessions are asked for, held, and given back at the end
      slots          the options, and which sessions have a slot, wait for one, or leave theirs
      held_session   one session: receive, handle while the lock is renewed, settle; repeat

                 accept --> slot --> HELD --idle, turn, stop, or a message to retry--> closed: the broker gives it to any process
                             |        |
                             |        +-- lock lost, or may be --> the handler is cancelled, nothing is settled
                             +-- none in time --> closed, and no other is accepted until a message is settled

What holds, and why
-------------------
*One at a time, in order.* The next message of a session is received after the one before was settled. A message that is to
be retried ends the hold, so what the broker had delivered ahead is not handled before it.

*Nothing after a loss.* The lock is trusted until the time that its last renewal surely covers, counted from when the
request was sent. At the end of that time the handler is cancelled and nothing is settled, whether the broker says that
the lock is lost or says nothing. The handler's writes until then stay: `cosmos_outbox.consumer` makes that harmless.

*No key waits for another's.* A session is accepted although no slot is free: it has the session that is idle for longest leave
its slot at once, or one that is never idle end its turn, with the first message that it settles a second after it began. A
session that waits for another attempt has no slot, and takes one of half of them then, so that no number of those keeps another
from being handled.

*Little is hoarded.* What is accepted and not handled is a key that no process handles. So no more is asked for than finds a slot
by then, as the slots went until now: opening a session may take half a second. What waits in vain goes back after 2 s and as long as
the last message took, up to 10 s more, and before half of its lock is over.

*Cheap when idle.* Each call that waits for a session costs the SDK some wake-ups a second, so only one waits while nothing
comes. Each session that is found adds calls, so where many are found they are soon as many as find a slot. Where another call
has long waited in vain, and with each call that ends in vain, the number is halved. A process that starts asks for as many as it
has slots, for a second: what came before it is handled at once.

Failures: a handler that raises gets the message again after a back-off, and the broker counts it as a delivery: after its
limit it moves the message to the dead-letter queue. While the broker cannot be reached, or settles nothing, the processor asks
it again with a back-off. Whatever else its client raises counts as that, of one session.
"""

from cosmos_outbox.sessions.held_session import HeldSession, SessionEnd, SessionHandler
from cosmos_outbox.sessions.processor import SessionProcessor, SessionStatus
from cosmos_outbox.sessions.slots import SessionOptions

__all__ = [
    "HeldSession",
    "SessionEnd",
    "SessionHandler",
    "SessionOptions",
    "SessionProcessor",
    "SessionStatus",
]
