"""
Claim: one operator's hold on a parked key while its queue is emptied, from its beginning to the hand-back.
"""

from __future__ import annotations

import asyncio
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
)
from cosmos_outbox.parking.documents import (
    EventStatus,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    Scope,
    event_of,
    failure_of,
    find_key,
)
from cosmos_outbox.parking.queue import closings
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, ParkedStore, Write, WriteKind
from cosmos_outbox.retries import Deadline, RetryOptions, retry_on_conflict

# A claim is void whose release takes nothing off the queue for so long; a live one is far quicker.
VOID_AFTER_SECONDS = 30.0
_WATCH_SECONDS = 1.0
_CHUNK = MAX_BATCH_OPERATIONS - 1  # events that one batch takes off the queue, beside the key's document
_GIVE_UP_SECONDS = 5.0


@asynccontextmanager
async def claimed(
    store: ParkedStore,
    scope: Scope,
    partition_key: str,
    *,
    edited: Mapping[str, Any] | None,
    retry: RetryOptions,
    utcnow: Callable[[], datetime],
) -> AsyncIterator[Claim]:
    """
    Claim a parked key, and give the claim up at the end, also after an error or a Ctrl-C; one left by a crash is void soon.

    Args:
        edited: the payload to send in place of that of the first held event.

    Raises:
        KeyNotParked: it is not parked, or holds nothing to edit.
        ReleaseInProgress: another release has it, and moves.
    """
    void = await until_free(store, scope, partition_key, retry=retry)
    claim = Claim(store, scope, partition_key, retry=retry, utcnow=utcnow)
    try:
        await claim.take(edited, void=void)
        yield claim
    except BaseException:
        # The error that ended the release matters more
        with suppress(OutboxError, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_SECONDS):
                await claim.give_up()
        raise


class Claim:
    """
    A name in the key's document. Every step first looks whether it still stands there, and writes under that etag.
    """

    def __init__(
        self,
        store: ParkedStore,
        scope: Scope,
        partition_key: str,
        *,
        retry: RetryOptions,
        utcnow: Callable[[], datetime],
    ) -> None:
        self._store, self._scope, self._partition_key = store, scope, partition_key
        self._retry, self._utcnow = retry, utcnow
        self._id = uuid.uuid4().hex

    async def due(self) -> Sequence[ParkedEvent]:
        """
        Return the beginning of the queue in order, dropped events too; nothing where the queue is empty.
        """

        async def step(deadline: Deadline) -> Sequence[ParkedEvent]:
            return await queue_of(self._store, await self._key(deadline), deadline)

        return await retry_on_conflict(step, self._retry)

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
            await self._commit(key, deadline, [changed.write(), *closings(passed, now=self._utcnow())])

        await retry_on_conflict(step, self._retry)

    async def stop_at(self, event: ParkedEvent, rejection: MessageRejected) -> Failure:
        """
        End the release where the next event is rejected; the key waits for another decision.
        """
        attempts = 1 + (event.failure.attempts if event.failure is not None else 0)
        failure = failure_of(event.event_id, rejection, attempts=attempts)

        async def step(deadline: Deadline) -> None:
            key = await parked_key(self._store, self._scope, self._partition_key, deadline)
            if key.failure == failure and key.claim is None:  # the answer to the first attempt was lost
                return
            self._check(key)
            changed = replace(key, state=KeyState.PARKED, claim=None, failure=failure)
            await self._commit(key, deadline, [changed.write(), replace(event, failure=failure).write()])

        await retry_on_conflict(step, self._retry)
        return failure

    async def hand_back(self) -> bool:
        """
        Delete the key, provided that its queue is empty; return False where events were appended meanwhile.
        """
        deleting: ParkedKey | None = None

        async def step(deadline: Deadline) -> bool:
            nonlocal deleting
            try:
                key = await parked_key(self._store, self._scope, self._partition_key, deadline)
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
            await self._commit(key, deadline, [key.write(WriteKind.DELETE)])
            return True

        return await retry_on_conflict(step, self._retry)

    async def take(self, edited: Mapping[str, Any] | None, *, void: str | None) -> None:
        """
        Enter the name, and what is to be sent in place of the first payload.

        Args:
            edited: that payload.
            void: the claim of a release that moves nothing, which may be replaced.

        Raises:
            KeyNotParked: it is not parked, or holds nothing to edit.
            ReleaseInProgress: another release was faster.
        """

        async def step(deadline: Deadline) -> None:
            key = await parked_key(self._store, self._scope, self._partition_key, deadline)
            if key.claim not in (None, self._id, void):
                raise ReleaseInProgress(
                    f"Another release of partition key {self._partition_key!r} has just begun."
                )
            writes = [replace(key, state=KeyState.RELEASING, claim=self._id).write()]
            if edited is not None:
                # Before anything is sent: whichever release goes on with this key must send the same payload.
                first = await first_held(self._store, key, deadline)
                if first is None:
                    raise KeyNotParked(f"Partition key {self._partition_key!r} holds no event to edit.")
                writes.append(first.edited(edited).write())
            await self._commit(key, deadline, writes)

        await retry_on_conflict(step, self._retry)

    async def give_up(self) -> None:
        """
        Take the name out again.

        Raises:
            ParkingError, StoreError: it is not there, or the store refused or failed.
        """

        async def step(deadline: Deadline) -> None:
            key = await self._key(deadline)
            await self._commit(key, deadline, [replace(key, state=KeyState.PARKED, claim=None).write()])

        await retry_on_conflict(step, self._retry)

    async def _key(self, deadline: Deadline) -> ParkedKey:
        key = await parked_key(self._store, self._scope, self._partition_key, deadline)
        self._check(key)
        return key

    def _check(self, key: ParkedKey) -> None:
        if key.claim != self._id:
            raise ReleaseInProgress(
                f"Another release took over the release of partition key {key.partition_key!r}."
            )

    async def _commit(self, key: ParkedKey, deadline: Deadline, writes: Sequence[Write]) -> None:
        await deadline.attempt(lambda: self._store.commit(key.partition, writes))


