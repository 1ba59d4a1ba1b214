"""
Park: put an event that cannot be sent, and the later events of its partition key, into a queue; and say whether a key is parked.
`relay/topics_and_refusals.py` decides which events cannot be sent.
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
_PATIENCE_SECONDS = 2.0  # how long a worker that adds an event waits for a release that is about to end
_BATCH_BYTES = 1_500_000  # a transactional batch may have 2 MB; the rest is room for JSON escapes
_WRAPPING_BYTES = 1000  # about the size of an event's document without the event


class Parkable(Protocol):
    """An event or message that can be put into a queue: a JSON document with an id that is unique within its partition key."""

    @property
    def id(self) -> str: ...

    @property
    def document(self) -> Document: ...


ItemT = TypeVar("ItemT", bound=Parkable)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldResult(Generic[ItemT]):
    """
    What became of the events that `Parking.hold` was to put into the queue of a parked key.

    parked: whether the key is parked.
    not_held: the events that the caller has to send, because the key is not parked.
    decided: DROPPED or SENT if the message is in no queue, because an operator has dropped it or sent it with another payload.
    """

    parked: bool
    not_held: list[ItemT]
    decided: EventStatus | None = None


@dataclass(slots=True, kw_only=True)
class FoundKeys:
    """
    The parked keys that a query found. The query may lag behind writes.

    parked: all parked keys.
    by_hand: the keys that an operator parked by hand. No lease names them. A key whose document cannot be read is among them, so that
        its events wait.
    """

    parked: frozenset[str] = frozenset()
    by_hand: frozenset[str] = frozenset()


class Parking:
    """
    Puts the events of a relay, or the messages of a consumer, into the parked store.

    Args:
        store: the parked store.
        max_keys: how many keys of one lease may be parked. Defaults to 1,000.
        max_events: how many events of one key may be held. Defaults to 10,000.
        retry: for how long one failed operation is repeated. Defaults to 10 s.
        utcnow: returns the time for records. No decision about order depends on it.
        references: whether an event that is too large for the parked store is stored without its payload, which a release reads in the
            event's own container. Defaults to True. A consumer passes False, because a message has no such container.
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
        Return all parked keys of a processor and a container. A key that was parked a moment ago may be missing.

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
        Say whether a key is parked. `name` is the name by which a lease lists the key: the key itself, or its hash if the key is long (see
        `broker_id`). A key whose document cannot be read counts as parked.

        Raises:
            StoreError: the store refused or failed.
        """
        look = partial(key_in, self._store, scope.partition_named(name))
        try:
            return await retry_on_conflict(look, self._retry) is not None
        except ParkingError:
            return True

    async def is_key_parked(self, partition_key: str, scope: Scope) -> bool:
        """Say whether a partition key is parked. If the document of the key cannot be read, it counts as parked."""
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
        Put events at the end of their key's queue. If the key is not parked, put them nowhere: the result lists them as `not_held`.

        The caller must have sent all earlier events of the key, or put them into the queue. The call may be repeated,
        also by another process.

        Args:
            partition_key: the key of all the events.
            items: the events, in order.
            failure: why the first event cannot be sent: the key is parked because of it. None if the key was parked before.
            scope: the processor and the container to which the events belong.

        Raises:
            ParkingFull: the limit of held events is reached; the events that fit below it may be held.
            StoreError: the store refused or failed.
        """
        due, parked, partition = list(items), False, scope.partition_of(partition_key)
        # The record of the first message in the parked store, if an operator dropped it or had it sent with another payload.
        decided: ParkedEvent | None = None
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + _PATIENCE_SECONDS

        async def step() -> None:
            nonlocal due, parked, decided
            # If this call is to park the key, its write succeeds only if the key was not parked before, so an old read does no harm.
            # Otherwise no write follows if the key is missing, so `key_in` has to prove that it is.
            parks = bool(due) and failure is not None and due[0].id == failure.event_id
            key = await key_in(self._store, partition, prove=not parks)
            parked = key is not None
            if not due:
                # The parked store has all events already, so there is nothing to append.
                return
            if key is not None and key.state is KeyState.CLOSING and loop.time() < patient_until:
                raise PreconditionFailed("A release of the key is about to end: try again.")
            if key is None:
                if failure is None or not parks:
                    return
                key = new_key(partition_key, partition, scope, failure, now=self._utcnow())
            # An operator's decision counts for one attempt only, because it may change. If the append is refused, read the decision again.
            replaced, decided = decided, None
            try:
                count = await self._append(key, due, failure, replaced)
            except Conflict as conflict:
                if conflict.document_id != KEY_ID:
                    decided = await self._find_decision(key, due[0])
                    # If a message that an operator dropped comes again after its key was released, it was sent again on purpose. So it waits
                    # behind a parked key like any other message. But if its own handler fails again, it does not park the key.
                    again = failure is None and decided is not None and decided.is_dropped_before(key)
                    due = due if again else await self._behind_known(key.partition, due)
                    if not due and not self._references:
                        return  # an operator has dropped the message, or sent it with another payload
                raise
            due, parked = due[count:], True

        left = 0
        while due and len(due) != left:  # a step that appends nothing has found that the key is not parked
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
        """
        Write the key's document and the first events in one batch, as many as fit. Return how many events these are.
        """
        room = self._max_events - key.held
        if room <= 0:
            raise ParkingFull(
                f"{key.held} events of partition key {key.partition_key!r} are held, as many as the limit allows. "
                "Release or drop them, or raise the limit."
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
            # Cosmos DB measures sizes in its own way, so the batch may be too large in spite of the estimate. Store the first event alone,
            # without its payload, which a release can read in the event's own container.
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
        # Look for the record of an operator's decision only if this is a message of a consumer. An operator may send a dropped message
        # again after its key was released, and then the message replaces the record. The record of a worker's event stays when the event
        # comes again.
        if self._references or key.etag is None:
            return None
        record = event_of(await self._store.read(parked_id(item.id), key.partition))
        return None if record.status is EventStatus.HELD else record

    async def _behind_known(self, partition: str, due: Sequence[ItemT]) -> list[ItemT]:
        # Skip all events up to the last event that has a document in the parked store. That event is in the queue, was dropped or was sent
        # with another payload. The events before it were sent or are in the queue, because events are appended in order.
        first = due[: MAX_BATCH_OPERATIONS - 1]
        ids = [parked_id(item.id) for item in first]
        known = await self._store.present(partition, ids)
        done = [place for place, document_id in enumerate(ids, start=1) if document_id in known]
        return list(due[max(done, default=0) :])


def _is_by_hand(failure: Failure | None) -> bool:
    return failure is not None and failure.reason == BY_HAND


async def key_in(store: ParkedStore, partition: str, *, prove: bool = True) -> ParkedKey | None:
    """
    Return the parked key whose documents are in this partition of the parked store; None if the key is certainly not parked.

    If `prove` is False, None is not certain: the read may have come from a replica that lags behind. Then the caller's own write has to
    show whether the key is parked.

    Raises:
        PreconditionFailed: the key is parked, but the read was behind; read again.
        ParkingError: the document of the key cannot be read.
    """
    try:
        return key_of(await store.read(KEY_ID, partition))
    except NotFound:
        # A read may lag behind, but a write does not. So try to delete the document under an etag that no document has. If Cosmos DB answers
        # "not found" and not "wrong etag", the key is not parked.
        with suppress(NotFound):
            if prove:
                await store.commit(partition, [Write(kind=WriteKind.DELETE, id=KEY_ID, etag=NO_ETAG)])
    return None


async def read_parked_key(store: ParkedStore, partition: str, partition_key: str) -> ParkedKey:
    """
    Read a parked key from the store.

    Raises:
        KeyNotParked: the key is certainly not parked.
        PreconditionFailed, ParkingError: see `key_in`.
    """
    if (key := await key_in(store, partition)) is None:
        raise KeyNotParked(f"Partition key {partition_key!r} is not parked.")
    return key
