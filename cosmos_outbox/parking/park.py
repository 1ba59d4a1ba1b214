"""
Park: put an event that failed, and the later events of its partition key, at the end of a queue; and say whether a key is parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Generic, Protocol, TypeVar

from cosmos_outbox.domain.events import utc_now
from cosmos_outbox.errors import (
    Conflict,
    KeyNotParked,
    NotFound,
    ParkingError,
    ParkingFull,
    PreconditionFailed,
    RequestTooLarge,
)
from cosmos_outbox.parking.parked_documents import (
    BY_HAND,
    KEY_ID,
    NO_ETAG,
    EventStatus,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    Scope,
    Unreadable,
    event_of,
    key_of,
    new_key,
    parked_id,
    readable_keys,
)
from cosmos_outbox.partition_key import broker_id
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, MAX_EVENT_BYTES, Document, ParkedStore, Write, WriteKind
from cosmos_outbox.retries import RetryOptions, retry_on_conflict, retry_reads
from cosmos_outbox.stored_documents import size_on_wire

DEFAULT_MAX_KEYS = 1000
DEFAULT_MAX_EVENTS = 10_000
_PATIENCE_SECONDS = 2.0  # how long an append waits while a release hands the key back
_BATCH_BYTES = 1_500_000  # a transactional batch may have 2 MB; the rest is room for JSON escapes
_WRAPPING_BYTES = 1000  # about the size of an event's document without the event


class Parkable(Protocol):
    """A JSON document that can be put into a queue, identified inside its partition key by an id."""

    @property
    def id(self) -> str: ...

    @property
    def document(self) -> Document: ...


ItemT = TypeVar("ItemT", bound=Parkable)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldResult(Generic[ItemT]):
    """
    The outcome of `Parking.hold`.

    parked: whether the key is parked; if not, its events are to be sent, or an operator has dealt with all of them.
    not_held: to be sent, because the key is not parked.
    decided: what an operator did with the first one, a message, which is in no queue.
    """

    parked: bool
    not_held: list[ItemT]
    decided: EventStatus | None = None


@dataclass(slots=True, kw_only=True)
class FoundKeys:
    """
    The parked keys that a query found. The query may lag behind writes.

    by_hand: those that no lease names because an operator parked them. One whose document cannot be read is among them, so that its
        events wait; other keys go on.
    """

    parked: frozenset[str] = frozenset()
    by_hand: frozenset[str] = frozenset()


class Parking:
    """
    Puts events, or messages, into the parked store, for a relay or a consumer.

    Args:
        store: the parked store.
        max_keys: of parked keys, of each lease. Defaults to 1,000.
        max_events: of held events, for each key. Defaults to 10,000.
        retry: for how long one operation is tried. Defaults to 10 s.
        utcnow: the clock of the records; no decision about order depends on it.
        references: whether what does not fit is held as a reference to its own container. Defaults to True; a message has none.
    """

    def __init__(
        self,
        store: ParkedStore,
        *,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_events: int = DEFAULT_MAX_EVENTS,
        retry: RetryOptions | None = None,
        utcnow: Callable[[], datetime] = utc_now,
        references: bool = True,
    ) -> None:
        self._store, self.max_keys, self._max_events = store, max_keys, max_events
        self._retry, self._utcnow, self._references = retry or RetryOptions(), utcnow, references

    async def keys(self, scope: Scope) -> FoundKeys:
        """
        Return all parked keys, as a query finds them.

        Raises:
            StoreError: the store refused or failed.
        """
        query = partial(self._store.keys, processor=scope.processor, container=scope.container)
        keys = readable_keys(await retry_reads(query, self._retry))
        announced = (key for key in keys if isinstance(key, Unreadable) or _is_by_hand(key.failure))
        return FoundKeys(
            parked=frozenset(key.partition_key for key in keys),
            by_hand=frozenset(key.partition_key for key in announced),
        )

    async def is_parked(self, name: str, scope: Scope) -> bool:
        """
        Say whether a key is parked, given its name in a lease. A key whose document cannot be read counts as parked.

        Raises:
            StoreError: the store refused or failed.
        """
        look = partial(key_in, self._store, scope.partition_named(name))
        try:
            return await retry_on_conflict(look, self._retry) is not None
        except ParkingError:
            return True

    async def is_key_parked(self, partition_key: str, scope: Scope) -> bool:
        """Say whether a partition key is parked. A key whose document cannot be read counts as parked."""
        return await self.is_parked(broker_id(partition_key), scope)

    async def hold(
        self,
        partition_key: str,
        items: Sequence[ItemT],
        failure: Failure | None = None,
        *,
        scope: Scope = Scope(),  # noqa: B008 - a frozen value
    ) -> HoldResult[ItemT]:
        """
        Put events at the end of their key's queue; return those to send instead, because the key is not parked.

        All earlier events of the key must have been sent or held. A call may be repeated, here or elsewhere.

        Args:
            partition_key: of all the events.
            items: the events, in order.
            failure: why the first of them cannot be sent; it parks the key. Without it, the key was parked before.
            scope: which processor of which container they belong to.

        Raises:
            ParkingFull: a limit is reached; the events up to it may be held.
            StoreError: the store refused or failed.
        """
        due, parked, partition = list(items), False, scope.partition_of(partition_key)
        # the event that an operator dropped, or had sent with another payload
        decided: ParkedEvent | None = None
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + _PATIENCE_SECONDS

        async def step() -> None:
            nonlocal due, parked, decided
            # if this write succeeds in parking the key, it was not parked before
            parks = bool(due) and failure is not None and due[0].id == failure.event_id
            key = await key_in(self._store, partition, prove=not parks)
            parked = key is not None
            if not due:
                # the store has all events already, possibly under a newer epoch than the key that was read
                return
            if key is not None and key.state is KeyState.CLOSING and loop.time() < patient_until:
                raise PreconditionFailed("The key is about to be handed back.")
            if key is None:
                if failure is None or not parks:
                    return
                key = new_key(partition_key, partition, scope, failure, now=self._utcnow())
            # if another program writes the record meanwhile, it is read again
            replaced, decided = decided, None
            try:
                count = await self._append(key, due, failure, replaced)
            except Conflict as conflict:
                if conflict.document_id != KEY_ID:
                    decided = await self._find_decision(key, due[0])
                    # If a message comes again after its key was handed back, it was sent again on purpose: it is held like any other.
                    # If its handler fails again, the message is not parked again.
                    again = failure is None and decided is not None and decided.is_dropped_before(key)
                    due = due if again else await self._behind_known(key.partition, due)
                    if not due and not self._references:
                        return  # the message has a record, whatever becomes of the key
                raise
            due, parked = due[count:], True

        left = 0
        while due and len(due) != left:  # else the key was handed back
            left = len(due)
            await retry_on_conflict(step, self._retry)
        return HoldResult(parked=parked, not_held=due, decided=decided.status if decided else None)

    async def _append(
        self,
        key: ParkedKey,
        due: Sequence[Parkable],
        failure: Failure | None,
        replaced: ParkedEvent | None,
    ) -> int:
        """Write the key and as many events as fit into one batch, all or nothing. Return the number of events."""
        room = self._max_events - key.held
        if room <= 0:
            raise ParkingFull(
                f"{key.held} events of partition key {key.partition_key!r} are held, as many as the limit allows; "
                "release or drop them, or raise the limit."
            )
        now, batch_size = self._utcnow().isoformat(), 0
        events: list[ParkedEvent] = []
        for position, item in enumerate(due[: min(room, MAX_BATCH_OPERATIONS - 1)], start=key.next):
            event = ParkedEvent(
                id=parked_id(item.id),
                event=item.document,
                partition=key.partition,
                epoch=key.epoch,
                position=position,
                parked_at=now,
                failure=failure if failure is not None and item.id == failure.event_id else None,
            )
            if replaced is not None and item.id == replaced.event_id:
                event = replace(event, decisions=replaced.decisions, etag=replaced.etag)
            size = size_on_wire(event.event)
            if size > MAX_EVENT_BYTES and self._references:
                event = event.as_reference()
                size = size_on_wire(event.event)
            batch_size += size + _WRAPPING_BYTES
            if events and batch_size > _BATCH_BYTES:
                break
            events.append(event)
        try:
            await self._commit(key, events, failure)
        except RequestTooLarge:
            if not self._references:
                raise
            # The service measures sizes in its own way. So store a single event, and of that only a reference by which it can be
            # found.
            events = [events[0].as_reference()]
            await self._commit(key, events, failure)
        return len(events)

    async def _commit(self, key: ParkedKey, events: Sequence[ParkedEvent], failure: Failure | None) -> None:
        changed = replace(
            key,
            state=KeyState.RELEASING if key.state is KeyState.CLOSING else key.state,
            next=key.next + len(events),
            held=key.held + len(events),
            failure=key.failure or failure,
        )
        writes = [changed.write(), *(event.write() for event in events)]
        await self._store.commit(key.partition, writes)

    async def _find_decision(self, key: ParkedKey, item: Parkable) -> ParkedEvent | None:
        # An event comes again when its page does, and stays what it is. A message may come after its key was handed back: it then has
        # a record of an earlier time, which is replaced, whatever it says. A record that a newer version wrote stops nothing.
        if self._references or key.etag is None:
            return None
        record = event_of(await self._store.read(parked_id(item.id), key.partition))
        return None if record.status is EventStatus.HELD else record

    async def _behind_known(self, partition: str, due: Sequence[ItemT]) -> list[ItemT]:
        # An event that is held already, was dropped, or was sent with another payload has a document in the key's partition of the
        # parked store, and needs no other. Nor does any event before it: that was sent, or is held as well.
        first = due[: MAX_BATCH_OPERATIONS - 1]
        ids = [parked_id(item.id) for item in first]
        known = await self._store.present(partition, ids)
        done = [place for place, document_id in enumerate(ids, start=1) if document_id in known]
        return list(due[max(done, default=0) :])


def _is_by_hand(failure: Failure | None) -> bool:
    return failure is not None and failure.reason == BY_HAND


async def key_in(store: ParkedStore, partition: str, *, prove: bool = True) -> ParkedKey | None:
    """
    Return the parked key of a partition with certainty; None means that the key is surely not parked.

    Without `prove`, None says that none was found: the caller's own write shows whether there is one.

    Raises:
        PreconditionFailed: there is one, but the read was behind; read again.
        ParkingError: its document cannot be read.
    """
    try:
        return key_of(await store.read(KEY_ID, partition))
    except NotFound:
        # A read may lag, a write does not: if a deletion finds no document, the key is not parked.
        with suppress(NotFound):
            if prove:
                await store.commit(partition, [Write(kind=WriteKind.DELETE, id=KEY_ID, etag=NO_ETAG)])
    return None


async def read_parked_key(store: ParkedStore, partition: str, partition_key: str) -> ParkedKey:
    """
    Return a parked key, as a single read finds it.

    Raises:
        KeyNotParked: it is certain that it is not parked.
        PreconditionFailed, ParkingError: as `key_in`.
    """
    if (key := await key_in(store, partition)) is None:
        raise KeyNotParked(f"Partition key {partition_key!r} is not parked.")
    return key
