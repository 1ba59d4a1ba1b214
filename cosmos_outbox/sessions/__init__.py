"""
A session processor: several processes share the sessions of a subscription or queue, and each hands its messages to a handler.

Theory of operation
-------------------
The broker keeps the messages of a *session* in order, and lets one receiver at a time lock it. The processor has a number
of slots, each of which can handle one session. Messages of one session are handled one at a time, messages of different sessions
side by side.

    processor      how many sessions the process asks for and holds, and how it gives them back at the end
      slots          the options, and which sessions have a slot, wait for one, or leave theirs
      held_session   one session: receive a message, handle it while the lock is renewed, settle it; repeat

                 accept --> slot --> HELD --idle, turn, stop, or a message to retry--> closed: the broker gives it to any process
                             |        |
                             |        +-- lock lost, or may be --> the handler is cancelled, nothing is settled
                             +-- none in time --> closed, and no other is accepted until a message is settled

What holds, and why
-------------------
*One at a time, in order.* The processor receives the next message of a session only after it settled the one before. If a message is
to be tried again, the process gives the session back. So messages that the broker had delivered ahead are not handled before it.

*Nothing after a loss.* The processor trusts the lock for the time that the last renewal surely covers, counted from when that
request was sent. When that time ends, it cancels the handler and settles nothing, whether the broker says that the lock is lost or
says nothing. What the handler wrote until then stays; `cosmos_outbox.consumer` makes that harmless.

*No key waits for another key.* The processor accepts a session even if no slot is free. Then the session that has been idle for longest
leaves its slot at once. If no session is idle, one whose turn has lasted for a second leaves its slot after its next message. A
session that waits for another attempt at a message has no slot. For the attempt it takes one from half of the slots, so that sessions
with failing messages, however many, never keep the others from being handled.

*Few sessions are accepted ahead.* A session that was accepted and waits for a slot is one that no process handles. So the processor
asks only for as many as will find a slot by the time they are open, judged by how fast slots were given back lately. Opening a session
may take half a second. A session that finds no slot is given back after 2 s plus the time that the last message took, of
which at most 10 s count. It is given back earlier if half of its lock's time is over.

*Cheap when idle.* Each call that waits for a session costs the SDK some wake-ups a second, so only one call waits while no messages
come. Each session that is found adds calls, so the number of calls soon reaches the number of sessions that find a slot. The number is
halved when a call ends without a session, or finds one while another call has long waited without one. At its start, a process waits
for a second with as many calls as it has slots, so that the messages that are already there are handled at once.

Failures: if a handler raises, the message is delivered again after a back-off. The broker counts the deliveries, and moves the message
to the dead-letter queue after its limit. While the broker cannot be reached, or settles nothing, the processor asks again with a
back-off. Any other error of the client counts as a failure of one session, and is treated in the same way.
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