async def parked_key(store: ParkedStore, scope: Scope, partition_key: str, deadline: Deadline) -> ParkedKey:
    """
    Return a parked key as it is.

    Raises:
        KeyNotParked: it is certain that it is not parked.
        PreconditionFailed: the copy that was read is behind; read again.
    """
    key = await deadline.attempt(find_key, store, scope, partition_key)
    if key is None:
        raise KeyNotParked(f"Partition key {partition_key!r} is not parked.")
    return key


async def until_free(
    store: ParkedStore, scope: Scope, partition_key: str, *, retry: RetryOptions
) -> str | None:
    """
    Return once no other release has the key, or the claim of one that moved nothing for half a minute.

    Raises:
        KeyNotParked: it is not parked.
        ReleaseInProgress: another release moves.
    """
    loop = asyncio.get_running_loop()
    seen: tuple[str | None, int] | None = None
    void_at = 0.0
    while True:
        key = await retry_on_conflict(
            lambda deadline: parked_key(store, scope, partition_key, deadline), retry
        )
        if key.claim is None:
            return None
        if seen is None:
            seen, void_at = (key.claim, key.first), loop.time() + VOID_AFTER_SECONDS
        if seen != (key.claim, key.first):
            raise ReleaseInProgress(f"Another release of partition key {partition_key!r} is under way.")
        if loop.time() >= void_at:
            return key.claim
        await asyncio.sleep(_WATCH_SECONDS)


async def first_held(store: ParkedStore, key: ParkedKey, deadline: Deadline) -> ParkedEvent | None:
    """
    Return the event that a release would send first, or None where the key holds none.
    """
    first = key.first
    while first < key.next:
        chunk = await queue_of(store, replace(key, first=first), deadline)
        for event in chunk:
            if event.status is EventStatus.HELD:
                return event
        first += len(chunk)
    return None


async def queue_of(store: ParkedStore, key: ParkedKey, deadline: Deadline) -> Sequence[ParkedEvent]:
    """
    Return the beginning of a key's queue in order, dropped events too; as many as one batch takes off.

    Raises:
        PreconditionFailed: the answer is behind; ask again.
        ParkingError: the first event cannot be read.
    """
    if key.first == key.next:
        return ()
    documents = await deadline.attempt(
        store.queue,
        key.partition,
        epoch=key.epoch,
        first=key.first,
        limit=min(_CHUNK, key.next - key.first),
    )
    places = [document.get("position") for document in documents]
    if not places or places != list(range(key.first, key.first + len(places))):
        # The answer may be behind the key that was read before it: an event that it lacks would be overtaken.
        if damaged := await _damaged(store, key, deadline):
            raise damaged
        raise PreconditionFailed("The list of held events is behind; read it again.")
    events = []
    for document in documents:
        try:
            events.append(event_of(document))
        except ParkingError:
            if not events:
                raise
            break  # those before it can be sent
    return events


async def _damaged(store: ParkedStore, key: ParkedKey, deadline: Deadline) -> ParkingError | None:
    """
    Return what is wrong with an event whose place in the queue cannot be read, or None where there is none.
    """
    found, after = None, ""
    while documents := await deadline.attempt(store.page, key.partition, after=after):
        for document in documents:
            after = str(document["id"])
            if document.get("type") == "parkedEvent" and document.get("epoch", key.epoch) == key.epoch:
                try:
                    event_of(document)
                except ParkingError as error:
                    found = found or error
    return found
