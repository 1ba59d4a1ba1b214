"""
Release: the operator's side of the parked store; look at parked keys, send what is held, drop an event for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cosmos_outbox.backoff import Backoff
from cosmos_outbox.documents import StoredEvent
from cosmos_outbox.errors import KeyNotParked, MessageRejected, ParkingError, StoreError, UsageError
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import ParkedStore, Publisher
from cosmos_outbox.relay.claim import claimed, parked_key, require_unclaimed
from cosmos_outbox.relay.message import message_of
from cosmos_outbox.relay.parked import (
    EventStatus,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    Unreadable,
    events_in,
    held_id,
    key_in,
)
from cosmos_outbox.relay.parked_index import ParkedIndex, until_applied
from cosmos_outbox.relay.parking import utcnow
from cosmos_outbox.relay.queue import send_in_order
from cosmos_outbox.retries import Deadline, RetryOptions

_ROUNDS_BEFORE_CLOSING = 2  # then the relays are asked to wait, or a busy key would be chased for ever
_CHUNK = 50  # events sent before they are taken off the queue


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
    The parked keys of a container of events; any number of operators may use it at once.

    Args:
        store: the parked store.
        publisher: the topic; only `release` needs it.
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
        message_of: Callable[[StoredEvent], OutboundMessage] = message_of,
        retry: RetryOptions | None = None,
        backoff: Backoff | None = None,
        utcnow: Callable[[], datetime] = utcnow,
    ) -> None:
        self._store, self._publisher, self._message_of = store, publisher, message_of
        self._retry, self._backoff, self._utcnow = retry or RetryOptions(), backoff or Backoff(), utcnow
        self._index = ParkedIndex(store, self._retry)

    async def list(self, *, unreadable: Unreadable | None = None) -> tuple[ParkedKey, ...]:
        """
        Return all parked keys, those parked first in front.

        What crashed parkings left in the index, and would count towards the limit, is removed on the way.

        Args:
            unreadable: told of each key whose document cannot be read, which is then left out. Defaults to None: raise.

        Raises:
            ParkingError: a document cannot be read.
        """
        found: dict[str, ParkedKey | None] = {}
        for name in await self._index.look():
            try:
                found[name] = await self._key(name)
            except ParkingError as error:
                if unreadable is None:
                    raise
                unreadable(name, error)
        if absent := [name for name, key in found.items() if key is None]:
            with suppress(StoreError):  # the next look tries again
                await self._index.remove_abandoned(absent, now=self._utcnow())
        return tuple(sorted(filter(None, found.values()), key=lambda key: key.parked_at))

    async def names(self) -> frozenset[str]:
        """
        Return the partition keys that are parked, and perhaps some that are not; one read, whatever their number.
        """
        return await self._index.look()

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

        async def step(deadline: Deadline) -> Parked:
            key = await parked_key(self._store, partition_key, deadline)
            events = await deadline.attempt(
                lambda: events_in(self._store, partition_key, unreadable=unreadable)
            )
            held = [event for event in events if event.status is EventStatus.HELD]
            return Parked(key=key, held=tuple(held), records=_records(events))

        return await until_applied(step, self._retry)

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

        async def step(deadline: Deadline) -> tuple[ParkedEvent, ...]:
            return _records(
                await deadline.attempt(lambda: events_in(self._store, partition_key, unreadable=unreadable))
            )

        return await until_applied(step, self._retry)

    async def release(
        self, partition_key: str, *, edited: Mapping[str, Any] | None = None, take_over: bool = False
    ) -> Released:
        """
        Send the held events of a key in order, and what comes meanwhile, and hand the key back to the relays.

        Args:
            partition_key: the key.
            edited: the payload (`data`) to send in place of that of the first held event. It keeps its id; what was
                committed stays in the parked store beside it.
            take_over: release although somebody else does, because they are gone. If they are not, events may be
                sent twice, in order.

        Returns:
            What was sent. A key whose next event is rejected too stays parked, with the new failure.

        Raises:
            KeyNotParked: it is not parked.
            ParkingError: the document of the key or of a held event cannot be read.
            ReleaseInProgress: somebody else releases it, or took this release over.
            PublishError: the topic did not answer; what was not sent is still held.
        """
        if self._publisher is None:
            raise UsageError("A release needs the topic; give ParkedKeys a publisher.")
        sent = rounds = 0
        async with claimed(
            self._store,
            partition_key,
            edited=edited,
            take_over=take_over,
            retry=self._retry,
            utcnow=self._utcnow,
        ) as claim:
            while True:
                queue = await claim.due()
                if not queue and await claim.hand_back():
                    return Released(sent=sent)
                rounds += 1
                state = KeyState.CLOSING if rounds > _ROUNDS_BEFORE_CLOSING else KeyState.RELEASING
                for start in range(0, len(queue), _CHUNK):
                    due = queue[start : start + _CHUNK]
                    passed, rejection = await self._send(self._publisher, due)
                    await claim.take_off(due[:passed], state)
                    sent += sum(event.status is EventStatus.HELD for event in due[:passed])
                    if rejection is not None:
                        return Released(sent=sent, failure=await claim.stop_at(due[passed], rejection))

    async def drop(
        self, partition_key: str, event_id: str, *, reason: str, take_over: bool = False
    ) -> ParkedEvent:
        """
        Give one held event up for good; return the record of it, which stays in the parked store.

        The key stays parked until it is released. Two things cannot be taken back. A worker that read the event before it
        was parked, and lost its lease since without noticing, may still send it, if the broker takes it by now. And where
        events are routed to several topics, one behind the event that parked the key may be in another topic already.

        Raises:
            KeyNotParked: the key is not parked, or does not hold the event.
            ReleaseInProgress: somebody releases the key.
            ParkingError: the document of the key or of the event cannot be read.
        """

        async def step(deadline: Deadline) -> ParkedEvent:
            key = await parked_key(self._store, partition_key, deadline)
            require_unclaimed(key, take_over=take_over)
            damaged: dict[str, ParkingError] = {}
            events = await deadline.attempt(
                lambda: events_in(self._store, partition_key, unreadable=damaged.__setitem__)
            )
            if held_id(event_id) in damaged:
                raise damaged[held_id(event_id)]
            event = next((event for event in events if event.event_id == event_id), None)
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
                lambda: self._store.commit(partition_key, [changed.write(), dropped.write()])
            )
            return dropped

        return await until_applied(step, self._retry)

    async def _send(
        self, publisher: Publisher, due: Sequence[ParkedEvent]
    ) -> tuple[int, MessageRejected | None]:
        return await send_in_order(publisher, due, message_of=self._message_of, backoff=self._backoff)

    async def _key(self, partition_key: str) -> ParkedKey | None:
        async def step(deadline: Deadline) -> ParkedKey | None:
            return await deadline.attempt(lambda: key_in(self._store, partition_key))

        return await until_applied(step, self._retry)


def _records(events: Sequence[ParkedEvent]) -> tuple[ParkedEvent, ...]:
    return tuple([event for event in events if event.status is not EventStatus.HELD])
