"""
Parking: the quarantine lane; an event that cannot be sent, and every later one of its partition key, wait in a store.

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

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cosmos_outbox.errors import (
    Conflict,
    ParkingError,
    ParkingFull,
    PreconditionFailed,
    RequestTooLarge,
)
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, Document, ParkedStore, WriteKind
from cosmos_outbox.relay.delivery import Delivery
from cosmos_outbox.relay.parked import (
    BY_HAND,
    KEY_ID,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    Scope,
    find_key,
    find_named,
    held_id,
    key_of,
)
from cosmos_outbox.retries import Deadline, RetryOptions, until_applied

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

    parked: False where the key is not, for they are to be sent, or an operator has dealt with all of them.
    left: to be sent, because the key is not parked.
    """

    parked: bool
    left: list[Delivery]


class Parking:
    """
    The relay's side of the parked store.

    Args:
        store: the parked store.
        max_keys: of parked keys, of each lease. Defaults to 1,000.
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
        self._store, self.max_keys, self._max_events = store, max_keys, max_events
        self._retry, self._utcnow = retry or RetryOptions(), utcnow

    async def announced(self, scope: Scope) -> frozenset[str]:
        """
        Return the parked keys that no lease may name: those parked by hand, and those parked before 0.1.0.

        One whose document cannot be read is among them, so that it stands still, and no other key.

        Raises:
            StoreError: the store refused or failed.
        """

        async def step(deadline: Deadline) -> frozenset[str]:
            documents = await deadline.attempt(
                self._store.keys, processor=scope.processor, container=scope.container
            )
            return frozenset(filter(None, map(_announced, documents)))

        return await until_applied(step, self._retry)

    async def is_parked(self, name: str, scope: Scope) -> bool:
        """
        Say whether the key that a lease has this name for is parked; one whose document cannot be read is.

        Raises:
            StoreError: the store refused or failed.
        """

        async def step(deadline: Deadline) -> bool:
            return await deadline.attempt(find_named, self._store, scope, name) is not None

        try:
            return await until_applied(step, self._retry)
        except ParkingError:
            return True

    async def hold(
        self,
        partition_key: str,
        deliveries: Sequence[Delivery],
        failure: Failure | None = None,
        *,
        scope: Scope = Scope(),  # noqa: B008 - a frozen value
    ) -> Held:
        """
        Put events at the end of their key's queue, and say which are to be sent, because the key is not parked.

        Every event of the key before these was sent or held. Repeating a call, here or elsewhere, does no harm.

        Args:
            partition_key: of all the events.
            deliveries: the events, in order.
            failure: why the first of them cannot be sent; it parks the key. Without it, the key was parked before.
            scope: which processor of which container they belong to.

        Raises:
            ParkingFull: a limit is reached; the events up to it may be held.
            StoreError: the store refused or failed.
        """
        due, parked = list(deliveries), False
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + _PATIENCE_SECONDS

        async def step(deadline: Deadline) -> None:
            nonlocal due, parked
            key = await deadline.attempt(find_key, self._store, scope, partition_key)
            parked = key is not None
            if not due:
                # Known, all of them; and perhaps as held by a parking that is younger than the look before this one.
                return
            if key is not None and key.state is KeyState.CLOSING and loop.time() < patient_until:
                raise PreconditionFailed("The key is about to be handed back.")
            kind = WriteKind.REPLACE
            if key is None:
                if failure is None or due[0].event.id != failure.event_id:
                    return
                key, kind = new_key(partition_key, scope, failure, now=self._utcnow()), WriteKind.CREATE
            try:
                count = await self._write(key, kind, due, failure, deadline)
            except Conflict as conflict:
                if conflict.document_id != KEY_ID:
                    due = await self._behind_known(key.partition, due, deadline)
                raise
            due, parked = due[count:], True

        handed_back = False
        while due and not handed_back:
            before = len(due)
            await until_applied(step, self._retry)
            handed_back = len(due) == before
        return Held(parked=parked, left=due)

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
                partition=key.partition,
                epoch=key.epoch,
                position=position,
                parked_at=now,
                failure=failure if failed else None,
            ).fitted()
            size += event.size
            if events and size > _BATCH_BYTES:
                break
            events.append(event)
        try:
            await self._commit(key, kind, events, failure, deadline)
        except RequestTooLarge:
            # The service counts in a way of its own: one event, and as little of it as finds it again.
            events = [events[0].as_reference()]
            await self._commit(key, kind, events, failure, deadline)
        return len(events)

    async def _commit(
        self,
        key: ParkedKey,
        kind: WriteKind,
        events: Sequence[ParkedEvent],
        failure: Failure | None,
        deadline: Deadline,
    ) -> None:
        changed = replace(
            key,
            state=KeyState.RELEASING if key.state is KeyState.CLOSING else key.state,
            next=key.next + len(events),
            held=key.held + len(events),
            failure=key.failure or failure,
        )
        writes = [changed.write(kind), *(event.write(WriteKind.CREATE) for event in events)]
        await deadline.attempt(lambda: self._store.commit(key.partition, writes))

    async def _behind_known(
        self, partition: str, due: Sequence[Delivery], deadline: Deadline
    ) -> list[Delivery]:
        # Held already, dropped, or sent with another payload: each leaves its document, and needs nothing more. Nor
        # does anything before it: it was sent, or it is held as well.
        at_hand = due[: MAX_BATCH_OPERATIONS - 1]
        ids = [held_id(delivery.event.id) for delivery in at_hand]
        known = await deadline.attempt(self._store.present, partition, ids)
        passed = [place for place, document_id in enumerate(ids, start=1) if document_id in known]
        return list(due[max(passed, default=0) :])


def _announced(document: Document) -> str | None:
    try:
        key = key_of(document)
    except ParkingError:
        return str(document.get("key", document["partitionKey"]))
    by_hand = key.failure is not None and key.failure.reason == BY_HAND
    return key.partition_key if key.scope is None or by_hand else None


def new_key(partition_key: str, scope: Scope, failure: Failure, *, now: datetime) -> ParkedKey:
    """
    Return a key that is to be parked.
    """
    return ParkedKey(
        partition_key=partition_key,
        partition=scope.partition_of(partition_key),
        scope=scope,
        epoch=uuid.uuid4().hex,
        parked_at=now.isoformat(),
        failure=failure,
    )
