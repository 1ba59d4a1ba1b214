"""ChangeFeedProcessor: one worker of the group that shares the ranges of a container."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.background import raise_if_cancelled
from cosmos_outbox.changefeed.balancing import pause, plan
from cosmos_outbox.changefeed.bootstrap import bootstrap, marker_of
from cosmos_outbox.changefeed.coverage import EVERY_KEY, asked_to_wait, uncovered
from cosmos_outbox.changefeed.grace import within_grace
from cosmos_outbox.changefeed.lease_status import LeaseStatus
from cosmos_outbox.changefeed.leases import (
    START,
    ByRange,
    Lease,
    readable,
    start_from,
    start_property,
    with_handover_request,
    with_properties,
    with_start,
)
from cosmos_outbox.changefeed.loop_watchdog import watched
from cosmos_outbox.changefeed.naming import own_prefix
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.ownership import OwnedLeases
from cosmos_outbox.errors import (
    ConfigurationError,
    ContainerRecreated,
    NotFound,
    PreconditionFailed,
    RangeGone,
    StoreError,
)
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore, MonitoredContainer, StartFrom
from cosmos_outbox.records import Hook, LeasesBalanced, LeasesLost, guarded, log_hook

# Requests on the lease container: a worker that starts on a thousand leases must not throttle it for the others.
_TAKES_AT_ONCE = 8
# Of the containers, while the processor runs: they pass, or an operator mends them. At its start it ends with those that will not pass.
_FAILURES = (ConfigurationError, RangeGone, StoreError)


class ChangeFeedProcessor:
    """
    Hand every change of a container to a handler, sharing the work with all processors of the same name.

        container, leases = MemoryContainer(ranges=4), MemoryLeases()   # or CosmosChangeFeed, CosmosLeases

        async def handler(batch: ChangeBatch) -> None:
            for document in batch.documents:
                print(document["id"])
            processor.stop()

        processor = ChangeFeedProcessor(container, leases, handler, ProcessorOptions(processor_name="billing"))
        await processor.run()          # until `processor.stop()` is called

    Args:
        feed: the change feed of the monitored container.
        leases: the lease container; it must exist.
        handler: awaited with each page of changes; see `ChangeHandler`.
        options: see `ProcessorOptions`.
        hooks: called with a record of everything that happens; must not block. An exception of a hook is logged and changes
            nothing. `LoopBlocked` comes on a thread of its own, everything else on the loop's.
        utcnow: the wall clock, for the timestamps that .NET and Java read; no decision depends on it.
    """

    def __init__(
        self,
        feed: ChangeFeed,
        leases: LeaseStore,
        handler: ChangeHandler,
        options: ProcessorOptions,
        *,
        hooks: Iterable[Hook] = (log_hook,),
        utcnow: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._feed, self._store, self._options = feed, leases, options
        self._notify = guarded(*hooks)
        self._utcnow = utcnow
        self._start = options.start
        self._began = False  # this processor has seen leases: if all are gone, they are lost
        self._told = False  # that leases were lost: what showed it then is no new loss
        self._prefix = ""  # of the leases' ids
        self._container: MonitoredContainer
        self._seen_at: datetime | None = None  # when the leases were first listed, on the service's clock
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._owned = OwnedLeases(
            feed, leases, handler, options, notify=self._notify, utcnow=utcnow, split=self._wake.set
        )
        self._gaps: tuple[FeedRange, ...] = ()  # where leases were deleted
        self._gaps_since = 0.0
        # Never had a lease since this worker started: silent partitions
        self._left: tuple[FeedRange, ...] = ()
        self._filling: asyncio.Task[None] | None = None

    def status(self, *, stalled_after: timedelta = timedelta(seconds=60)) -> tuple[LeaseStatus, ...]:
        """
        Return how each lease of this worker is doing; one that did not move for `stalled_after` is stalled.

        Among them are leases that this worker could not read, take or split for so long.
        """
        return self._owned.status(stalled_after=stalled_after)

    def stop(self) -> None:
        """Ask `run` to end: pages at hand are finished within the grace period and all leases released."""
        self._stopping.set()
        self._wake.set()
        self._owned.drain()

    async def run(self) -> None:
        """
        Process changes until `stop` is called; cancelling it instead leaves the leases to expire.

        Raises:
            ConfigurationError: the containers, or the leases found there, cannot be used; the message names the fix.
            StoreError: the service refused the first requests for good (a passing fault is waited out).
        """
        with watched(self._notify, after_seconds=self._options.blocked_loop_after.total_seconds()):
            recreations = 0
            while not self._stopping.is_set():
                try:
                    await self._process()
                except* ContainerRecreated:
                    # Nothing is saved for the old container any more; its leases have other ids than the new ones.
                    # "Now" would skip what the new container got before this worker noticed.
                    self._start, self._began = StartFrom.BEGINNING, False
                    self._tell_lost("the container was deleted and created again")
                    recreations += 1
                raise_if_cancelled()
                if recreations > 1 and not self._stopping.is_set():
                    # An account that contradicts itself is not asked in a hot loop.
                    self._wake.clear()
                    await self._pause(self._options.backoff.delay(recreations))

    async def _process(self) -> None:
        self._seen_at = None
        try:
            await within_grace(self._prepare(), asked=self._stopping, seconds=0)
        except TimeoutError:
            return
        grace, interval = self._options.grace_period, self._options.acquire_interval
        async with asyncio.TaskGroup() as group:
            while not self._stopping.is_set():
                self._wake.clear()
                pausing = interval
                with suppress(TimeoutError):
                    pausing = await within_grace(
                        self._balance(group), asked=self._stopping, seconds=grace.total_seconds()
                    )
                await self._pause(pausing.total_seconds())

    async def _prepare(self) -> None:
        name, attempt = self._options.processor_name, 0
        while True:
            try:
                self._container = await self._feed.describe()
                self._prefix = await own_prefix(self._container, processor_name=name, leases=self._store)
                await self._bootstrap()
            except (StoreError, RangeGone, ContainerRecreated) as error:
                if isinstance(error, StoreError) and not error.retriable:
                    raise
                attempt += 1
                self._failed(error)
                await asyncio.sleep(self._options.backoff.delay(attempt, at_least=asked_to_wait([error])))
            else:
                return

    async def _balance(self, group: asyncio.TaskGroup) -> timedelta:
        """
        Run one balancing pass; return after how long the next is due.

        It is soon where a requested lease is pending, or a write was throttled.
        """
        me, options = self._options.instance_name, self._options
        try:
            listing = await self._store.list(f"{self._prefix}..")
            since = self._seen_at = self._seen_at or listing.read_at
            self._notify(LeasesBalanced(owner=me, outcome="listed"))
            leases, damaged = readable(listing.documents)
            for lease_id, error in damaged.items():  # must not end the work on the others
                self._owned.failed(lease_id, error)
            # A range that has a lease is no longer left: if that lease is deleted, it had an owner.
            gaps = uncovered([EVERY_KEY], leases)
            self._left = tuple(left for left in self._left if any(gap.contains(left) for gap in gaps))
            available = {
                lease.id
                for lease in leases
                if lease.owner == me or lease.expired(listing.read_at, options.expiration)
            }
            self._owned.forget_failing_except({*available, *damaged, *map(self._id_for, self._left)})
            decided = plan(
                leases,
                me=me,
                running=self._owned.ids,
                now=listing.read_at,
                alive=1.5 * options.renew_interval,
                expiration=options.expiration,
                reservation=2 * options.acquire_interval,
            )
            for lease in decided.hand_over:
                self._owned.hand_over(lease)
            by_range = ByRange(leases)
            self._owned.release_half_split(by_range)
            soon = decided.waiting
            for lease in decided.ask:
                soon |= await self._attempt_step(lease, self._ask(lease))
            begun = [with_start(lease, self._start, since=since) for lease in decided.take]
            soon |= await self._take(begun, others=by_range, group=group)
            if not damaged:  # a damaged lease may cover anything
                self._fill_gaps(gaps, group)
                soon |= bool(self._left)
        except _FAILURES as error:  # the store may be back at the next pass
            self._failed(error)
            return options.acquire_interval
        return pause(
            leases,
            me=me,
            now=listing.read_at,
            expiration=options.expiration,
            interval=options.acquire_interval,
            soon=soon,
        )

    async def _take(self, leases: Sequence[Lease], *, others: ByRange, group: asyncio.TaskGroup) -> bool:
        """Take leases, some at a time; return True where one should soon be tried again."""
        room = asyncio.Semaphore(_TAKES_AT_ONCE)

        async def take(lease: Lease) -> bool:
            async with room:
                taking = self._owned.take(lease, others=others, container=self._container, group=group)
                return await self._attempt_step(lease, taking)

        async with asyncio.TaskGroup() as takes:
            taken = [takes.create_task(take(lease)) for lease in leases]
        return any(task.result() for task in taken)

    async def _attempt_step(self, lease: Lease, step: Coroutine[Any, Any, None]) -> bool:
        """
        Do a step on one lease; return True where it failed and should soon be tried again.

        A failure is reported, and must not cost the leases behind it their turn.
        """
        try:
            await step
        except _FAILURES as error:
            self._owned.failed(lease.id, error)
            return error.retriable
        return False

    async def _ask(self, lease: Lease) -> None:
        with suppress(PreconditionFailed, NotFound):
            properties = with_handover_request(lease.properties, self._options.instance_name)
            await self._store.replace(with_properties(lease, properties), etag=lease.etag or "")

    def _fill_gaps(self, gaps: Sequence[FeedRange], group: asyncio.TaskGroup) -> None:
        """
        Have leases created of ranges that have none, beside the balancing: silent partitions must not delay it.

        Deleted leases come back once no owner can trust them any more; ranges that never had an owner need not wait.
        """
        now = asyncio.get_running_loop().time()
        deleted = tuple(rest for gap in gaps for rest in gap.without(self._left))
        if deleted != self._gaps:
            self._gaps, self._gaps_since = deleted, now
        repair = bool(deleted) and now - self._gaps_since > self._options.expiration.total_seconds()
        if (repair or self._left) and (self._filling is None or self._filling.done()):
            if repair:  # where it does not help, it is not tried at every pass
                self._gaps_since = now
            self._filling = group.create_task(self._fill(None if repair else self._left))

    async def _fill(self, only: Sequence[FeedRange] | None) -> None:
        try:
            await within_grace(self._bootstrap(only), asked=self._stopping, seconds=0)
        except TimeoutError:
            return
        except _FAILURES as error:
            self._failed(error)
        else:
            if only is None or len(self._left) < len(only):  # there are leases to take
                self._wake.set()

    async def _bootstrap(self, only: Sequence[FeedRange] | None = None) -> None:
        if proof := await self._earlier_life():
            if self._start is StartFrom.NOW:
                self._start = StartFrom.BEGINNING
            self._tell_lost(proof)
        left = await bootstrap(self._prefix, feed=self._feed, store=self._store, start=self._start, only=only)
        self._left = tuple(left)
        for feed_range, error in left.items():
            self._owned.failed(self._id_for(feed_range), error)
        # "Now" was the moment of the first leases. If these are lost, the next ones begin there, and skip nothing.
        if not self._began and (marker := await marker_of(self._prefix, self._store)) is not None:
            self._began = True
            if isinstance(began := marker.get(START), str):  # else another program created them
                self._start = start_from(began)

    def _tell_lost(self, reason: str) -> None:
        self._told, told = True, start_property(self._start, now=self._utcnow())
        self._notify(LeasesLost(owner=self._options.instance_name, start=told, reason=reason))

    async def _earlier_life(self) -> str | None:
        """Return what shows that this processor had leases, if there are none now; None if nothing does."""
        # First, as what shows an earlier life may be away, which must not delay a worker that has its leases
        if await self._has_leases():
            return None
        proof: str | None = "this worker has seen them" if self._began else None
        if proof is None and not self._told and self._options.earlier_life is not None:
            proof = await self._options.earlier_life()
        # Once more: a worker that shows life now may have created them meanwhile.
        return None if proof is None or await self._has_leases() else proof

    async def _has_leases(self) -> bool:
        marker = await marker_of(self._prefix, self._store)
        return marker is not None or bool((await self._store.list(f"{self._prefix}..")).documents)

    def _id_for(self, feed_range: FeedRange) -> str:
        return f"{self._prefix}..{feed_range.min}-{feed_range.max}"

    def _failed(self, error: BaseException) -> None:
        self._notify(LeasesBalanced(owner=self._options.instance_name, outcome="failed", error=error))

    async def _pause(self, seconds: float) -> None:
        jittered = seconds * random.uniform(1.0, 1.1)
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered):
                await self._wake.wait()
