"""
Parking: the quarantine lane; an event that cannot be sent, and every later one of its partition key, wait in a store.

Theory of operation
-------------------
A *parked key* has a queue in the parked store: the event that failed and, behind it, every later event of the key.
The relays put events at the end of the queue instead of sending them; an operator has it emptied into the topic from
its beginning (`release.py`). Keys that are not parked never touch the store.

    relay:     e3 rejected ---> park: index, then [key + e3 + e4] in one batch ---> page done ---> checkpoint
               e5 ------------> append: [key if unchanged + e5] in one batch -----> page done ---> checkpoint
    operator:  release -------> claim ---> send e3 e4, take them off ---> send e5 ---> [delete key if unchanged]
    relay:     e6 ------------> append: no such key ---> it was handed back ---> send e6

All writes to a key's partition are transactional batches that carry the etag of the key's document, so they happen one
after another, whoever makes them. The deletion of that document *is* the hand-back. It succeeds only if nothing was
appended since the queue was seen empty, and an append succeeds only if the key was not handed back since; so an event
is either in the queue before the hand-back, and was sent by the operator, or behind it, and the relay sends it. There
is no moment in between, and the relay needs no signal: its next append tells.

Why order holds
---------------
One sentence carries the proof: *whoever lets an event of a key pass, by sending it or by appending it, knows of every
earlier one that it is in the topic (or dropped), or, where it appends, in the queue as well.* By that, whatever enters
the topic first enters it in order. For a relay the sentence holds at the start of a tenure because the checkpoint
passed only what was sent or held, and it asks which keys are parked after it has the lease; from then on because it
handles a key's events one after another. That is why overlapping owners do no harm. One that does not know of the
parking has been sending everything itself since its start, without a gap; one that knows appends behind what is there;
an event that is there already is left alone, for its document is named after it. What an owner learned of a hand-back
stays true: what it had appended was sent. For whoever releases, the sentence holds because positions are taken in order
and a position is left only once the broker accepted it, by any number of operators at once; a *claim* in the key's
document makes it one at a time all the same, so that nothing is sent twice without need.

Where a read may be behind
--------------------------
With session consistency a read may return what was true a moment ago, a write never does. A new owner that missed a
parked key would break order, so what it must not miss is proven by a write: the index is read and written back under
its etag, and that a key is not parked is proven by a deletion that finds nothing. A key enters the index before it is
parked and leaves it after it was handed back, each time under a new epoch, so a late removal never hits a later parking.
And no event counts as held before the index was seen, by a write, to name the epoch of the key's document.

Failures
--------
A request whose outcome is unknown is repeated: events already there are found by their ids, a key already there by its
epoch. A late one is refused by the etag or does what is still right, for it appends what its sender had let pass.
Past the limits, or without the store, the page fails and comes again: its lease halts with an alarm, nothing is lost.
An event that was dropped, or sent with another payload, leaves a record under its id; should the event come again
because its page was never checkpointed, it is not parked a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cosmos_outbox.errors import Conflict, ParkingFull, PreconditionFailed, StoreError, StoreUnavailable
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, ParkedStore, WriteKind
from cosmos_outbox.relay.delivery import Delivery
from cosmos_outbox.relay.parked import (
    KEY_ID,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    events_in,
    held_id,
    key_in,
)
from cosmos_outbox.relay.parked_index import ParkedIndex, until_applied
from cosmos_outbox.retries import Deadline, RetryOptions

DEFAULT_MAX_KEYS = 1000
DEFAULT_MAX_EVENTS = 10_000
_PATIENCE_SECONDS = 2.0  # how long an append waits for a key that is about to be handed back
_BATCH_BYTES = 1_500_000  # of the 2 MB of a transactional batch, with room for what JSON escapes add


def utcnow() -> datetime:
    """
    Return the time that the store's records carry; no decision about order depends on it.
    """
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    What became of events that were to be held.
    """

    parked: bool  # False: the key is not, for they are to be sent, or an operator has dealt with all of them
    left: list[Delivery]  # to be sent, because the key is not parked


