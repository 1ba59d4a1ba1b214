"""
Relay: the handler that turns pages of changes into messages, and returns when the broker has all of them.
"""

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

_HOLDING_AT_ONCE = 8  # keys of one page whose events are written to the parked store at the same time
# leases that are remembered: more than one process can serve. A lease that is forgotten starts again.
_MOST_LEASES = 1000

# For each partition key: the events that are still to be sent or held, in order
Streams = Mapping[str, list[Delivery]]


@dataclass(slots=True)
class _Lease:
    """
    The relay's memory of a lease from page to page.

    accepted: what the topic, or the parked store, has of a page that could not be finished.
    """

    first_lane: int
    tenure: int
    parked: ParkedNames
    accepted: set[EventKey] = field(default_factory=set)


@dataclass(slots=True)
class _Progress:
    """
    The outcome of a page so far.

    failures: why the first event of a stream is to be parked.
    unsendable: rejected events that cannot be parked, because there is no parked store.
    full: a limit is reached; checking the parked keys again takes some requests for each.
    looked_up: keys that no lease names, and of which the parked store was asked all the same.
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
        parking: holds the events of a partition key whose next event can never be sent. Defaults to none: the lease halts
            at such an event.
        believed: how many refusals count with nothing accepted between them; then the topic is at fault, and the lease halts.
            Defaults to 5.
        backoff: between attempts while the broker is unavailable. Defaults to 100 ms … 30 s, full jitter.
        notify: receives a record of every publication, failure and rejection, inside the trace of the commit of the
            (first) event. Defaults to logging them.
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
            OutboxError: as `handle`.
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
                After each of these, all events of other partition keys were accepted.
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
                f"Lease {batch.lease!r} has {len(lease.parked)} parked keys, whose new events would overtake the held "
                "ones. Name the parked store again, and release the keys first."
            )
        streams: Streams = group_by_key(page.events, accepted=lease.accepted)
        scope = Scope(processor=batch.processor, container=batch.container_rid)
        if streams and self._parking is not None:
            # This is the first lease of its range, or its names were lost with the previous lease.
            if lease.parked.never_saved:
                self._polled_at = asyncio.get_running_loop().time()
                self._found = await self._parking.keys(scope)
                lease.parked.add(*self._found.parked)
            await self._poll(scope, lease.parked)
        # A page that cannot be finished comes again and again, perhaps for longer than the broker remembers message ids.
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
            # This page may be shorter than when it was read before: then the next page has the rest.
            lease.accepted = before - handled

    def _lease_of(self, batch: ChangeBatch) -> _Lease:
        lease = self._leases.pop(batch.lease, None)
        if lease is None or lease.tenure != batch.tenure:
            # Another worker may have owned the lease meanwhile. If that worker parked keys in a page that it did not finish, no lease
            # names them. So this relay sends or holds that page again from its beginning. Leases begin on different lanes, or leases
            # with little to send would all wait for one another.
            lane = next(self._lanes) if lease is None else lease.first_lane
            lease = _Lease(first_lane=lane, tenure=batch.tenure, parked=ParkedNames(batch.notes))
        self._leases[batch.lease] = lease
        if len(self._leases) > _MOST_LEASES:
            del self._leases[next(iter(self._leases))]  # the lease whose last page is the oldest
        return lease

    async def _poll(self, scope: Scope, names: ParkedNames | None = None, *, at_once: bool = False) -> None:
        """Poll, from time to time, for keys that no lease names, and for names of keys that were handed back. Report a failure."""
        if self._parking is None:
            return
        try:
            async with asyncio.timeout(POLL_TIMEOUT_SECONDS):
                now = asyncio.get_running_loop().time()
                if at_once or now - self._polled_at >= POLL_SECONDS:
                    # one poll serves all leases of the worker; a query that fails counts, too
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
        Send the events of some keys and hold those of the others. Return the events whose treatment changed: those to hold after all,
        and those to send after all.
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
        """Note the outcome of the lanes. Return the events to send again, and those to hold."""
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
            # The topic accepts messages, so the refused messages in doubt are sent again: now there is one to compare them with.
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
        Return which keys are parked though no lease names them: an owner parked them and then lost its lease, or an operator parked
        them a moment ago.

        Their events can be held even while the topic accepts nothing.
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
        """Hold the events of a key. If the key is not parked, return the events that are to be sent."""
        failure, parked = progress.failures.pop(key, None), progress.lease.parked
        try:
            if failure is not None:
                async with progress.making_room:
                    await parked.make_room(parking, progress.scope, for_key=key, check=not progress.full)
                # The lease names the key before its events are held: if the outcome stays unknown, the key may be parked.
                parked.add(key)
            async with self._holding:
                held = await parking.hold(key, stream, failure, scope=progress.scope)
        except OutboxError as error:  # the events of other partition keys can go on
            # If the limit of keys is reached, the lease has no name for this key. If the limit of events is reached, it has one.
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
