"""
Claim: one operator's hold on a parked key while its queue is emptied, from its beginning to the hand-back.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from cosmos_outbox.errors import (
    KeyNotParked,
    MessageRejected,
    OutboxError,
    ParkingError,
    PreconditionFailed,
    ReleaseInProgress,
    StoreError,
)
from cosmos_outbox.ports import ParkedStore, Write, WriteKind
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
from cosmos_outbox.relay.queue import closings
from cosmos_outbox.retries import Deadline, RetryOptions


@asynccontextmanager
async def claimed(
    store: ParkedStore,
    partition_key: str,
    *,
    edited: Mapping[str, Any] | None,
    take_over: bool,
    retry: RetryOptions,
    utcnow: Callable[[], datetime],
) -> AsyncIterator[Claim]:
    """
    Claim a parked key; an error of ours gives the claim up, a crash leaves it for others to take over.

    Args:
        edited: the payload to send in place of that of the first held event.

    Raises:
        KeyNotParked: it is not parked, or holds nothing to edit.
        ReleaseInProgress: somebody else has it.
    """
    claim = Claim(store, partition_key, retry=retry, utcnow=utcnow)
    await claim.take(edited, take_over=take_over)
    try:
        yield claim
    except OutboxError:
        await claim.give_up()
        raise


class Claim:
    """
    A name in the key's document. Every step first looks whether it still stands there, and writes under that etag.
    """

    def __init__(
        self, store: ParkedStore, partition_key: str, *, retry: RetryOptions, utcnow: Callable[[], datetime]
    ) -> None:
        self._store, self._partition_key = store, partition_key
        self._retry, self._utcnow = retry, utcnow
        self._index = ParkedIndex(store, retry)
        self._id = uuid.uuid4().hex

    async def due(self) -> Sequence[ParkedEvent]:
        """
        Return the whole queue in order, dropped events too.
        """

        async def step(deadline: Deadline) -> Sequence[ParkedEvent]:
            return await self._queue(await self._key(deadline), deadline)

        return await until_applied(step, self._retry)

    async def take_off(self, passed: Sequence[ParkedEvent], state: KeyState) -> None:
        """
        Take events off the beginning of the queue; `state` tells those who append whether to wait.
        """

        async def step(deadline: Deadline) -> None:
            key = await self._key(deadline)
            if not passed or key.first > passed[-1].position:  # the answer to the first attempt was lost
                return
            changed = replace(
                key,
                state=state,
                first=passed[-1].position + 1,
                held=key.held - sum(event.status is EventStatus.HELD for event in passed),
                failure=None,
            )
            await self._commit(deadline, [changed.write(), *closings(passed, now=self._utcnow())])

        await until_applied(step, self._retry)

    async def stop_at(self, event: ParkedEvent, rejection: MessageRejected) -> Failure:
        """
        End the release where the next event is rejected; the key waits for another decision.
        """
        attempts = 1 + (event.failure.attempts if event.failure is not None else 0)
        failure = failure_of(event.event_id, rejection, attempts=attempts)

        async def step(deadline: Deadline) -> None:
            key = await parked_key(self._store, self._partition_key, deadline)
            if key.failure == failure and key.claim is None:  # the answer to the first attempt was lost
                return
            self._check(key)
            changed = replace(key, state=KeyState.PARKED, claim=None, failure=failure)
            await self._commit(deadline, [changed.write(), replace(event, failure=failure).write()])

        await until_applied(step, self._retry)
        return failure

    async def hand_back(self) -> bool:
        """
        Delete the key, provided that its queue is empty; return False where events were appended meanwhile.
        """
        deleting: ParkedKey | None = None

        async def step(deadline: Deadline) -> bool:
            nonlocal deleting
            try:
                key = await parked_key(self._store, self._partition_key, deadline)
            except KeyNotParked:
                if deleting is None:
                    raise
                return True  # the answer to the deletion was lost
            if deleting is not None and key.epoch != deleting.epoch:
                return True  # it was lost, and the key has been parked anew since
            self._check(key)
            if key.first != key.next:
                return False
            deleting = key
            await self._commit(deadline, [key.write(WriteKind.DELETE)])
            return True

        if not await until_applied(step, self._retry):
            return False
        if deleting is not None:
            with suppress(StoreError):  # an entry that is left over costs each new owner one read
                await self._index.remove(deleting.epoch)
        return True

    async def take(self, edited: Mapping[str, Any] | None, *, take_over: bool) -> None:
        """
        Enter the name, and what is to be sent in place of the first payload.
        """

        async def step(deadline: Deadline) -> None:
            key = await parked_key(self._store, self._partition_key, deadline)
            require_unclaimed(key, self._id, take_over=take_over)
            writes = [replace(key, state=KeyState.RELEASING, claim=self._id).write()]
            if edited is not None:
                # Before anything is sent: whoever goes on with this release must send the same payload.
                queue = await self._queue(key, deadline)
                first = next((event for event in queue if event.status is EventStatus.HELD), None)
                if first is None:
                    raise KeyNotParked(f"Partition key {self._partition_key!r} holds no event to edit.")
                writes.append(first.edited(edited).write())
            await self._commit(deadline, writes)

        await until_applied(step, self._retry)

    async def give_up(self) -> None:
        """
        Take the name out again, if that can be done.
        """

        async def step(deadline: Deadline) -> None:
            key = await self._key(deadline)
            await self._commit(deadline, [replace(key, state=KeyState.PARKED, claim=None).write()])

        # The error that ended the release matters more; the next one has to take over
        with suppress(OutboxError):
            await until_applied(step, self._retry)

    async def _queue(self, key: ParkedKey, deadline: Deadline) -> Sequence[ParkedEvent]:
        attempt = 0
        while True:
            damaged: dict[str, ParkingError] = {}
            events = await deadline.attempt(
                events_in, self._store, self._partition_key, unreadable=damaged.__setitem__
            )
            queue = [event for event in events if event.epoch == key.epoch and event.position >= key.first]
            queue = sorted(queue, key=lambda event: event.position)[: key.next - key.first]
            if [event.position for event in queue] == list(range(key.first, key.next)):
                return queue
            # The list may be behind the key that was read before it: an event that it lacks would be overtaken.
            if not damaged:
                raise PreconditionFailed("The list of held events is behind; read it again.")
            # What cannot be read may also be the record of an event that was dropped long ago, in nobody's way.
            attempt += 1
            if not await deadline.pause(attempt):
                raise next(iter(damaged.values()))

    async def _key(self, deadline: Deadline) -> ParkedKey:
        key = await parked_key(self._store, self._partition_key, deadline)
        self._check(key)
        return key

    def _check(self, key: ParkedKey) -> None:
        if key.claim != self._id:
            raise ReleaseInProgress(f"Somebody took over the release of partition key {key.partition_key!r}.")

    async def _commit(self, deadline: Deadline, writes: Sequence[Write]) -> None:
        await deadline.attempt(lambda: self._store.commit(self._partition_key, writes))


async def parked_key(store: ParkedStore, partition_key: str, deadline: Deadline) -> ParkedKey:
    """
    Return a parked key as it is.

    Raises:
        KeyNotParked: it is certain that it is not parked.
        PreconditionFailed: the copy that was read is behind; read again.
    """
    key = await deadline.attempt(lambda: key_in(store, partition_key))
    if key is None:
        raise KeyNotParked(f"Partition key {partition_key!r} is not parked.")
    return key


def require_unclaimed(key: ParkedKey, claim: str | None = None, *, take_over: bool) -> None:
    """
    Refuse to touch what somebody else releases, unless they are gone.

    Raises:
        ReleaseInProgress: somebody releases the key.
    """
    if key.claim not in (None, claim) and not take_over:
        raise ReleaseInProgress(
            f"Somebody releases partition key {key.partition_key!r}; wait for them, or take over if they are gone."
        )