class Parking:
    """
    The relay's side of the parked store.

    Args:
        store: the parked store.
        max_keys: of parked keys, over all leases. Defaults to 1,000.
        max_events: of held events, for each key. Defaults to 10,000.
        retry: for how long one operation is tried. Defaults to 10 s.
        utcnow: the clock of the records.
    """

    def __init__(
        self,
        store: ParkedStore,
        *,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_events: int = DEFAULT_MAX_EVENTS,
        retry: RetryOptions | None = None,
        utcnow: Callable[[], datetime] = utcnow,
    ) -> None:
        self._store, self._max_keys, self._max_events = store, max_keys, max_events
        self._retry, self._utcnow = retry or RetryOptions(), utcnow
        self._index = ParkedIndex(store, self._retry)
        self._confirmed: dict[str, str] = {}  # epochs of parked keys that the index was seen to name

    async def keys(self) -> frozenset[str]:
        """
        Return every key that is parked now, and perhaps some that are not.

        Raises:
            StoreError: the store refused or failed.
        """
        return await self._index.keys()

    async def hold(
        self, partition_key: str, deliveries: Sequence[Delivery], failure: Failure | None = None
    ) -> Held:
        """
        Put events at the end of their key's queue, and say which are to be sent, because the key is not parked.

        Every event of the key before these was sent or held. Repeating a call, here or elsewhere, does no harm.

        Args:
            partition_key: of all the events.
            deliveries: the events, in order.
            failure: why the first of them cannot be sent; it parks the key. Without it, the key was parked before.

        Raises:
            ParkingFull: a limit is reached; the events up to it may be held.
            StoreError: the store refused or failed.
        """
        due, parked = list(deliveries), False
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + _PATIENCE_SECONDS

        async def step(deadline: Deadline) -> None:
            nonlocal due, parked
            key = await deadline.attempt(lambda: key_in(self._store, partition_key))
            parked = key is not None
            if key is not None:
                await self._confirm(key)
            if not due:
                # Known, all of them; and perhaps as held by a parking that is younger than the look before this one.
                return
            if key is not None and key.state is KeyState.CLOSING and loop.time() < patient_until:
                raise PreconditionFailed("The key is about to be handed back.")
            if key is None and (failure is None or due[0].event.id != failure.event_id):
                return
            try:
                if key is None:
                    count = await self._park(partition_key, due, failure, deadline)
                    parked = True
                else:
                    count = await self._write(key, WriteKind.REPLACE, due, failure, deadline)
            except Conflict as conflict:
                if conflict.document_id != KEY_ID:
                    due = await self._behind_known(partition_key, due, deadline)
                raise
            due = due[count:]

        handed_back = False
        while due and not handed_back:
            before = len(due)
            await until_applied(step, self._retry)
            handed_back = len(due) == before
        return Held(parked=parked, left=due)

    async def _park(
        self, partition_key: str, due: Sequence[Delivery], failure: Failure | None, deadline: Deadline
    ) -> int:
        # A new epoch each time: the entry of an attempt that nobody knows the outcome of may be needed still.
        epoch = await self._index.add(partition_key, max_keys=self._max_keys)
        parked_at = self._utcnow().isoformat()
        key = ParkedKey(partition_key=partition_key, epoch=epoch, parked_at=parked_at, failure=failure)
        try:
            count = await self._write(key, WriteKind.CREATE, due, failure, deadline)
        except StoreError as error:
            if await self._failed_for_sure(key, error, deadline):
                await self._index.remove(epoch)
            raise
        await self._confirm(key)
        return count

    async def _confirm(self, key: ParkedKey) -> None:
        if self._confirmed.get(key.partition_key) != key.epoch:
            await self._index.confirm(key.epoch, key.partition_key)
            if len(self._confirmed) >= self._max_keys:
                self._confirmed.clear()  # most were handed back; of the others it costs one write more
            self._confirmed[key.partition_key] = key.epoch

    async def _failed_for_sure(self, key: ParkedKey, error: StoreError, deadline: Deadline) -> bool:
        if isinstance(error, StoreUnavailable):
            return error.applied is False
        # Perhaps with the echo of this very write
        if isinstance(error, Conflict) and error.document_id == KEY_ID:
            found = await deadline.attempt(lambda: key_in(self._store, key.partition_key))
            return found is None or found.epoch != key.epoch
        return True

    async def _write(
        self,
        key: ParkedKey,
        kind: WriteKind,
        due: Sequence[Delivery],
        failure: Failure | None,
        deadline: Deadline,
    ) -> int:
        """
        Write the key and as many events as one batch takes, all or nothing; return their number.
        """
        now = self._utcnow().isoformat()
        room = self._max_events - key.held
        if room <= 0:
            raise ParkingFull(
                f"{key.held} events of partition key {key.partition_key!r} are held, as many as the limit allows; "
                "release or drop them, or raise the limit."
            )
        events: list[ParkedEvent] = []
        size = 0
        for position, delivery in enumerate(due[: min(room, MAX_BATCH_OPERATIONS - 1)], start=key.next):
            failed = failure is not None and delivery.event.id == failure.event_id
            event = ParkedEvent(
                event=delivery.document,
                epoch=key.epoch,
                position=position,
                parked_at=now,
                failure=failure if failed else None,
            )
            size += event.size
            if events and size > _BATCH_BYTES:
                break
            events.append(event)
        changed = replace(
            key,
            state=KeyState.RELEASING if key.state is KeyState.CLOSING else key.state,
            next=key.next + len(events),
            held=key.held + len(events),
            failure=key.failure or failure,
        )
        writes = [changed.write(kind), *(event.write(WriteKind.CREATE) for event in events)]
        await deadline.attempt(lambda: self._store.commit(key.partition_key, writes))
        return len(events)

    async def _behind_known(
        self, partition_key: str, due: Sequence[Delivery], deadline: Deadline
    ) -> list[Delivery]:
        # Held already, dropped, or sent with another payload: each leaves its document, and needs nothing more. Nor
        # does anything before it: it was sent, or it is held as well.
        found = await deadline.attempt(lambda: events_in(self._store, partition_key))
        known = {held_id(event.event_id) for event in found}
        passed = [place for place, delivery in enumerate(due, start=1) if held_id(delivery.event.id) in known]
        return list(due[max(passed, default=0) :])
