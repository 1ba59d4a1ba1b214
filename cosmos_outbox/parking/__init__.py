"""
Parking: what waits behind a failure, of one partition key, in order, until an operator releases or drops it.

Theory of operation
-------------------
A *parked key* has a queue in the parked store: the event that failed and, behind it, every later event of the key.
The relays put events at the end of the queue instead of sending them; an operator has it emptied into the topic from
its beginning (`release.py`). Keys that are not parked never touch the store.

    relay:     e3 rejected ---> park: [key + e3 + e4] in one batch ---> page done ---> checkpoint, and the key's name
               e5 ------------> append: [key if unchanged + e5] in one batch -----> page done ---> checkpoint
    operator:  release -------> claim ---> send e3 e4, take them off ---> send e5 ---> [delete key if unchanged]
    relay:     e6 ------------> append: no such key ---> it was handed back ---> send e6

All writes to a key's partition are transactional batches that carry the etag of the key's document, so they happen one
after another, whichever program makes them. The deletion of that document *is* the hand-back. It succeeds only if nothing
was appended since the queue was seen empty, and an append succeeds only if the key was not handed back since; so an event
is either in the queue before the hand-back, and was sent by the operator, or behind it, and the relay sends it. There
is no moment in between, and the relay needs no signal: its next append tells.

Which keys are parked
---------------------
The lease says it: the names of the parked keys of its range are its *notes* (`ports.Notes`), written by the very write that
saves the checkpoint behind the page that parked them, and read by the write that acquires the lease. So an owner knows
every key whose events its checkpoint passed without sending them, and no read of it can be behind. A name too many costs
a look; a name too few would break order. An owner that lost its lease can write no name, and need not: its page was not
checkpointed, so the next owner meets the event itself. Children of a split inherit the notes.

Two kinds of parked keys no lease names: those that an operator parked by hand, and those parked before 0.1.0. They are
*announced* by a query that the relay makes from time to time; until it does, the key's events are simply sent.

Why order holds
---------------
One sentence carries the proof: *a program that lets an event of a key pass, by sending it or by appending it, knows of
every earlier one that it is in the topic (or dropped), or, where it appends, in the queue as well.* By that, whatever
enters the topic first enters it in order. For a relay the sentence holds at the start of a tenure because the checkpoint
passed only what was sent or held, and the notes name the keys of what was held; from then on because it handles a key's
events one after another. That is why overlapping owners do no harm. One that does not know of the parking has been sending
everything itself since its start, without a gap; one that knows appends behind what is there; an event that is there
already is left alone, for its document is named after it. What an owner learned of a hand-back stays true: what it had
appended was sent. For an operator that releases, the sentence holds because positions are taken in order and a position is
left only once the broker accepted it, by any number of operators at once; a *claim* in the key's document makes it one at
a time all the same, so that nothing is sent twice without need.

Where a read may be behind
--------------------------
With session consistency a read may return what was true a moment ago, a write never does. That a key is not parked is
proven by a deletion that finds nothing; every other decision is made by a write under an etag.

Failures
--------
A request whose outcome is unknown is repeated: events already there are found by their ids, a key already there by its
document. A late one is refused by the etag or does what is still right, for it appends what its sender had let pass.
Past the limits, or without the store, the page fails and comes again: its lease halts with an alarm, nothing is lost.
An event that was dropped, or sent with another payload, leaves a record under its id; should the event come again
because its page was never checkpointed, it is not parked a second time.
"""

from cosmos_outbox.parking.documents import Failure, ParkedEvent, ParkedKey, Scope
from cosmos_outbox.parking.hold import Parking
from cosmos_outbox.parking.release import Parked, ParkedKeys, Released

__all__ = ["Failure", "Parked", "ParkedEvent", "ParkedKey", "ParkedKeys", "Parking", "Released", "Scope"]
