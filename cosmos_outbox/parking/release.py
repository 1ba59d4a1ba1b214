"""
Release: send the events of a parked key from the beginning of its queue. After that the key is no longer parked. An event
leaves the queue after it was sent, so after a crash another release sends what is left, and perhaps the last events again.
`park.py` puts events into the queue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from cosmos_outbox import errors
from cosmos_outbox.parking.park import key_in, read_parked_key
from cosmos_outbox.parking.parked_documents import (
    KEY_ID,
    Decision,
    EventStatus,
    Failure,
    KeyState,
    ParkedEvent,
    ParkedKey,
    Unreadable,
    event_of,
    failure_of,
    readable_events,
)
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, ParkedStore, Write, WriteKind
from cosmos_outbox.retries import RetryOptions, retry_on_conflict

# The most events that one batch takes off the queue of a key. One operation of the batch is left for the key's document.
_CHUNK = MAX_BATCH_OPERATIONS - 1
# After a release has sent the whole queue this many times, and found new events each time, it asks the relays to wait before they append.
# Otherwise the queue of a busy key might never become empty.
_ROUNDS_BEFORE_CLOSING = 2
_GIVE_UP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """How many of the given events were sent. If the topic refused the next one for good, `refusal` is the error that says why."""

    events: int
    refusal: Exception | None = None
    attempts: int = 1


# The type of a function that sends the events of a parked key in order, and stops at the first event that is refused. If it raises an
# OutboxError, it is unknown which events were sent, and they are sent again before any later event. Its second argument is a function that
# has to be awaited before each send but the first, and raises ReleaseTakenOver once a later release or drop of the key began.
Send = Callable[[Sequence[ParkedEvent], Callable[[], Awaitable[None]]], Awaitable[SendResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The outcome of a release: how many events it sent and, if the key is still parked, the failure of the event at which it stopped."""

    sent: int
    failure: Failure | None = None

    @property
    def handed_back(self) -> bool:
        """Say whether the release sent all events, so that the key is no longer parked and the relays send its next events."""
        return self.failure is None


@dataclass(slots=True, kw_only=True)
class Release:
    """
    One release of a key. It writes its claim, an id of its own, into the key's document. A later release or drop replaces the claim, and
    then this release stops.

    known: the key as this release last read or wrote it, so that it need not be read again. If another program has changed the key since,
        the next write is refused, because it requires the etag.
    """

    store: ParkedStore
    partition_key: str
    partition: str
    send: Send
    retry: RetryOptions
    utcnow: Callable[[], datetime]
    claim_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    known: ParkedKey | None = None

    async def run(self, edited: Mapping[str, Any] | None, event_id: str | None, by: str | None) -> Released:
        """
        Take the key for this release, send the events of its queue and delete its document, so that the relays send its next events.
        After an error or a cancellation, let another release take the key.

        Raises:
            OutboxError: see `ParkedKeys.release`.
        """
        try:
            await self._claim(edited, event_id, by)
            return await self._empty()
        except BaseException:
            # Remove the id of this release (its claim) from the key's document. If that fails too, raise only the error that ended the
            # release: the next release of the key replaces the id.
            with suppress(errors.OutboxError, TimeoutError):
                async with asyncio.timeout(_GIVE_UP_SECONDS):
                    await self._give_up()
            raise

    async def _empty(self) -> Released:
        sent, rounds, behind = 0, -1, 0
        while (found := await self._due()) is not None:
            key, due = found
            # A round of this release ends when all events have been sent that were in the queue when the round began.
            if due[0].position >= behind:
                rounds, behind = rounds + 1, key.next
            held = [place for place, event in enumerate(due) if event.status is EventStatus.HELD]
            result = await self.send([due[place] for place in held], self._ensure_claimed)
            passed = len(due) if result.refusal is None else held[result.events]
            state = KeyState.CLOSING if rounds > _ROUNDS_BEFORE_CLOSING else KeyState.RELEASING
            await self._take_off(due[:passed], state)
            sent += result.events
            if result.refusal is not None:
                failure = await self._stop_at(due[passed], result.refusal, result.attempts)
                return Released(sent=sent, failure=failure)
        return Released(sent=sent)

    async def _ensure_claimed(self) -> None:
        self.known = None
        self.known = self._check(await retry_on_conflict(self._read_key, self.retry))

    async def _claim(self, edited: Mapping[str, Any] | None, event_id: str | None, by: str | None) -> None:
        """
        Write the id of this release into the key's document, and an edited payload into the first event, before anything is sent.

        If this release dies, a later release sends the same edited payload.
        """

        async def step() -> None:
            key = await read_parked_key(self.store, self.partition, self.partition_key)
            if key.claim == self.claim_id:  # an earlier attempt wrote this id, and its answer was lost
                return
            edits: list[Write] = []
            if edited is not None:
                first = await first_held(self.store, key)
                if first is None:
                    raise errors.KeyNotParked(f"Partition key {self.partition_key!r} holds no event to edit.")
                if first.event_id != event_id:
                    raise errors.UsageError(
                        f"The first held event of {self.partition_key!r} is {first.event_id!r} now, not {event_id!r}: "
                        "look at the key again, then edit."
                    )
                decision = Decision(at=self.utcnow().isoformat(), by=by, did="edited", reason=None)
                edits.append(first.with_payload(edited, decision).write())
            await self._write(replace(key, state=KeyState.RELEASING, claim=self.claim_id), *edits)

        await retry_on_conflict(step, self.retry)

    async def _due(self) -> tuple[ParkedKey, Sequence[ParkedEvent]] | None:
        """
        Return the key and the first events of its queue in order, including dropped events. If the queue is empty, delete the key's document
        and return None: the key is no longer parked, and the relays send its next events.
        """
        deleting: ParkedKey | None = None

        async def step() -> tuple[ParkedKey, Sequence[ParkedEvent]] | None:
            nonlocal deleting
            key = await self._read_key()
            if deleting is not None and (key is None or key.epoch != deleting.epoch):
                return None  # the deletion succeeded, although its answer was lost
            key = self._check(key)
            if key.first == key.next:
                deleting = key
                deletion = Write(kind=WriteKind.DELETE, id=KEY_ID, etag=key.etag)
                await self.store.commit(key.partition, [deletion])
                return None
            due = await queue_of(self.store, key)
            self.known = key
            return key, due

        return await retry_on_conflict(step, self.retry)

    async def _take_off(self, passed: Sequence[ParkedEvent], state: KeyState) -> None:
        """
        Remove the first events from the key's queue, and set the key's state. In the state CLOSING, relays wait a moment before they append
        further events of the key.
        """

        async def step() -> None:
            key = self._check(await self._read_key())
            if key.first <= passed[-1].position:  # else an earlier attempt succeeded, and its answer was lost
                first, held = passed[-1].position + 1, key.held - len(sent)
                left = replace(key, state=state, first=first, held=held, failure=None)
                await self._write(left, *[_removal(event, now=self.utcnow()) for event in sent])

        sent = [event for event in passed if event.status is EventStatus.HELD]
        if passed:
            await retry_on_conflict(step, self.retry)

    async def _stop_at(self, event: ParkedEvent, refusal: Exception, attempts: int) -> Failure:
        """
        End the release at a refused event: remove the release's id (its claim) from the key's document, and save the new failure there.
        The key stays parked.
        """
        attempts += event.failure.attempts if event.failure is not None else 0
        failure = failure_of(event.event_id, refusal, attempts=attempts)

        async def step() -> None:
            key = await self._read_key()
            # If the document names no release and has this failure already, an earlier attempt wrote it, and only the answer was lost.
            if key is None or key.claim is not None or key.failure != failure:
                stopped = replace(self._check(key), state=KeyState.PARKED, claim=None, failure=failure)
                await self._write(stopped, replace(event, failure=failure).write())

        await retry_on_conflict(step, self.retry)
        return failure

    async def _give_up(self) -> None:
        async def step() -> None:
            key = self._check(await self._read_key())
            await self._write(replace(key, state=KeyState.PARKED, claim=None))

        await retry_on_conflict(step, self.retry)

    async def _read_key(self) -> ParkedKey | None:
        """
        Return the key. The first attempt uses the key that this release last wrote. A later attempt reads it again, because another program
        has changed it.
        """
        key, self.known = self.known, None
        return key or await key_in(self.store, self.partition)

    def _check(self, key: ParkedKey | None) -> ParkedKey:
        if key is not None and key.claim == self.claim_id:
            return key
        # A later release or drop has written its own id into the document, or a later release has ended and deleted the document.
        raise errors.ReleaseTakenOver(
            f"A later release or drop of partition key {self.partition_key!r} began, so this release stops."
        )

    async def _write(self, key: ParkedKey, *others: Write) -> None:
        result = await self.store.commit(key.partition, [key.write(), *others])
        self.known = replace(key, etag=result.etags[0])


