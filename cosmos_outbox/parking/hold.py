"""
Holding: the program that meets a failure puts it, and what follows it in its partition key, at the end of a queue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

from cosmos_outbox.errors import (
    Conflict,
    ParkingError,
    ParkingFull,
    PreconditionFailed,
    RequestTooLarge,
)
from cosmos_outbox.parking.documents import (
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
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, Document, ParkedStore, WriteKind
from cosmos_outbox.retries import Deadline, RetryOptions, retry_on_conflict

DEFAULT_MAX_KEYS = 1000
DEFAULT_MAX_EVENTS = 10_000
_PATIENCE_SECONDS = 2.0  # how long an append waits for a key that is about to be handed back
_BATCH_BYTES = 1_500_000  # of the 2 MB of a transactional batch, with room for what JSON escapes add


def utcnow() -> datetime:
    """
    Return the time that the store's records carry; no decision about order depends on it.
    """
    return datetime.now(UTC)


class Item(Protocol):
    """
    What can be held: a JSON document, known by an id inside its partition key.
    """

    @property
    def id(self) -> str: ...

    @property
    def document(self) -> Document: ...


ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Generic[ItemT]):
    """
    What became of events that were to be held.

    parked: False where the key is not, for they are to be sent, or an operator has dealt with all of them.
    left: to be sent, because the key is not parked.
    """

    parked: bool
    left: list[ItemT]


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

        return await retry_on_conflict(step, self._retry)

    async def is_parked(self, name: str, scope: Scope) -> bool:
        """
        Say whether the key that a lease has this name for is parked; one whose document cannot be read is.

        Raises:
            StoreError: the store refused or failed.
        """

        async def step(deadline: Deadline) -> bool:
            return await deadline.attempt(find_named, self._store, scope, name) is not None

        try:
            return await retry_on_conflict(step, self._retry)
        except ParkingError:
            return True

    async def hold(
        self,
        partition_key: str,
        items: Sequence[ItemT],
        failure: Failure | None = None,
        *,
        scope: Scope = Scope(),  # noqa: B008 - a frozen value
    ) -> Held[ItemT]:
        """
        Put events at the end of their key's queue, and say which are to be sent, because the key is not parked.

        Every event of the key before these was sent or held. Repeating a call, here or elsewhere, does no harm.

        Args:
            partition_key: of all the events.
            items: the events, in order.
            failure: why the first of them cannot be sent; it parks the key. Without it, the key was parked before.
            scope: which processor of which container they belong to.

        Raises:
            ParkingFull: a limit is reached; the events up to it may be held.
            StoreError: the store refused or failed.
        """
        due, parked = list(items), False
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
                if failure is None or due[0].id != failure.event_id:
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
            await retry_on_conflict(step, self._retry)
            handed_back = len(due) == before
        return Held(parked=parked, left=due)

    async def _write(
        self,
        key: ParkedKey,
        kind: WriteKind,
        due: Sequence[Item],
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
        for position, item in enumerate(due[: min(room, MAX_BATCH_OPERATIONS - 1)], start=key.next):
            failed = failure is not None and item.id == failure.event_id
            event = ParkedEvent(
                event=item.document,
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

    async def _behind_known(self, partition: str, due: Sequence[ItemT], deadline: Deadline) -> list[ItemT]:
        # Held already, dropped, or sent with another payload: each leaves its document, and needs nothing more. Nor
        # does anything before it: it was sent, or it is held as well.
        at_hand = due[: MAX_BATCH_OPERATIONS - 1]
        ids = [held_id(item.id) for item in at_hand]
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
