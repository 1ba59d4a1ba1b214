"""
Release: the operator's side of the parked store; look at parked keys, send what is held, drop an event for good.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cosmos_outbox.documents import StoredEvent
from cosmos_outbox.errors import (
    KeyNotParked,
    MessageRejected,
    NotFound,
    ParkingError,
    ReleaseInProgress,
    UsageError,
)
from cosmos_outbox.messages import OutboundMessage, message_of
from cosmos_outbox.parking.claim import claimed, first_held, parked_key, until_free
from cosmos_outbox.parking.documents import (
    BY_HAND,
    EventStatus,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    Scope,
    event_of,
    find_key,
    held_id,
    key_of,
)
from cosmos_outbox.parking.hold import new_key, utcnow
from cosmos_outbox.parking.queue import send_in_order
from cosmos_outbox.ports import Document, ParkedStore, Publisher, Store, WriteKind
from cosmos_outbox.retries import Backoff, Deadline, RetryOptions, retry_on_conflict, retry_reads

Unreadable = Callable[[str, ParkingError], None]  # is told what cannot be read, and why
_ROUNDS_BEFORE_CLOSING = 2  # then the relays are asked to wait, or a busy key would be chased for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """
    A parked key, its queue in order, and the records of events that were dropped or sent edited, oldest first.
    """

    key: ParkedKey
    held: tuple[ParkedEvent, ...]
    records: tuple[ParkedEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """
    What a release did: how many events it sent and, where the key is still parked, what failed.
    """

    sent: int
    failure: Failure | None = None

    @property
    def handed_back(self) -> bool:
        """
        Say whether the relays send the key's events again.
        """
        return self.failure is None


class ParkedKeys:
    """
    The parked keys of one processor of one container; any number of operators may use it at once.

    Args:
        store: the parked store.
        publisher: the topic; only `release` needs it.
        scope: which processor, and which container of events. Defaults to the one of batches that name none, as in tests.
        events: the container of the events; only the release of an event needs it whose copy did not fit.
        message_of: the message of an event; must be the one that the relays use.
        retry: for how long one operation on the store is tried. Defaults to 10 s.
        backoff: between attempts to send. Defaults to 100 ms … 30 s, full jitter.
        utcnow: the clock of the records.
    """

    def __init__(
        self,
        store: ParkedStore,
        publisher: Publisher | None = None,
        *,
        scope: Scope = Scope(),  # noqa: B008 - a frozen value
        events: Store | None = None,
        message_of: Callable[[StoredEvent], OutboundMessage] = message_of,
        retry: RetryOptions | None = None,
        backoff: Backoff | None = None,
        utcnow: Callable[[], datetime] = utcnow,
    ) -> None:
        self._store, self._publisher, self._scope, self._events = store, publisher, scope, events
        self._message_of = message_of
        self._retry, self._backoff, self._utcnow = retry or RetryOptions(), backoff or Backoff(), utcnow

    async def list(self, *, unreadable: Unreadable | None = None) -> tuple[ParkedKey, ...]:
        """
        Return all parked keys, those parked first in front; one that was parked a moment ago may be missing.

        Args:
            unreadable: told of each key whose document cannot be read, which is then left out. Defaults to None: raise.

        Raises:
            ParkingError: a document cannot be read.
        """
        documents = await retry_reads(
            lambda: self._store.keys(processor=self._scope.processor, container=self._scope.container),
            self._retry,
        )
        found = []
        for document in documents:
            try:
                found.append(key_of(document))
            except ParkingError as error:
                if unreadable is None:
                    raise
                unreadable(str(document.get("key", document["partitionKey"])), error)
        return tuple(sorted(found, key=lambda key: key.parked_at))

    async def show(self, partition_key: str, *, unreadable: Unreadable | None = None) -> Parked:
        """
        Return a parked key with its events.

        Args:
            partition_key: the key.
            unreadable: told of each event whose document cannot be read, which is then left out. Defaults to None: raise.

        Raises:
            KeyNotParked: it is not parked; `records` has what is kept of the times when it was.
            ParkingError: a document cannot be read.
        """
        key = await self.find(partition_key)
        events = [event async for event in self._all_events(key.partition, unreadable)]
        held = [event for event in events if event.status is EventStatus.HELD]
        return Parked(
            key=key,
            held=tuple(sorted(held, key=lambda event: (event.parked_at, event.position))),
            records=_records(events),
        )

    async def find(self, partition_key: str) -> ParkedKey:
        """
        Return a parked key.

        Raises:
            KeyNotParked: it is not parked.
            ParkingError: its document cannot be read.
        """

        async def step(deadline: Deadline) -> ParkedKey:
            return await parked_key(self._store, self._scope, partition_key, deadline)

        return await retry_on_conflict(step, self._retry)

    async def first_held(self, partition_key: str) -> ParkedEvent | None:
        """
        Return the event that a release would send first, or None where the key holds none.

        Raises:
            KeyNotParked: it is not parked.
            ParkingError: a document cannot be read.
        """

        async def step(deadline: Deadline) -> ParkedEvent | None:
            key = await parked_key(self._store, self._scope, partition_key, deadline)
            return await first_held(self._store, key, deadline)

        return await retry_on_conflict(step, self._retry)

    async def records(
        self, partition_key: str, *, unreadable: Unreadable | None = None
    ) -> tuple[ParkedEvent, ...]:
        """
        Return the records of a key's events that were dropped or sent edited, oldest first; also when it was handed back.

        Args:
            partition_key: the key.
            unreadable: told of each event whose document cannot be read, which is then left out. Defaults to None: raise.

        Raises:
            ParkingError: a document cannot be read.
        """
        return _records(
            [
                event
                for partition in self._partitions(partition_key)
                async for event in self._all_events(partition, unreadable)
            ]
        )

    async def known(self, partition_key: str, event_ids: Collection[str]) -> dict[str, ParkedEvent]:
        """
        Return those of some events that are held, or of which there is a record, by their ids.

        Raises:
            ParkingError: a document cannot be read.
        """
        found: dict[str, ParkedEvent] = {}
        for partition in self._partitions(partition_key):
            names = await retry_reads(
                lambda partition=partition: self._store.present(  # type: ignore[misc]
                    partition, [held_id(event_id) for event_id in event_ids]
                ),
                self._retry,
            )
            for name in names:
                event = await self._event(partition, name)
                if event is not None:
                    found[event.event_id] = event
        return found

    async def park(self, partition_key: str, *, reason: str) -> ParkedKey:
        """
        Set a key aside by hand: the relays hold its events as soon as they look, within 15 seconds.

        Returns:
            The key as it is parked now; one that was parked already stays as it is.
        """
        failure = Failure(event_id="", reason=BY_HAND, error=reason, attempts=0)

        async def step(deadline: Deadline) -> ParkedKey:
            found = await deadline.attempt(find_key, self._store, self._scope, partition_key)
            if found is not None:
                return found
            key = new_key(partition_key, self._scope, failure, now=self._utcnow())
            await deadline.attempt(lambda: self._store.commit(key.partition, [key.write(WriteKind.CREATE)]))
            return key

        return await retry_on_conflict(step, self._retry)

    async def release(self, partition_key: str, *, edited: Mapping[str, Any] | None = None) -> Released:
        """
        Send the held events of a key in order, and what comes meanwhile, and hand the key back to the relays.

        Where another release of the key was killed, this one goes on in its place after half a minute.

        Args:
            partition_key: the key.
            edited: the payload (`data`) to send in place of that of the first held event. It keeps its id; what was
                committed stays in the parked store beside it.

        Returns:
            What was sent. A key whose next event is rejected too stays parked, with the new failure.

        Raises:
            KeyNotParked: it is not parked.
            ParkingError: the document of the key or of a held event cannot be read.
            ReleaseInProgress: another release is under way, or took this one over.
            PublishError: the topic did not answer; what was not sent is still held.
        """
        if self._publisher is None:
            raise UsageError("A release needs the topic; give ParkedKeys a publisher.")
        sent = 0
        async with claimed(
            self._store, self._scope, partition_key, edited=edited, retry=self._retry, utcnow=self._utcnow
        ) as claim:
            rounds, behind = 0, (await self.find(partition_key)).next
            while True:
                due = await claim.due()
                if not due:
                    if await claim.hand_back():
                        return Released(sent=sent)
                    continue
                if due[0].position >= behind:  # all that was there at the beginning of the round is sent
                    rounds, behind = rounds + 1, (await self.find(partition_key)).next
                state = KeyState.CLOSING if rounds > _ROUNDS_BEFORE_CLOSING else KeyState.RELEASING
                passed, rejection = await self._send(self._publisher, due)
                await claim.take_off(due[:passed], state)
                sent += sum(event.status is EventStatus.HELD for event in due[:passed])
                if rejection is not None:
                    return Released(sent=sent, failure=await claim.stop_at(due[passed], rejection))

    async def drop(self, partition_key: str, event_id: str, *, reason: str) -> ParkedEvent:
        """
        Give one held event up for good; return the record of it, which stays in the parked store.

        The key stays parked until it is released. Two things cannot be taken back. A worker that read the event before it
        was parked may still send it, if the broker takes it by now. And where events are routed to several topics, one
        behind the event that parked the key may be in another topic already.

        Raises:
            KeyNotParked: the key is not parked, or does not hold the event.
            ReleaseInProgress: a release of the key is under way.
            ParkingError: the document of the key or of the event cannot be read.
        """
        void = await until_free(self._store, self._scope, partition_key, retry=self._retry)

        async def step(deadline: Deadline) -> ParkedEvent:
            key = await parked_key(self._store, self._scope, partition_key, deadline)
            if key.claim not in (None, void):
                raise ReleaseInProgress(f"A release of partition key {partition_key!r} has just begun.")
            event: ParkedEvent | None = None
            with suppress(NotFound):
                event = event_of(await deadline.attempt(self._store.read, held_id(event_id), key.partition))
            # The answer to the first attempt was lost
            if event is not None and event.status is EventStatus.DROPPED:
                return event
            if event is None or event.status is not EventStatus.HELD:
                raise KeyNotParked(f"Event {event_id!r} of partition key {partition_key!r} is not held.")
            now = self._utcnow().isoformat()
            dropped = replace(event, status=EventStatus.DROPPED, note=reason, closed_at=now)
            failed = key.failure is not None and key.failure.event_id == event_id
            changed = replace(
                key,
                state=KeyState.PARKED,
                claim=None,
                held=key.held - 1,
                failure=None if failed else key.failure,
            )
            await deadline.attempt(
                lambda: self._store.commit(key.partition, [changed.write(), dropped.write()])
            )
            return dropped

        return await retry_on_conflict(step, self._retry)

    async def _send(
        self, publisher: Publisher, due: Sequence[ParkedEvent]
    ) -> tuple[int, MessageRejected | None]:
        """
        Send events until one is rejected, or cannot be found; return how many places are done, and why no more.
        """
        whole: list[ParkedEvent] = []
        missing: MessageRejected | None = None
        for event in due:
            found = await self._with_payload(event)
            if found is None:
                missing = MessageRejected(
                    f"Event {event.event_id!r} was too large to be copied, and its container no longer has it: it was "
                    "deleted, or its time to live is over. Drop it, or release it with a payload of your own."
                )
                break
            whole.append(found)
        passed, rejection = await send_in_order(
            publisher, whole, message_of=self._message_of, backoff=self._backoff
        )
        return passed, rejection or missing

    async def _with_payload(self, event: ParkedEvent) -> ParkedEvent | None:
        if not event.referenced or event.status is not EventStatus.HELD:
            return event
        if self._events is None:
            raise UsageError(
                f"Event {event.event_id!r} was too large to be copied; give ParkedKeys the container of the events."
            )
        events, partition_key = self._events, str(event.event["partitionKey"])
        try:
            document: Document = await retry_reads(
                lambda: events.read(event.event_id, partition_key), self._retry
            )
        except NotFound:
            return None
        return replace(event, event={**document, "_lsn": event.event.get("_lsn", 0)})

    async def _all_events(self, partition: str, unreadable: Unreadable | None) -> AsyncIterator[ParkedEvent]:
        after = ""
        while documents := await retry_reads(
            lambda after=after: self._store.page(partition, after=after),  # type: ignore[misc]
            self._retry,
        ):
            for document in documents:
                after = str(document["id"])
                if document.get("type") != "parkedEvent":
                    continue
                try:
                    yield event_of(document)
                except ParkingError as error:
                    if unreadable is None:
                        raise
                    unreadable(after, error)

    async def _event(self, partition: str, document_id: str) -> ParkedEvent | None:
        try:
            return event_of(await retry_reads(lambda: self._store.read(document_id, partition), self._retry))
        except NotFound:
            return None

    def _partitions(self, partition_key: str) -> tuple[str, str]:
        return self._scope.partition_of(partition_key), partition_key  # the second: parked before 0.1.0


def _records(events: Sequence[ParkedEvent]) -> tuple[ParkedEvent, ...]:
    closed = [event for event in events if event.status is not EventStatus.HELD]
    return tuple(sorted(closed, key=lambda event: (event.parked_at, event.position)))
