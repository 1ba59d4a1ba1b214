"""
Relay: the handler that sends the events of a page of changes as messages, and returns when the broker has accepted all of them. If the
broker refuses a message, `topics_and_refusals.py` decides whether the message or the topic is at fault.
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

_HOLDING_AT_ONCE = 8  # the number of keys whose events may be written to the parked store at once
# How many leases a relay remembers, to limit memory: one process seldom owns as many. A lease that was forgotten is treated like a new one.
_MOST_LEASES = 1000

# By partition key: the events of a page, in order, that are still to be sent or to be put into the parked store.
Streams = Mapping[str, list[Delivery]]


@dataclass(slots=True)
class _Lease:
    """
    What the relay remembers of a lease from page to page.

    first_lane: the number of the lane (a stream to the topic) that sends the first events of each page.
    tenure: a number that is different each time this worker acquires the lease.
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
    The state of a page while the relay sends its events, or puts them into the parked store ("holds" them).

    done: the events that the topic or the parked store has.
    failures: for each partition key that is to be parked, why its first event cannot be sent.
    unsendable: rejected events that cannot be parked, because there is no parked store.
    errors: the errors because of which events could be neither sent nor held.
    full: whether the limit of parked keys is reached. The relay then does not check again which keys are still parked, because that takes
        some requests for each key.
    looked_up: keys that no lease names, and for which the relay has already asked the parked store.
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
    The handler of a ChangeFeedProcessor that sends the events of each page to the topic.

    One relay serves all leases of a worker at once.

    Args:
        publisher: the topic, or `Topics`.
        parking: keeps the events of a partition key whose next event can never be sent. Defaults to none: the lease halts at such an event.
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
        Parse a page of the change feed and send its events.

        Raises:
            OutboxError: see `handle`.
        """
        await self.handle(event_page(batch))

    async def handle(self, page: EventPage) -> None:
        """
        Send every event of the page, or put it into the parked store ("hold" it). Return when the broker or the parked
        store has all of them. While the broker is unavailable, keep trying.

        Raises:
            MessageRejected: an event can never be sent as it is, and there is no parked store.
            ParkingError: the lease names parked keys, and there is no parked store.
            TopicRefusesAll: the topic refuses every message.
            ParkingFull, StoreError: events could not be put into the parked store.
                Before one of these errors is raised, the events of all other partition keys were sent or held.
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
                "of these keys would overtake their held events. Name the parked store again, and release the keys before you remove it."
            )
        streams: Streams = group_by_key(page.events, accepted=lease.accepted)
        scope = Scope(processor=batch.processor, container=batch.container_rid)
        if streams and self._parking is not None:
            # No owner has saved names of parked keys in this lease: it is the first lease of its range, or replaces a lease that was lost
            # with its names. So ask the parked store for all parked keys, before an event of one of them is sent too early.
            if lease.parked.never_saved:
                self._polled_at = asyncio.get_running_loop().time()
                self._found = await self._parking.keys(scope)
                lease.parked.add(*self._found.parked)
            await self._poll(scope, lease.parked)
        # Remember which events of an unfinished page the topic has, so that they are not sent again with the page. The broker may have
        # forgotten their message ids by then, and would deliver the copies.
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
            # A page that is read again may be shorter than before. Then the next page brings some events that were sent already, so
            # still remember them.
            lease.accepted = before - handled

    def _lease_of(self, batch: ChangeBatch) -> _Lease:
        lease = self._leases.pop(batch.lease, None)
        if lease is None or lease.tenure != batch.tenure:
            # This worker has just acquired the lease. Forget what it sent when it owned the lease before: another worker may have owned it
            # meanwhile, and parked keys in a page that it did not finish. Each lease begins on another lane, because leases with few events
            # would all wait for the first lane otherwise.
            lane = next(self._lanes) if lease is None else lease.first_lane
            lease = _Lease(first_lane=lane, tenure=batch.tenure, parked=ParkedNames(batch.notes))
        self._leases[batch.lease] = lease
        if len(self._leases) > _MOST_LEASES:
            del self._leases[next(iter(self._leases))]  # forget the lease whose last page is longest ago
        return lease

    async def _poll(self, scope: Scope, names: ParkedNames | None = None, *, at_once: bool = False) -> None:
        """
        Ask the parked store which keys operators have parked or released, at most every 15 seconds. Report a failure, and go on.
        """
        if self._parking is None:
            return
        try:
            async with asyncio.timeout(POLL_TIMEOUT_SECONDS):
                now = asyncio.get_running_loop().time()
                if at_once or now - self._polled_at >= POLL_SECONDS:
                    # One query serves all leases of the worker. Store the time before the query, so that a failed query is not
                    # repeated at once.
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
        Put the events of parked keys into the parked store, and send the events of all other keys. Return the events for which this has
        to be repeated: events that could not be sent and are to be parked, and events whose key is no longer parked and that are to be sent.
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
        """Note what the lanes sent. Return, by key, the events of this page that are still to be sent again or to be parked."""
        again = list(result.parked_by_hand)  # the first event of each key that an operator has parked
        progress.done |= result.accepted
        if self._parking is None:
            progress.unsendable += result.rejected
        else:
            for delivery, error, attempts in result.rejected:
                progress.failures[delivery.key[0]] = failure_of(delivery.id, error, attempts=attempts)
                again.append(delivery)
        if result.accepted:
            # The topic has accepted messages, so the refused messages may be at fault, and not the topic. Send them again, to find out.
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
        Return which of the `doubted` keys, whose events the topic refused, are parked although the lease does not name them: an owner
        parked them and then lost its lease, or an operator parked them a moment ago.

        The events of a parked key go into the parked store, so they need not wait for a topic that accepts nothing.
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
        Append events to the queue of their parked key. If the topic rejected one of them, park the key first.

        Return the events that have to be sent after all, because an operator has released the key.
        """
        failure, parked = progress.failures.pop(key, None), progress.lease.parked
        try:
            if failure is not None:
                async with progress.making_room:
                    await parked.make_room(parking, progress.scope, for_key=key, check=not progress.full)
                # Name the key in the lease before its events are stored: the key may be parked even if the
                # answer to the write is lost.
                parked.add(key)
            async with self._holding:
                held = await parking.hold(key, stream, failure, scope=progress.scope)
        except OutboxError as error:  # raise it at the end of the page, so that other partition keys go on
            # ParkingFull has two causes. If the lease does not name this key, the limit of parked keys is
            # reached. Otherwise the limit of this key's events is reached.
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
