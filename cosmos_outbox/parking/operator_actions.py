"""
What an operator can do with parked keys: list them, park a key by hand, release a key, drop an event, erase a record.
`release.py` sends the events of a released key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from cosmos_outbox.domain.events import utc_now
from cosmos_outbox.errors import KeyNotParked, NotFound, UsageError
from cosmos_outbox.parking.park import key_in, read_parked_key
from cosmos_outbox.parking.parked_documents import (
    BY_HAND,
    Decision,
    EventStatus,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    Scope,
    Unreadable,
    event_of,
    new_key,
    parked_id,
    readable_events,
    readable_keys,
)
from cosmos_outbox.parking.release import Release, Released, Send, first_held
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox.retries import RetryOptions, retry_on_conflict, retry_reads

# Three lists for one key: the events that wait, the records of dropped or edited events, and documents that cannot be read.
_Events = tuple[tuple[ParkedEvent, ...], tuple[ParkedEvent, ...], tuple[Unreadable, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """
    A parked key with two lists: the events that wait, in order, and the records of events that were dropped or sent
    with an edited payload.
    """

    key: ParkedKey
    held: tuple[ParkedEvent, ...]
    records: tuple[ParkedEvent, ...]
    unreadable: tuple[Unreadable, ...]


class ParkedKeys:
    """
    The parked keys of one processor of one container; any number of operators may use it at once.

    Args:
        store: the parked store.
        send: sends the events of a released key; only `release` needs it. For events of an outbox it is
            `relay.released_events.resending(publisher)`.
        scope: the processor and the container of the events. Defaults to empty names, as in tests.
        retry: for how long a failed operation on the store is repeated. Defaults to 10 s.
        utcnow: returns the time for records. No decision about order depends on it.
    """

    def __init__(
        self,
        store: ParkedStore,
        send: Send | None = None,
        *,
        scope: Scope = Scope(),  # noqa: B008 - a frozen value
        retry: RetryOptions | None = None,
        utcnow: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store, self._send, self._scope = store, send, scope
        self._retry, self._utcnow = retry or RetryOptions(), utcnow

    async def list(self) -> tuple[ParkedKey | Unreadable, ...]:
        """
        Return all parked keys: those parked first come first, and those whose documents cannot be read come last. A key that was parked a
        moment ago may be missing.
        """
        query = partial(self._store.keys, processor=self._scope.processor, container=self._scope.container)
        found = readable_keys(await retry_reads(query, self._retry))

        def place(key: ParkedKey | Unreadable) -> tuple[int, str]:
            return (0, key.parked_at) if isinstance(key, ParkedKey) else (1, key.partition_key)

        return tuple(sorted(found, key=place))

    async def show(self, partition_key: str) -> Parked:
        """
        Return a parked key with its events.

        Raises:
            KeyNotParked: the key is not parked; `records` returns its records of earlier times.
            ParkingError: the document of the key cannot be read.
        """
        key = await self.find(partition_key)
        held, records, unreadable = await self._events(key.partition)
        return Parked(key=key, held=held, records=records, unreadable=unreadable)

    async def find(self, partition_key: str) -> ParkedKey:
        """
        Return a parked key.

        Raises:
            KeyNotParked: the key is not parked.
            ParkingError: the document of the key cannot be read.
        """
        return await retry_on_conflict(lambda: self._key(partition_key), self._retry)

    async def first_held(self, partition_key: str) -> ParkedEvent | None:
        """
        Return the event of a parked key that a release would send first; None if no event of the key waits.

        Raises:
            KeyNotParked: the key is not parked.
            ParkingError: the document of the key or of an event cannot be read.
        """

        async def step() -> ParkedEvent | None:
            return await first_held(self._store, await self._key(partition_key))

        return await retry_on_conflict(step, self._retry)

    async def records(self, partition_key: str) -> tuple[ParkedEvent | Unreadable, ...]:
        """
        Return the records of a key's events that were dropped or sent with an edited payload. The oldest comes first, and records that
        cannot be read come last.

        The records stay in the parked store when the key is released.
        """
        _, records, unreadable = await self._events(self._scope.partition_of(partition_key))
        return (*records, *unreadable)

    async def find_events(self, partition_key: str, event_ids: Collection[str]) -> dict[str, ParkedEvent]:
        """
        Return, by id, those of the given events that wait in the parked store, were dropped, or were sent with an edited payload.

        Raises:
            ParkingError: a document cannot be read.
        """
        document_ids = [parked_id(event_id) for event_id in event_ids]
        partition = self._scope.partition_of(partition_key)
        found: dict[str, ParkedEvent] = {}
        present = partial(self._store.present, partition, document_ids)
        for document_id in await retry_reads(present, self._retry):
            with suppress(NotFound):
                read = partial(self._store.read, document_id, partition)
                event = event_of(await retry_reads(read, self._retry))
                found[event.event_id] = event
        return found

    async def load_key_filter(self) -> Callable[[str], bool]:
        """
        Query the parked store once for all keys. Return a function that says whether it has events of a partition key.
        """
        partitions = await retry_reads(self._store.partitions, self._retry)
        return lambda partition_key: self._scope.partition_of(partition_key) in partitions

    async def park(self, partition_key: str, *, reason: str) -> ParkedKey:
        """
        Park a key by hand. The workers find out within 15 seconds. From then on its events wait in the parked store and
        are not sent.

        Returns:
            The parked key. A key that was parked already stays unchanged.

        Raises:
            UsageError: the key is an empty text.
        """
        if not partition_key:
            raise UsageError("An empty text is no partition key: name the key to park.")
        failure = Failure(event_id="", reason=BY_HAND, error=reason, attempts=0)
        partition = self._scope.partition_of(partition_key)

        async def step() -> ParkedKey:
            key = await key_in(self._store, partition, prove=False)
            if key is None:
                key = new_key(partition_key, partition, self._scope, failure, now=self._utcnow())
                await self._store.commit(partition, [key.write()])
            return key

        return await retry_on_conflict(step, self._retry)

    async def release(
        self,
        partition_key: str,
        *,
        edited: Mapping[str, Any] | None = None,
        event_id: str | None = None,
        by: str | None = None,
    ) -> Released:
        """
        Send the waiting events of a parked key in order, and the events that arrive meanwhile. After that the key is no
        longer parked, and the workers send its next events.

        If an earlier release of the key still runs or was killed, this release takes over and goes on where the earlier
        release stopped.

        Args:
            partition_key: the key.
            edited: the payload (`data`) to send instead of the payload of the first held event. The event keeps its id. The committed
                payload stays in the parked store, in the record of the event.
            event_id: the event whose payload `edited` replaces. If another release has sent this event meanwhile, the
                call is refused.
            by: the name of the operator, for the record of an edited event.

        Returns:
            How many events were sent. If the topic refuses one of them again, the key stays parked, with the new failure.

        Raises:
            KeyNotParked: the key is not parked, or holds no event to edit.
            ParkingError: the document of the key or of a held event cannot be read.
            ReleaseTakenOver: a later release or drop of the key began.
            UsageError: `edited` is given without `event_id`, or has a value that JSON would change; or `event_id` is not the first held
                event. Nothing was changed.
            PublishError: the topic did not answer; the events that were not sent are still held.
        """
        if self._send is None:
            raise UsageError("A release sends events: pass `send=resending(publisher)` to ParkedKeys.")
        if edited is not None and event_id is None:
            raise UsageError("`edited` replaces the payload of one event: pass its event_id.")
        if edited is not None and not _is_kept(dict(edited)):
            raise UsageError("The payload has a value that is no JSON: write it as text.")
        release = Release(
            store=self._store,
            partition_key=partition_key,
            partition=self._scope.partition_of(partition_key),
            send=self._send,
            retry=self._retry,
            utcnow=self._utcnow,
        )
        return await release.run(edited, event_id, by)

    async def drop(
        self, partition_key: str, event_id: str, *, reason: str, by: str | None = None
    ) -> ParkedEvent:
        """
        Decide that a held event is never sent. Return its record, which stays in the parked store with the operator and the reason.

        A second drop of the same event adds its own operator and reason to the record.

        The key stays parked until it is released. A release of the key that runs now stops. Two things cannot be
        undone. First, a worker that read the event before it was parked, or a release that was about to send it, may
        still send it, if the broker accepts it by now. Second, if events go to several topics, events behind the event
        that parked the key may already be in another topic.

        Raises:
            KeyNotParked: the key is not parked, or does not hold the event.
            ParkingError: the document of the key or of the event cannot be read.
        """
        decision = Decision(at=self._utcnow().isoformat(), by=by, did="dropped", reason=reason)

        async def step() -> ParkedEvent:
            key = await self._key(partition_key)
            event = await self._record(event_id, key.partition)
            if event is not None and decision in event.decisions:  # an earlier attempt wrote the decision
                return event
            if event is not None and event.status is EventStatus.DROPPED:
                again = event.with_decision(decision)
                await self._store.commit(key.partition, [again.write()])
                return again
            if event is None or event.status is not EventStatus.HELD:
                raise KeyNotParked(f"Event {event_id!r} of partition key {partition_key!r} is not held.")
            dropped = replace(
                event, status=EventStatus.DROPPED, note=reason, closed_at=decision.at
            ).with_decision(decision)
            failed = key.failure is not None and key.failure.event_id == event_id
            changed = replace(
                key,
                state=KeyState.PARKED,
                claim=None,
                held=key.held - 1,
                failure=None if failed else key.failure,
            )
            await self._store.commit(key.partition, [changed.write(), dropped.write()])
            return dropped

        return await retry_on_conflict(step, self._retry)

    async def purge(
        self, partition_key: str, event_id: str, *, reason: str, by: str | None = None
    ) -> ParkedEvent:
        """
        Erase payloads and errors from the record of an event. The record itself stays, so that no replay sends the event again.

        The id of the event and the partition key are not erased. Consumers may have copies of the event, and the event
        stays in its own container until its time to live ends.

        Raises:
            KeyNotParked: there is no record of the event.
            UsageError: the event is held; drop it first.
        """
        decision = Decision(at=self._utcnow().isoformat(), by=by, did="purged", reason=reason)
        partition = self._scope.partition_of(partition_key)

        async def step() -> ParkedEvent:
            event = await self._record(event_id, partition)
            if event is None:
                raise KeyNotParked(
                    f"There is no record of event {event_id!r} of partition key {partition_key!r}."
                )
            if event.status is EventStatus.HELD:
                raise UsageError(f"Event {event_id!r} of {partition_key!r} is held: drop it, then purge it.")
            if event.status is EventStatus.PURGED:
                return event
            purged = event.without_contents(decision)
            await self._store.commit(partition, [purged.write()])
            return purged

        return await retry_on_conflict(step, self._retry)

    async def _record(self, event_id: str, partition: str) -> ParkedEvent | None:
        with suppress(NotFound):
            return event_of(await self._store.read(parked_id(event_id), partition))
        return None

    async def _key(self, partition_key: str) -> ParkedKey:
        return await read_parked_key(self._store, self._scope.partition_of(partition_key), partition_key)

    async def _events(self, partition: str) -> _Events:
        found: list[ParkedEvent | Unreadable] = []
        after = ""
        while documents := await retry_reads(partial(self._store.page, partition, after=after), self._retry):
            after = str(documents[-1]["id"])
            found += readable_events(documents)
        events = [event for event in found if isinstance(event, ParkedEvent)]
        events.sort(key=lambda event: (event.parked_at, event.position))
        return (
            tuple(event for event in events if event.status is EventStatus.HELD),
            tuple(event for event in events if event.status is not EventStatus.HELD),
            tuple(event for event in found if isinstance(event, Unreadable)),
        )


def _is_kept(payload: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()) == payload)
    except (TypeError, ValueError):
        return False
