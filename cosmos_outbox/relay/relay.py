"""Relay: the handler that sends the events of a page of changes as messages, and returns when the broker has accepted all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from cosmos_outbox import records
from cosmos_outbox.errors import MessageRejected, OutboxError, ParkingError, ParkingFull, StoreUnavailable
from cosmos_outbox.parking.lease_notes import POLL_SECONDS, POLL_TIMEOUT_SECONDS, ParkedNames
from cosmos_outbox.parking.park import FoundKeys, Parking
from cosmos_outbox.parking.parked_documents import Failure, Scope, failure_of
from cosmos_outbox.ports import ChangeBatch, Publisher
from cosmos_outbox.relay.sending_lanes import (
    Delivery,
    EventKey,
    EventPage,
    LaneResult,
    LaneSender,
    Rejection,
    event_page,
    group_by_key,
)
from cosmos_outbox.relay.topics_and_refusals import BELIEVED_IN_A_ROW
from cosmos_outbox.retries import Backoff

_HOLDING_AT_ONCE = 8  # the number of keys whose events are written to the parked store at the same time
# how many leases a relay remembers: more than one process can serve. A lease that was forgotten is treated like a new one.
_MOST_LEASES = 1000

# For each partition key: the events that are still to be sent or held, in order
Streams = Mapping[str, list[Delivery]]


@dataclass(slots=True)
class _Lease:
    """
    What the relay remembers of a lease from page to page.

    first_lane: the lane that sends the first events of each page.
    tenure: the tenure in which the worker owns the lease.
    parked: the names of the parked keys of the lease's range.
    accepted: the events of an unfinished page that the topic or the parked store already has.
    """

    first_lane: int
    tenure: int
    parked: ParkedNames
    accepted: set[EventKey] = field(default_factory=set)


@dataclass(slots=True)
class _Progress:
    """
    The state of a page while the relay sends or holds its events.

    done: the events that the topic or the parked store has.
    failures: for each key that is to be parked, why its first event cannot be sent.
    unsendable: rejected events that cannot be parked, because there is no parked store.
    errors: the errors because of which events could be neither sent nor held.
    full: whether the limit of parked keys is reached, so that the keys are not checked again: that takes some requests for each key.
    looked_up: keys that no lease names, but for which the relay has asked the parked store.
    """

    lease_name: str
    lease: _Lease
    scope: Scope
    done: set[EventKey]
    moving: Callable[[], None]
    failures: dict[str, Failure] = field(default_factory=dict)
    unsendable: list[Rejection] = field(default_factory=list)
    errors: list[OutboxError] = field(default_factory=list)
    full: bool = False
    looked_up: set[str] = field(default_factory=set)
    making_room: asyncio.Lock = field(default_factory=asyncio.Lock)


class Relay:
    """
    Publishes the events of each batch that it is called with; a handler for a ChangeFeedProcessor.

    One relay serves all leases of a worker at once.

    Args:
        publisher: the topic, or `Topics`.
        parking: holds the events of a partition key whose next event can never be sent. Defaults to none: the lease halts at such an event.
        believed: after how many refusals in a row the topic counts as at fault instead of the messages, so that the lease halts.
            Defaults to 5.
        backoff: the wait between attempts while the broker is unavailable. Defaults to 100 ms … 30 s, full jitter.
        notify: receives a record of every publication, failure and rejection. It is called in the trace of the commit that wrote the
            (first) event. Defaults to logging the records.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        parking: Parking | None = None,
        believed: int = BELIEVED_IN_A_ROW,
        backoff: Backoff | None = None,
        notify: records.Hook = records.log_hook,
    ) -> None:
        self._notify = records.guard(notify)
        self._sender = LaneSender(publisher, believed, backoff or Backoff(), self._notify)
        self._parking = parking
        self._leases: dict[str, _Lease] = {}
        self._lanes = itertools.count()
        self._holding = asyncio.Semaphore(_HOLDING_AT_ONCE)
        self._polled_at = float("-inf")
        self._found = FoundKeys()

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Parse a page and handle it.

        Raises:
            OutboxError: see `handle`.
        """
        await self.handle(event_page(batch))

    async def handle(self, page: EventPage) -> None:
        """
        Return when the broker has accepted every event of the page, or the parked store holds it.

        While the broker is unavailable, keep trying.

        Raises:
            MessageRejected: an event can never be sent as it is, and there is no parked store.
            ParkingError: the lease names parked keys, and there is no parked store.
            TopicRefusesAll: the topic refuses every message.
            ParkingFull, StoreError: events could not be held.
                When one of these errors is raised, all events of other partition keys have been accepted.
        """
        batch = page.batch
        lease = self._lease_of(batch)
        for document in page.malformed:
            document_id, key = str(document.get("id")), repr(batch.key_paths.key_of(document))
            self._notify(
                records.EventMalformed(lease=batch.lease, document_id=document_id, partition_key=key)
            )
        if self._parking is None and len(lease.parked):
            raise ParkingError(
                f"Lease {batch.lease!r} has {len(lease.parked)} parked keys, but no parked store is configured. New events "
                "of these keys would overtake their held events. Name the parked store again, and release the keys first."
            )
        streams: Streams = group_by_key(page.events, accepted=lease.accepted)
        scope = Scope(processor=batch.processor, container=batch.container_rid)
        if streams and self._parking is not None:
            # No owner has saved names of parked keys: this is the first lease of its range, or the one before was lost with its names. So
            # ask the store for all parked keys.
            if lease.parked.never_saved:
                self._polled_at = asyncio.get_running_loop().time()
                self._found = await self._parking.keys(scope)
                lease.parked.add(*self._found.parked)
            await self._poll(scope, lease.parked)
        # Remember which events of an unfinished page are done. The page may be read again after the broker has forgotten their message ids, and
        # would not drop copies of them.
        before, lease.accepted = lease.accepted, set()
        progress = _Progress(
            lease_name=batch.lease, lease=lease, scope=scope, done={*before}, moving=batch.moving
        )
        while streams:
            streams = await self._round(progress, streams)
        if progress.errors or progress.unsendable:
            lease.accepted = progress.done
            if progress.errors:
                raise progress.errors[0]
            delivery, error, _ = progress.unsendable[0]
            key, event_id = delivery.key
            raise MessageRejected(
                f"Event {event_id!r} of partition key {key!r} cannot be sent, so lease {batch.lease!r} stops at this page "
                f"({len(progress.unsendable)} of its partition keys have such an event): {error}"
            ) from error
        if before & (handled := {delivery.key for delivery in page.events}):
            # The page may be shorter than when it was read before. Then some of the events that are done come with the next page.
            lease.accepted = before - handled

    def _lease_of(self, batch: ChangeBatch) -> _Lease:
        lease = self._leases.pop(batch.lease, None)
        if lease is None or lease.tenure != batch.tenure:
            # In a new tenure, forget what was done: another worker may have owned the lease meanwhile, and parked keys in a page that it
            # did not finish, so that no lease names them. The page is then sent or held from its beginning. Each lease begins on another
            # lane, because leases with few events would all wait for one lane otherwise.
            lane = next(self._lanes) if lease is None else lease.first_lane
            lease = _Lease(first_lane=lane, tenure=batch.tenure, parked=ParkedNames(batch.notes))
        self._leases[batch.lease] = lease
        if len(self._leases) > _MOST_LEASES:
            del self._leases[next(iter(self._leases))]  # the lease whose last page is the oldest
        return lease

    async def _poll(self, scope: Scope, names: ParkedNames | None = None, *, at_once: bool = False) -> None:
        """From time to time, ask the store for keys that no lease names, and for those that were handed back. Report a failure."""
        if self._parking is None:
            return
        try:
            async with asyncio.timeout(POLL_TIMEOUT_SECONDS):
                now = asyncio.get_running_loop().time()
                if at_once or now - self._polled_at >= POLL_SECONDS:
                    # One poll serves all leases of the worker. The time is set first, so that a query that fails is not repeated at once.
                    self._polled_at = now
                    self._found = await self._parking.keys(scope)
                if names is not None:
                    await names.poll(self._parking, scope)
        except (OutboxError, TimeoutError) as error:
            silent = StoreUnavailable(
                f"Cosmos DB did not return the parked keys in {POLL_TIMEOUT_SECONDS:g} s."
            )
            said = error if isinstance(error, OutboxError) else silent
            self._notify(records.WatchFailed(subject="what is parked", error=said))

    async def _round(self, progress: _Progress, streams: Streams) -> Streams:
        """
        Send the events of some keys and hold those of the others. Return the events for the next round: those to hold because they could
        not be sent, and those to send because their key is no longer parked.
        """
        to_hold = {
            key: stream
            for key, stream in streams.items()
            if key in progress.failures or key in progress.lease.parked or key in self._found.by_hand
        }
        to_send = {key: stream for key, stream in streams.items() if key not in to_hold}

        async def poll_by_hand() -> frozenset[str]:
            await self._poll(progress.scope)
            return self._found.by_hand

        async with asyncio.TaskGroup() as group:
            sent = LaneResult()
            if to_send:
                sent = self._sender.send(
                    to_send.values(),
                    first_lane=progress.lease.first_lane,
                    parked=len(progress.lease.parked) + len(progress.failures),
                    parked_meanwhile=poll_by_hand,
                    moving=progress.moving,
                    group=group,
                )
            holding = {
                key: group.create_task(self._hold(self._parking, progress, key, stream))
                for key, stream in to_hold.items()
                if self._parking is not None
            }
        again = await self._collect_rest(sent, progress, to_send)
        return again | {key: left for key, task in holding.items() if (left := task.result())}

    async def _collect_rest(
        self, result: LaneResult, progress: _Progress, sent: Streams
    ) -> dict[str, list[Delivery]]:
        """Take over the result of the lanes. Return the events that are to be sent again or held in the next round."""
        again = list(result.parked_by_hand)  # the first event of each key
        progress.done |= result.accepted
        if self._parking is None:
            progress.unsendable += result.rejected
        else:
            for delivery, error, attempts in result.rejected:
                key, event_id = delivery.key
                progress.failures[key] = failure_of(event_id, error, attempts=attempts)
                again.append(delivery)
        if result.accepted:
            # The topic accepts messages, so send the doubtful ones again: if the topic refuses them and accepts another, they are at fault.
            again += [first for first, _ in result.doubted]
        elif result.doubted:
            parked = await self._find_parked(progress, {first.key[0] for first, _ in result.doubted})
            again += [first for first, _ in result.doubted if first.key[0] in parked]
            if left := [(first, doubt) for first, doubt in result.doubted if first.key[0] not in parked]:
                progress.errors += [doubt for _, doubt in left]
                self._sender.report(records.PublishFailed(outcome="halted", error=left[0][1]), [left[0][0]])
        streams = ((first, sent[first.event.partition_key]) for first in again)
        return {first.event.partition_key: stream[stream.index(first) :] for first, stream in streams}

    async def _find_parked(self, progress: _Progress, doubted: set[str]) -> set[str]:
        """
        Return which of the keys are parked although no lease names them: an owner parked them and then lost its lease, or an operator
        parked them a moment ago.

        The events of these keys can be held even while the topic accepts nothing.
        """
        unknown = doubted - progress.looked_up
        progress.looked_up |= unknown
        if unknown:
            await self._poll(progress.scope, at_once=True)
        parked = unknown & self._found.parked
        progress.lease.parked.add(*parked)
        return parked

    async def _hold(
        self, parking: Parking, progress: _Progress, key: str, stream: Sequence[Delivery]
    ) -> list[Delivery]:
        """
        Append the events to the queue of their parked key; park the key first if one of them was rejected.

        Return the events that are not held, because the key is not parked any more.
        """
        failure, parked = progress.failures.pop(key, None), progress.lease.parked
        try:
            if failure is not None:
                async with progress.making_room:
                    await parked.make_room(parking, progress.scope, for_key=key, check=not progress.full)
                # Name the key in the lease before its events are held, because the key may be parked even if the outcome stays unknown.
                parked.add(key)
            async with self._holding:
                held = await parking.hold(key, stream, failure, scope=progress.scope)
        except OutboxError as error:  # the events of other partition keys can go on
            # ParkingFull means that the limit of keys is reached if the lease does not name this key, else that of events.
            progress.full |= isinstance(error, ParkingFull) and failure is not None and key not in parked
            progress.errors.append(error)
            record = records.ParkingFailed(lease=progress.lease_name, partition_key=key, error=error)
            self._sender.report(record, stream)
            return []
        progress.done |= {delivery.key for delivery in stream} - {delivery.key for delivery in held.not_held}
        if held.not_held:
            parked.discard(key)
            self._found.by_hand -= {key}
            if failure is None:
                self._report_held(progress.lease_name, held.not_held, "resumed")
        if held.parked:
            parked.add(key)
            if failure is not None:
                correlation_id, lease = stream[0].event.meta.get("correlationId"), progress.lease_name
                told = {name: value for name, value in asdict(failure).items() if name != "frames"}
                told |= {"lease": lease, "partition_key": key, "correlation_id": correlation_id}
                self._sender.report(records.KeyParked(**told), stream)
            if behind := stream[failure is not None :]:
                self._report_held(progress.lease_name, behind, "held")
        return held.not_held

    def _report_held(
        self, lease: str, stream: Sequence[Delivery], outcome: Literal["held", "resumed"]
    ) -> None:
        key, events = stream[0].event.partition_key, len(stream)
        self._sender.report(
            records.EventsHeld(lease=lease, partition_key=key, outcome=outcome, events=events), stream
        )
