"""
Relay: the handler that turns pages of changes into messages, and returns when the broker has all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from cosmos_outbox.correlation import inside_trace
from cosmos_outbox.documents import is_malformed_event
from cosmos_outbox.errors import (
    MessageRejected,
    OutboxError,
    ParkingError,
    ParkingFull,
    PublishError,
    TopicRefusesAll,
    TopicUnavailable,
)
from cosmos_outbox.parking.documents import Failure, Scope, failure_of
from cosmos_outbox.parking.hold import Parking
from cosmos_outbox.parking.names import ParkedNames
from cosmos_outbox.ports import ChangeBatch, Notes, Publisher
from cosmos_outbox.records import (
    EventMalformed,
    EventRejected,
    EventsHeld,
    Hook,
    KeyParked,
    KeyResumed,
    MessagesPublished,
    ParkingFailed,
    PublishFailed,
    PublishHalted,
    Record,
    WatchFailed,
    guarded,
    log_hook,
)
from cosmos_outbox.relay.plan import LANE_BYTES, Delivery, EventKey, share_out, streams_of
from cosmos_outbox.relay.verdict import BELIEVED_IN_A_ROW, JudgedPublisher
from cosmos_outbox.retries import Backoff

_HOLDING_AT_ONCE = 8  # keys of one page that are written to the parked store side by side
_LOOK_SECONDS = 15.0  # between two looks for keys that no lease names, and for names that are out of date
_LONGEST_LOOK_SECONDS = 1.0  # what a store that is away may cost a page
_ATTEMPTS_BEFORE_A_LOOK = 5  # at the same messages; an operator may have parked their key by hand
_CHECKED_AT_ONCE = 10  # names of a lease, each of which costs three requests where it is out of date
_MOST_LEASES = 1000  # remembered; more than one process can serve. One that is forgotten is begun anew

# The events of each partition key that are still to be dealt with, in order
Streams = Mapping[str, list[Delivery]]


@dataclass(slots=True)
class _Rejection:
    delivery: Delivery
    error: MessageRejected
    attempts: int


@dataclass(slots=True)
class _Outcome:
    """
    How far a lane came: an event behind a rejected or doubted one of its partition key is in neither list.

    doubted: events for whose refusal the topic may be at fault.
    aside: events whose keys were parked by hand while the broker did not answer.
    """

    accepted: set[EventKey] = field(default_factory=set)
    rejected: list[_Rejection] = field(default_factory=list)
    doubted: list[tuple[Delivery, TopicRefusesAll]] = field(default_factory=list)
    aside: list[Delivery] = field(default_factory=list)


@dataclass(slots=True)
class _Lease:
    """
    What a relay remembers of a lease from page to page.
    """

    first_lane: int
    # what the topic, or the parked store, has of a page that could not be finished
    accepted: set[EventKey] = field(default_factory=set)
    parked: ParkedNames = field(default_factory=lambda: ParkedNames(Notes()))
    tenure: int | None = None
    looked_at: float = 0.0


@dataclass(slots=True)
class _Page:
    """
    What became of a page so far.
    """

    batch: ChangeBatch
    lease: _Lease
    scope: Scope
    done: set[EventKey]
    # Why the first event of a stream is to be parked
    failures: dict[str, Failure] = field(default_factory=dict)
    unsendable: list[_Rejection] = field(default_factory=list)  # without a parked store
    errors: list[OutboxError] = field(default_factory=list)


class Relay:
    """
    Publish the events of each batch it is called with; a handler for a ChangeFeedProcessor.

    One relay serves all leases of a worker at once.

    Args:
        publisher: the topic.
        parking: where the events of a partition key go whose next event can never be sent. Defaults to none: the
            lease halts at such an event.
        lane_bytes: how much of a page one lane takes before another one helps. Defaults to about one batch of the
            Standard tier; on Premium, 900 KiB makes fuller batches.
        backoff: between attempts while the broker is unavailable. Defaults to 100 ms … 30 s, full jitter.
        notify: hears of every publication, failure and rejection, inside the trace of the commit whose event it is;
            of several, of the first one's. Defaults to logging them.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        parking: Parking | None = None,
        lane_bytes: int = LANE_BYTES,
        backoff: Backoff | None = None,
        notify: Hook = log_hook,
    ) -> None:
        self._publisher = publisher if getattr(publisher, "judged", False) else JudgedPublisher(publisher)
        self._took_something = False
        self._parking, self._lane_bytes = parking, lane_bytes
        self._backoff, self._notify = backoff or Backoff(), guarded(notify)
        self._leases: dict[str, _Lease] = {}
        self._lanes = itertools.count()
        self._holding = asyncio.Semaphore(_HOLDING_AT_ONCE)
        self._announced: frozenset[str] = frozenset()
        self._announced_at: float | None = None

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Return when the broker has accepted every event of the batch, or the parked store holds it.

        As long as the broker is unavailable, keep trying.

        Raises:
            MessageRejected: an event can never be sent as it is, and there is no parked store.
            ParkingError: the lease names parked keys, and there is no parked store.
            TopicRefusesAll: the topic refuses every message.
            ParkingFull, StoreError: events could not be held.
                After each of these, all events of other partition keys were accepted.
        """
        # Leases begin on different lanes, or those with little to send would all wait for one another.
        lease = self._leases.pop(batch.lease, None) or _Lease(first_lane=next(self._lanes))
        self._leases[batch.lease] = lease
        if len(self._leases) > _MOST_LEASES:
            del self._leases[next(iter(self._leases))]  # the one that had no page for the longest time
        if lease.tenure != batch.tenure:
            # Another worker may have had the lease meanwhile. What was held of a page that it did not finish, no lease
            # names: it has to be met again.
            lease.tenure, lease.accepted = batch.tenure, set()
            lease.parked = ParkedNames(batch.notes)
        streams: Streams = streams_of(batch.documents, accepted=lease.accepted)
        for document in filter(is_malformed_event, batch.documents):
            self._notify(
                EventMalformed(
                    lease=batch.lease,
                    document_id=str(document.get("id")),
                    partition_key=repr(document.get("partitionKey")),
                )
            )
        if self._parking is None and len(lease.parked):
            raise ParkingError(
                f"Lease {batch.lease!r} names {len(lease.parked)} parked keys, whose events would be overtaken; name the parked "
                "store again (OUTBOX_PARKED_CONTAINER), and release them first."
            )
        scope = Scope(processor=batch.processor, container=batch.container_rid)
        if streams and self._parking is not None:
            await self._look(self._parking, lease, scope)
        # A page that cannot be finished comes again and again, perhaps for longer than the broker remembers ids.
        page = _Page(batch=batch, lease=lease, scope=scope, done=lease.accepted)
        lease.accepted = set()
        while streams:
            streams = await self._round(page, streams)
        if page.unsendable or page.errors:
            lease.accepted = page.done
            _fail(page)

    async def _round(self, page: _Page, streams: Streams) -> Streams:
        """
        Send the events of some keys and hold those of the others; return what has to go the other way after all.
        """
        parked = {
            key
            for key in streams
            if key in page.failures or key in page.lease.parked or key in self._announced
        }
        to_send = {key: stream for key, stream in streams.items() if key not in parked}
        lanes = self._publisher.lanes
        shares = share_out(to_send.values(), lanes=lanes, lane_bytes=self._lane_bytes)
        left: dict[str, list[Delivery]] = {}
        async with asyncio.TaskGroup() as group:
            sending = [
                group.create_task(self._send((page.lease.first_lane + number) % lanes, share, page.scope))
                for number, share in enumerate(shares)
            ]
            if self._parking is not None:
                for key in parked:
                    group.create_task(self._hold(self._parking, page, key, streams[key], left))
        return left | self._left_by([task.result() for task in sending], page, to_send)

    def _left_by(self, outcomes: Sequence[_Outcome], page: _Page, sent: Streams) -> dict[str, list[Delivery]]:
        """
        Take note of what lanes came to; return what is to be sent again, or to be held.
        """
        again: list[Delivery] = []  # the first of each key
        doubted: list[tuple[Delivery, TopicRefusesAll]] = []
        for outcome in outcomes:
            page.done |= outcome.accepted
            again += outcome.aside
            doubted += outcome.doubted
            for rejection in outcome.rejected:
                if self._parking is None:
                    page.unsendable.append(rejection)
                elif (doubt := self._doubt(page, rejection)) is not None:
                    doubted.append((rejection.delivery, doubt))
                else:
                    event = rejection.delivery.event
                    page.failures[event.partition_key] = failure_of(
                        event.id, rejection.error, attempts=rejection.attempts
                    )
                    again.append(rejection.delivery)
        if any(outcome.accepted for outcome in outcomes):
            # The topic takes messages: these come again, and are believed or not by what it took meanwhile.
            again += [delivery for delivery, _ in doubted]
        else:
            page.errors += [error for _, error in doubted]
        streams = ((first, sent[first.event.partition_key]) for first in again)
        return {first.event.partition_key: stream[stream.index(first) :] for first, stream in streams}

    async def _hold(
        self,
        parking: Parking,
        page: _Page,
        partition_key: str,
        stream: Sequence[Delivery],
        left: dict[str, list[Delivery]],
    ) -> None:
        failure = page.failures.pop(partition_key, None)
        lease = page.batch.lease
        try:
            async with self._holding:
                if failure is not None:
                    if len(page.lease.parked) >= parking.max_keys:
                        await self._forget_released(parking, page.lease, page.scope, most=parking.max_keys)
                    self._require_room(parking, page.lease, partition_key)
                    # Before it is held: where the outcome stays unknown, the name is needed too.
                    page.lease.parked.add(partition_key)
                held = await parking.hold(partition_key, stream, failure, scope=page.scope)
        except OutboxError as error:  # other partition keys go on
            page.errors.append(error)
            self._tell(ParkingFailed(lease=lease, partition_key=partition_key, error=error), stream)
            return
        page.done |= {delivery.key for delivery in stream} - {delivery.key for delivery in held.left}
        if held.left:
            left[partition_key] = held.left
            page.lease.parked.discard(partition_key)
            self._announced -= {partition_key}
            if failure is None:
                self._tell(KeyResumed(lease=lease, partition_key=partition_key), held.left)
        if not held.parked:
            return
        page.lease.parked.add(partition_key)
        if failure is not None:
            parked = KeyParked(
                lease=lease,
                partition_key=partition_key,
                event_id=failure.event_id,
                reason=failure.reason,
                attempts=failure.attempts,
                error=failure.error,
            )
            self._tell(parked, stream)
        later = stream[failure is not None :]
        if later:
            self._tell(EventsHeld(lease=lease, partition_key=partition_key, events=len(later)), later)

    async def _look(self, parking: Parking, lease: _Lease, scope: Scope) -> None:
        """
        Look from time to time for keys that no lease names, and for names of keys that were handed back.

        Raises:
            StoreError: the look failed, and the lease has no names yet; others are looked for again later.
        """
        if lease.parked.untold:
            lease.parked.add(*await parking.announced(scope))
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_LONGEST_LOOK_SECONDS):
                await self._look_for_announced(parking, scope)
                if len(lease.parked) and now - lease.looked_at >= _LOOK_SECONDS:
                    lease.looked_at = now
                    await self._forget_released(parking, lease, scope, most=_CHECKED_AT_ONCE)
        except (OutboxError, TimeoutError) as error:
            self._notify(WatchFailed(subject="which keys are parked by hand", error=error))

    async def _look_for_announced(self, parking: Parking, scope: Scope) -> None:
        now = asyncio.get_running_loop().time()
        if self._announced_at is None or now - self._announced_at >= _LOOK_SECONDS:
            self._announced_at = now  # one look for all leases, and one that fails is made again later
            self._announced = await parking.announced(scope)

    async def _forget_released(self, parking: Parking, lease: _Lease, scope: Scope, *, most: int) -> None:
        for name in lease.parked.to_check(most):
            if not await parking.is_parked(name, scope):
                lease.parked.forget(name)

    def _doubt(self, page: _Page, rejection: _Rejection) -> TopicRefusesAll | None:
        """
        Return why a rejection is not believed: this worker saw the topic take nothing yet, and a handful of keys is parked.
        """
        known = len(page.lease.parked) + len(page.failures)
        if self._took_something or known < BELIEVED_IN_A_ROW:
            return None
        return TopicRefusesAll(
            f"{known} keys of the lease are parked already, and the topic has taken nothing since this worker began, so it "
            f"may be at fault; the lease waits. If this event can never be sent, park its key by hand "
            f"(`cosmos-outbox parked park`). The last refusal: {rejection.error}"
        )

    def _require_room(self, parking: Parking, lease: _Lease, partition_key: str) -> None:
        if len(lease.parked) >= parking.max_keys and partition_key not in lease.parked:
            raise ParkingFull(
                f"{len(lease.parked)} partition keys of one lease are parked, as many as the limit allows, so "
                f"{partition_key!r} cannot be; list them, release or drop some, or raise the limit."
            )

    async def _send(self, lane: int, due: Sequence[Delivery], scope: Scope) -> _Outcome:
        """
        Send the deliveries of one lane in order; around a rejected one, only its own partition key stops.
        """
        outcome = _Outcome()
        stopped: set[str] = set()
        chunks = deque([(list(due), 1)])  # and which attempt at its messages this is
        attempt = 0
        loop = asyncio.get_running_loop()
        while chunks:
            waiting, attempts = chunks.popleft()
            chunk = [delivery for delivery in waiting if delivery.event.partition_key not in stopped]
            if not chunk:
                continue
            started = loop.time()
            try:
                await self._publisher.publish(lane, [delivery.message for delivery in chunk])
            except PublishError as error:
                self._accepted(outcome, lane, chunk[: error.accepted], seconds=loop.time() - started)
                rest = chunk[error.accepted :]
                if isinstance(error, TopicRefusesAll):
                    self._tell(PublishHalted(lane=lane, error=error), rest)
                    outcome.doubted += [(first, error) for first in _first_of_each_key(rest)]
                    stopped |= {delivery.event.partition_key for delivery in rest}
                elif error.retriable:
                    # The same messages first: a later one must not enter the topic before them.
                    chunks.appendleft((rest, attempts))
                    attempt = 1 if error.accepted else attempt + 1
                    await self._back_off(lane, attempt, error, rest)
                    if attempt >= _ATTEMPTS_BEFORE_A_LOOK and self._parking is not None:
                        aside = await self._parked_by_hand(self._parking, scope, rest)
                        outcome.aside += aside
                        stopped |= {delivery.event.partition_key for delivery in aside}
                elif not isinstance(error, MessageRejected):
                    raise
                elif len(rest) == 1:
                    outcome.rejected.append(_Rejection(rest[0], error, attempts))
                    stopped.add(rest[0].event.partition_key)
                    self._tell_rejected(lane, rest[0], error)
                else:
                    attempt = 0
                    middle = len(rest) // 2
                    chunks.extendleft(((rest[middle:], attempts + 1), (rest[:middle], attempts + 1)))
            else:
                attempt = 0
                self._accepted(outcome, lane, chunk, seconds=loop.time() - started)
        return outcome

    async def _parked_by_hand(
        self, parking: Parking, scope: Scope, waiting: Sequence[Delivery]
    ) -> list[Delivery]:
        """
        Return the first event of each key among those that wait which an operator has parked meanwhile.
        """
        with suppress(OutboxError, TimeoutError):
            async with asyncio.timeout(_LONGEST_LOOK_SECONDS):
                await self._look_for_announced(parking, scope)
        return [
            first for first in _first_of_each_key(waiting) if first.event.partition_key in self._announced
        ]

    def _accepted(
        self, outcome: _Outcome, lane: int, deliveries: Sequence[Delivery], *, seconds: float
    ) -> None:
        if deliveries:
            self._took_something = True
            outcome.accepted.update(delivery.key for delivery in deliveries)
            record = MessagesPublished(lane=lane, messages=len(deliveries), seconds=seconds)
            self._tell(record, deliveries)

    async def _back_off(
        self, lane: int, attempt: int, error: PublishError, waiting: Sequence[Delivery]
    ) -> None:
        delay = self._backoff.delay(attempt, at_least=getattr(error, "retry_after", None))
        self._tell(PublishFailed(lane=lane, attempt=attempt, delay_seconds=delay, error=error), waiting)
        # An expired token looks the same until the next attempt has signed in again.
        if isinstance(error, TopicUnavailable) and attempt > 1:
            self._tell(PublishHalted(lane=lane, error=error), waiting)
        await asyncio.sleep(delay)

    def _tell_rejected(self, lane: int, delivery: Delivery, error: MessageRejected) -> None:
        event = delivery.event
        record = EventRejected(lane=lane, event_id=event.id, partition_key=event.partition_key, error=error)
        self._tell(record, [delivery])

    def _tell(self, record: Record, deliveries: Sequence[Delivery]) -> None:
        """
        Tell of events, inside the trace of the first one's commit.
        """
        with inside_trace(deliveries[0].event.meta if deliveries else {}):
            self._notify(record)


def _first_of_each_key(deliveries: Sequence[Delivery]) -> list[Delivery]:
    first: dict[str, Delivery] = {}
    for delivery in deliveries:
        first.setdefault(delivery.event.partition_key, delivery)
    return list(first.values())


def _fail(page: _Page) -> NoReturn:
    if page.errors:
        raise page.errors[0]
    event, error = page.unsendable[0].delivery.event, page.unsendable[0].error
    raise MessageRejected(
        f"Event {event.id!r} of partition key {event.partition_key!r} cannot be sent, and "
        f"lease {page.batch.lease!r} goes no further ({len(page.unsendable)} such partition keys in this page): {error}"
    ) from error