def _removal(sent: ParkedEvent, *, now: datetime) -> Write:
    """
    Return the write that takes a sent event off the queue. If its payload was edited, its document stays as a record. Otherwise the document
    is deleted.
    """
    if sent.original is None:
        return Write(kind=WriteKind.DELETE, id=sent.id)
    return replace(sent, status=EventStatus.SENT, closed_at=now.isoformat()).write()


async def queue_of(store: ParkedStore, key: ParkedKey) -> Sequence[ParkedEvent]:
    """
    Return the first events of a key's queue in order, including dropped events: as many as one batch can take off the queue.

    Raises:
        PreconditionFailed: the read returned an older state; read again.
        ParkingError: the document of the first event cannot be read.
    """
    if key.first == key.next:
        return ()
    documents = await store.queue(
        key.partition, epoch=key.epoch, first=key.first, limit=min(_CHUNK, key.next - key.first)
    )
    positions = [document.get("position") for document in documents]
    if not positions or positions != list(range(key.first, key.first + len(positions))):
        # An event seems to be missing: its document is unreadable, or the list of events is older than the key's document. Raise an error,
        # so that no later event overtakes the missing event.
        if unreadable := await _unreadable_event(store, key):
            raise unreadable
        raise errors.PreconditionFailed("The list of held events is out of date: read it again.")
    events = []
    for document in documents:
        try:
            events.append(event_of(document))
        except errors.ParkingError:
            if not events:
                raise
            break  # return the events before the unreadable event: they can be sent
    return events


async def first_held(store: ParkedStore, key: ParkedKey) -> ParkedEvent | None:
    """
    Return the event that a release would send first; None if no event of the key waits.

    Raises:
        PreconditionFailed, ParkingError: see `queue_of`.
    """
    first = key.first
    while first < key.next:
        chunk = await queue_of(store, replace(key, first=first))
        for event in chunk:
            if event.status is EventStatus.HELD:
                return event
        first += len(chunk)
    return None


async def _unreadable_event(store: ParkedStore, key: ParkedKey) -> errors.ParkingError | None:
    """
    Find a document that cannot be read, and so seems to be missing from the queue, and return its error. Return None if all can be read.
    """
    after = ""
    while documents := await store.page(key.partition, after=after):
        after = str(documents[-1]["id"])
        for event in readable_events(one for one in documents if one.get("epoch", key.epoch) == key.epoch):
            if isinstance(event, Unreadable):
                return event.error
    return None
