"""
Parking: if an event cannot be sent, it and the later events of its partition key wait in order, until an operator releases or drops them.

Theory of operation
-------------------
A *parked key* has a queue in the parked store: the event that failed and, behind it, every later event of the key. The
relays append events to the queue instead of sending them. An operator has the queue sent from its beginning (`release.py`).
Events of keys that are not parked write nothing to the store.

    park               put events at the end of a key's queue; say whether a key is parked
      lease_notes      which keys of a range are parked, as the lease's notes say
    operator_actions   what an operator does: list, release, drop
      release          send the queue from its beginning, then hand the key back to the relays
      keys_by_cause    group parked keys by the cause of their failures
    parked_documents   the documents of the parked store
    seen_leases_note   the note that a processor has had leases

    relay:     e3 rejected ---> park: [key + e3 + e4] in one batch ---> page done ---> checkpoint, and the key's name
               e5 ------------> append: [key if unchanged + e5] in one batch -----> page done ---> checkpoint
    operator:  release -------> send e3 e4, take them off ---> send e5, take it off ---> [delete key if unchanged]
    relay:     e6 ------------> append: the key is gone, so it was handed back ---> send e6

Every write to a key's partition of the store is a transactional batch that requires the etag of the key's document, so the writes
of all programs happen one after another. The deletion of that document *is* the hand-back. It succeeds only if no event was
appended since the release saw an empty queue. An append succeeds only if the key was not handed back since the relay read it. So an
event is either in the queue before the hand-back, and the release sends it, or it comes later, and the relay sends it. The relay
needs no signal: its next append shows that the key is gone.

Which keys are parked
---------------------
The lease names them: the names of the parked keys of its range are its *notes* (`ports.Notes`). When a relay parks a key, the
checkpoint behind that page also saves the name of the key, in the same write. The write that acquires a lease reads the names. So an
owner knows every key whose events its checkpoint passed without sending them, and its knowledge is never older than the checkpoint.
If a name is there without need, that costs a read. If a name were missing, order would break. An owner that lost its lease cannot
save a name, and need not: its page was not checkpointed, so the next owner handles the event itself. Children of a split inherit the
notes. A lease without notes is the first one of its range, or replaces one that was lost with its names. Then its owner asks the
store for all parked keys before it sends anything, and saves their names.

Leases do not name the keys that an operator parked by hand. These are *announced*: the relay polls for them with a query, and sends
the key's events until the poll finds the key. A third kind of key needs neither: an owner parked it, but lost its lease before it
could save the name. The next owner sends the event itself, meets the same refusal, and appends to the queue that it finds. If it
cannot tell whether the topic or the event is at fault, because the topic accepts nothing else, it first asks the store whether the
key is parked. So such a key halts no lease.

Why order holds
---------------
The proof is one sentence: *a program that sends or appends an event of a key knows that each earlier event of the key is in
the topic or was dropped, or, if it appends, is in the queue.* If that holds, events enter the topic for the first time in order.
For a relay the sentence holds when it acquires the lease, because the checkpoint passed only events that were sent or held, and
the notes name the keys of those that were held. It holds later, because the relay handles a key's events one after another. So
owners that overlap do no harm. An owner that does not know that the key is parked has sent every event since its start. One that knows
appends behind the events that are in the queue. An event that is held already is found by the id of its document. An owner that finds
its key handed back can go on sending, because the release sent all events that this owner had appended.

For a release the sentence holds because it sends the events of the queue in order, and takes an event off only once the broker has
accepted it. That is true for any number of releases at once, so none waits for another. The newest release or drop writes its
*claim* into the key's document. An older release stops at its next step, because its writes require its own claim. So it cannot
remove the record of an event that was dropped or edited meanwhile.

Where a read may be behind
--------------------------
With session consistency a read may return an older state. A decision is never made by such a read alone. If a deletion of the key's
document finds nothing, or its creation succeeds, the key was not parked. Every other decision is made by a write that requires an
etag.

Failures
--------
A request whose outcome is unknown is repeated: events that are in the store are found by their ids, and a key by its document.
A write that arrives late is refused because of its etag, or appends events that its sender was allowed to append anyway. If a limit
is reached or the store is unavailable, the page fails and is read again: its lease halts with an alarm, and nothing is lost. An event
that was dropped, or sent with another payload, leaves a record under its id, so it is not parked a second time if its page is read
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
