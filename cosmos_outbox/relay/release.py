"""
Release: the operator's side of the parked store; look at parked keys, send what is held, drop an event for good.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cosmos_outbox.backoff import Backoff
from cosmos_outbox.documents import StoredEvent
from cosmos_outbox.errors import (
    KeyNotParked,
    MessageRejected,
    NotFound,
    OutboxError,
    PreconditionFailed,
    ReleaseInProgress,
    StoreError,
    UsageError,
)
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import ParkedStore, Publisher, Write, WriteKind
from cosmos_outbox.relay.message import message_of
from cosmos_outbox.relay.parked import (
    EventStatus,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    events_in,
    failure_of,
    key_in,
)
from cosmos_outbox.relay.parked_index import ParkedIndex, until_applied
from cosmos_outbox.relay.parking import utcnow
from cosmos_outbox.relay.queue import closings, send_in_order
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

    async def list(self) -> tuple[ParkedKey, ...]:
        """
        Return all parked keys, those parked first in front.
        """
        found = [await self._key(partition_key) for partition_key in await self._index.keys()]
        return tuple(sorted((key for key in found if key is not None), key=lambda key: key.parked_at))

    async def show(self, partition_key: str) -> Parked:
        """
        Return a parked key with its events.

        Raises:
            KeyNotParked: it is not parked.
        """

        async def step(deadline: Deadline) -> Parked:
            key = await self._parked(partition_key)
            events = await deadline.attempt(lambda: events_in(self._store, partition_key))
            held = [event for event in events if event.status is EventStatus.HELD]
            records = [event for event in events if event.status is not EventStatus.HELD]
            return Parked(key=key, held=tuple(held), records=tuple(records))

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
            ReleaseInProgress: somebody else releases it, or took this release over.
            PublishError: the topic did not answer; what was not sent is still held.
        """
        if self._publisher is None:
            raise UsageError("A release needs the topic; give ParkedKeys a publisher.")
        claim = uuid.uuid4().hex
        await self._claim(partition_key, claim, edited, take_over=take_over)
        sent = rounds = 0
        try:
            while True:
                queue = await self._due(partition_key, claim)
                if not queue and await self._hand_back(partition_key, claim):
                    return Released(sent=sent)
                rounds += 1
                state = KeyState.CLOSING if rounds > _ROUNDS_BEFORE_CLOSING else KeyState.RELEASING
                for start in range(0, len(queue), _CHUNK):
                    due = queue[start : start + _CHUNK]
                    passed, rejection = await self._send(self._publisher, due)
                    await self._take_off(partition_key, claim, due[:passed], state)
                    sent += sum(event.status is EventStatus.HELD for event in due[:passed])
                    if rejection is not None:
                        failure = await self._stop_at(partition_key, claim, due[passed], rejection)
                        return Released(sent=sent, failure=failure)
        except OutboxError:
            await self._give_up_claim(partition_key, claim)
            raise

    async def drop(
        self, partition_key: str, event_id: str, *, reason: str, take_over: bool = False
    ) -> ParkedEvent:
        """
        Give one held event up for good; return the record of it, which stays in the parked store.

        The key stays parked until it is released. A worker that read the event before it was parked, and lost its
        lease since without noticing, may still send it, if the broker takes it by now.

        Raises:
            KeyNotParked: the key is not parked, or does not hold the event.
            ReleaseInProgress: somebody releases the key.
        """

        async def step(deadline: Deadline) -> ParkedEvent:
            key = await self._parked(partition_key)
            self._check_claim(key, None, take_over=take_over)
            events = await deadline.attempt(lambda: events_in(self._store, partition_key))
            event = next((event for event in events if event.event_id == event_id), None)
            if (
                event is not None and event.status is EventStatus.DROPPED
            ):  # the answer to the first attempt was lost
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
            await self._commit(deadline, partition_key, [changed.write(), dropped.write()])
            return dropped

        return await until_applied(step, self._retry)

    async def _claim(
        self, partition_key: str, claim: str, edited: Mapping[str, Any] | None, *, take_over: bool
    ) -> None:
        async def step(deadline: Deadline) -> None:
            key = await self._parked(partition_key)
            self._check_claim(key, claim, take_over=take_over)
            writes = [replace(key, state=KeyState.RELEASING, claim=claim).write()]
            if edited is not None:
                # Before anything is sent: whoever goes on with this release must send the same payload.
                queue = await self._queue(key, deadline)
                first = next((event for event in queue if event.status is EventStatus.HELD), None)
                if first is None:
                    raise KeyNotParked(f"Partition key {partition_key!r} holds no event to edit.")
                writes.append(first.edited(edited).write())
            await self._commit(deadline, partition_key, writes)

        await until_applied(step, self._retry)

    async def _due(self, partition_key: str, claim: str) -> Sequence[ParkedEvent]:
        async def step(deadline: Deadline) -> Sequence[ParkedEvent]:
            return await self._queue(await self._claimed(partition_key, claim), deadline)

        return await until_applied(step, self._retry)

    async def _queue(self, key: ParkedKey, deadline: Deadline) -> Sequence[ParkedEvent]:
        """
        Return the whole queue in order, dropped events too.
        """
        events = await deadline.attempt(lambda: events_in(self._store, key.partition_key))
        queue = [event for event in events if event.epoch == key.epoch and event.position >= key.first]
        queue.sort(key=lambda event: event.position)
        if [event.position for event in queue[: key.next - key.first]] != list(range(key.first, key.next)):
            # The list may be behind the key that was read before it: an event that it lacks would be overtaken.
            raise PreconditionFailed("The list of held events is behind; read it again.")
        return queue[: key.next - key.first]

    async def _send(
        self, publisher: Publisher, due: Sequence[ParkedEvent]
    ) -> tuple[int, MessageRejected | None]:
        return await send_in_order(publisher, due, message_of=self._message_of, backoff=self._backoff)

    async def _take_off(
        self, partition_key: str, claim: str, passed: Sequence[ParkedEvent], state: KeyState
    ) -> None:
        async def step(deadline: Deadline) -> None:
            key = await self._claimed(partition_key, claim)
            if not passed or key.first > passed[-1].position:  # the answer to the first attempt was lost
                return
            changed = replace(
                key,
                state=state,
                first=passed[-1].position + 1,
                held=key.held - sum(event.status is EventStatus.HELD for event in passed),
                failure=None,
            )
            await self._commit(
                deadline, partition_key, [changed.write(), *closings(passed, now=self._utcnow())]
            )

        await until_applied(step, self._retry)

    async def _stop_at(
        self, partition_key: str, claim: str, event: ParkedEvent, rejection: MessageRejected
    ) -> Failure:
        """
        End the release where the next event is rejected; the key waits for another decision.
        """
        attempts = 1 + (event.failure.attempts if event.failure is not None else 0)
        failure = failure_of(event.event_id, rejection, attempts=attempts)

        async def step(deadline: Deadline) -> None:
            key = await self._parked(partition_key)
            if key.failure == failure and key.claim is None:  # the answer to the first attempt was lost
                return
            self._check_claimed(key, claim)
            changed = replace(key, state=KeyState.PARKED, claim=None, failure=failure)
            failed = replace(event, failure=failure)
            await self._commit(deadline, partition_key, [changed.write(), failed.write()])

        await until_applied(step, self._retry)
        return failure

    async def _hand_back(self, partition_key: str, claim: str) -> bool:
        """
        Delete the key, provided that its queue is empty; return False where events were appended meanwhile.
        """
        deleting: ParkedKey | None = None

        async def step(deadline: Deadline) -> bool:
            nonlocal deleting
            try:
                key = await self._claimed(partition_key, claim)
            except KeyNotParked:
                if deleting is None:
                    raise
                return True  # the answer to the deletion was lost
            if key.first != key.next:
                return False
            deleting = key
            await self._commit(deadline, partition_key, [key.write(WriteKind.DELETE)])
            return True

        if not await until_applied(step, self._retry):
            return False
        if deleting is not None:
            with suppress(StoreError):  # an entry that is left over costs each new owner one read
                await self._index.remove(deleting.epoch)
        return True

    async def _give_up_claim(self, partition_key: str, claim: str) -> None:
        async def step(deadline: Deadline) -> None:
            key = await self._claimed(partition_key, claim)
            changed = replace(key, state=KeyState.PARKED, claim=None)
            await self._commit(deadline, partition_key, [changed.write()])

        with suppress(
            OutboxError
        ):  # the error that ended the release matters more; the next one has to take over
            await until_applied(step, self._retry)

    async def _claimed(self, partition_key: str, claim: str) -> ParkedKey:
        key = await self._parked(partition_key)
        self._check_claimed(key, claim)
        return key

    def _check_claimed(self, key: ParkedKey, claim: str) -> None:
        if key.claim != claim:
            raise ReleaseInProgress(f"Somebody took over the release of partition key {key.partition_key!r}.")

    async def _parked(self, partition_key: str) -> ParkedKey:
        key = await self._key(partition_key)
        if key is None:
            await self._index.remove_abandoned(partition_key, now=self._utcnow())
            raise KeyNotParked(f"Partition key {partition_key!r} is not parked.")
        return key

    async def _key(self, partition_key: str) -> ParkedKey | None:
        async def step(deadline: Deadline) -> ParkedKey | None:
            return await deadline.attempt(lambda: key_in(self._store, partition_key))

        return await until_applied(step, self._retry)

    async def _commit(self, deadline: Deadline, partition_key: str, writes: Sequence[Write]) -> None:
        try:
            await deadline.attempt(lambda: self._store.commit(partition_key, writes))
        except NotFound as gone:  # the key was handed back, or the event taken off, since they were read
            raise PreconditionFailed(document_id=gone.document_id) from gone

    def _check_claim(self, key: ParkedKey, claim: str | None, *, take_over: bool) -> None:
        if key.claim not in (None, claim) and not take_over:
            raise ReleaseInProgress(
                f"Somebody releases partition key {key.partition_key!r}; wait for them, or take over if they are gone."
            )
