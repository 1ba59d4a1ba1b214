"""
Parking: what waits behind a failure, of one partition key, in order, until an operator releases or drops it.

Theory of operation
-------------------
A *parked key* has a queue in the parked store: the event that failed and, behind it, every later event of the key. The
relays append events to the queue instead of sending them; an operator has the queue sent from its beginning (`release.py`).
Keys that are not parked never touch the store.

    park               is a key parked? what met a failure puts events at the end of a queue
      lease_notes      which keys of a range are parked, as the lease's notes say
    operator_actions   what an operator does: list, release, drop
      release          the queue read, sent and taken off from its beginning, then the key handed back
      keys_by_cause    parked keys grouped by what failed
    parked_documents   what the parked store holds
    seen_leases_note   the note that a processor has had leases

    relay:     e3 rejected ---> park: [key + e3 + e4] in one batch ---> page done ---> checkpoint, and the key's name
               e5 ------------> append: [key if unchanged + e5] in one batch -----> page done ---> checkpoint
    operator:  release -------> send e3 e4, take them off ---> send e5, take it off ---> [delete key if unchanged]
    relay:     e6 ------------> append: the key is gone, so it was handed back ---> send e6

Every write to a key's partition is a transactional batch with the etag of the key's document, so the writes of all
programs happen one after another. The deletion of that document *is* the hand-back. It succeeds only if nothing was
appended since the queue was seen empty, and an append succeeds only if the key was not handed back since. So an event is
either in the queue before the hand-back, and the operator sent it, or it comes after, and the relay sends it. The relay
needs no signal: its next append shows that the key is gone.

Which keys are parked
---------------------
The lease names them: the parked keys of its range are its *notes* (`ports.Notes`). The write that saves the checkpoint
behind the page that parked a key also saves its name, and the write that acquires the lease reads the names. So an owner
knows every key whose events its checkpoint passed without sending them, and never from a read that is behind. A name too
many costs a read; a missing name would break order. An owner that lost its lease cannot write a name and need not: its page
was not checkpointed, so the next owner handles the event itself. Children of a split inherit the notes. A lease without notes is
the first of its range, or the one before was lost with its names: its owner asks the store for all parked keys before it sends
anything, and takes their names over.

Leases do not name the keys that an operator parked by hand. These are *announced*: the relay polls for them with a query;
until the next poll, it simply sends the key's events. A third kind needs neither: an owner that lost its lease parked a key
and could not name it. The next owner sends the event itself, meets the same refusal, and appends to the queue that it finds.
Where it does not believe the refusal, since the topic takes nothing else, it looks the key up first, so such a key halts no
lease.

Why order holds
---------------
The proof is one sentence: *a program that sends or appends an event of a key knows that each earlier event of the key is in
the topic or was dropped, or, if it appends, is in the queue.* Then whatever enters the topic for the first time enters it in
order. For a relay the sentence holds at the start of a tenure, because the checkpoint passed only what was sent or held,
and the notes name the keys of what was held; after that, because it handles a key's events one after another. So
overlapping owners do no harm: an owner that does not know of the parking has sent everything itself since its start,
without a gap; one that knows appends behind what is there; and an event that is held already is found by the name of its
document. An owner that learned of a hand-back can rely on it: the operator sent all that this owner had appended.

For an operator the sentence holds because a release takes positions in order and leaves a position only once the broker
accepted its event. That is true for any number of releases at once, so none waits for another. The newest release or drop
writes its *claim* into the key's document, and an older release, whose writes require its own claim, stops at its next step:
it cannot remove the record of an event that was dropped or edited meanwhile.

Where a read may be behind
--------------------------
With session consistency a read may return an older state; a write never acts on one. A deletion that finds nothing proves
that a key is not parked, and so does the creation of its document; every other decision is made by a write under an etag.

Failures
--------
A request whose outcome is unknown is repeated: events that are in the store are found by their ids, a key by its document.
A late write is refused by the etag, or appends what its sender was allowed to append anyway. When a limit is reached or the
store is unavailable, the page fails and comes again: its lease halts with an alarm, and nothing is lost. An event that was
dropped, or sent with another payload, leaves a record under its id, so it is not parked a second time if its page comes
again.
"""

from cosmos_outbox.parking.operator_actions import Parked, ParkedKeys
from cosmos_outbox.parking.park import Parking
from cosmos_outbox.parking.parked_documents import Failure, ParkedEvent, ParkedKey, Scope, Unreadable
from cosmos_outbox.parking.release import Released, Send, SendResult

__all__ = [
    "Failure",
    "Parked",
    "ParkedEvent",
    "ParkedKey",
    "ParkedKeys",
    "Parking",
    "Released",
    "Scope",
    "Send",
    "SendResult",
    "Unreadable",
]
