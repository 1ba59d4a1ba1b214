"""
ChangeFeedProcessor: one of the workers that share the ranges of a container and hand its changes to a handler. The docstring of the package
says which module decides what.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed.balancing import plan, soon
from cosmos_outbox.changefeed.bootstrap import Bootstrap
from cosmos_outbox.changefeed.leases import (
    ByRange,
    Lease,
    readable,
    with_handover_request,
    with_properties,
    with_start,
)
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.owned_lease import Worker
from cosmos_outbox.changefeed.owned_leases import LeaseStatus, OwnedLeases
from cosmos_outbox.changefeed.range_coverage import EVERY_KEY, find_gaps
from cosmos_outbox.changefeed.read_ahead import Budget
from cosmos_outbox.errors import (
    ConfigurationError,
    ContainerRecreated,
    NotFound,
    PreconditionFailed,
    RangeGone,
    StoreError,
)
from cosmos_outbox.event_loop import raise_if_cancelled, watch_loop, within
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore
from cosmos_outbox.records import Hook, LeasesBalanced, guard, log_hook

# How many leases a worker takes at the same time. If it took a thousand leases at once, Cosmos DB would
# throttle the lease container, and other workers could not renew theirs.
_TAKES_AT_ONCE = 8
# After these errors `run` waits and tries again, because they pass or an operator removes their cause. At
# its start, before it takes the first leases, `run` raises the errors that will not pass by themselves.
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
        hooks: called with a record of everything that happens. A hook must not block. An exception of a hook is logged, and
            has no other effect. The record `LoopBlocked` comes on a thread of its own, every other record on the event loop's.
        utcnow: returns the current time, for the timestamps that .NET and Java read. No decision depends on it.
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
        self._store, self._options = leases, options
        self._notify = guard(*hooks)
        self._seen_at: datetime | None = None  # when this worker first listed the leases
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        worker = Worker(
            feed=feed,
            store=leases,
            handler=handler,
            options=options,
            budget=options.budget or Budget(options.memory_bytes, leases=lambda: len(self._owned.ids)),
            notify=self._notify,
            utcnow=utcnow,
        )
        self._owned = OwnedLeases(worker, split=self._wake.set)
        self._bootstrap = Bootstrap(worker, failed=self._owned.report_failure)
        self._gaps: tuple[FeedRange, ...] = ()  # ranges without a lease, because their leases were deleted
        self._gaps_since = 0.0
        self._filling: asyncio.Task[None] | None = None

    def status(self, *, stalled_after: timedelta = timedelta(seconds=60)) -> tuple[LeaseStatus, ...]:
        """
        Return the status of each lease of this worker. A lease that made no progress for `stalled_after` is stalled.

        Leases that this worker has failed to read, take or split for that long are included.
        """
        return self._owned.status(stalled_after=stalled_after)

    @property
    def leases_owned(self) -> int:
        """Return how many leases this worker owns."""
        return len(self._owned.ids)

    def stop(self) -> None:
        """Ask `run` to end. It finishes the current pages within the grace period, and releases all leases."""
        self._stopping.set()
        self._wake.set()
        self._owned.drain()

    async def run(self) -> None:
        """
        Process changes until `stop` is called. If it is cancelled instead, the leases are not released and have to
        expire.

        Raises:
            ConfigurationError: the containers, or the leases found there, cannot be used; the message says how to mend
                that.
            StoreError: the service refused the first requests for good. After a fault that passes, `run` tries again.
        """
        with watch_loop(self._notify, after_seconds=self._options.blocked_loop_after.total_seconds()):
            recreations = 0
            while not self._stopping.is_set():
                try:
                    await self._process()
                except* ContainerRecreated:
                    self._bootstrap.begin_again()
                    recreations += 1
                raise_if_cancelled()
                if recreations > 1 and not self._stopping.is_set():
                    # The service said at least twice that the container was recreated, so its answers may
                    # contradict each other. Wait, so that this loop does not send requests without a pause.
                    self._wake.clear()
                    await self._pause(self._options.backoff.delay(recreations))

    async def _process(self) -> None:
        self._seen_at, grace = None, self._options.grace_period.total_seconds()
        try:
            await within(0, self._bootstrap.prepare(), asked=self._stopping)
        except TimeoutError:
            return
        async with asyncio.TaskGroup() as group:
            with suppress(TimeoutError):
                await within(grace, self._balance_again(group), asked=self._stopping)

    async def _balance_again(self, group: asyncio.TaskGroup) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            await self._pause((await self._balance(group)).total_seconds())

    async def _balance(self, group: asyncio.TaskGroup) -> timedelta:
        """
        Run one balancing pass. Return the pause before the next pass.

        The pause is short if this worker waits for a lease that it asked for, or if a step failed that may succeed
        soon.
        """
        me, options, bootstrap = self._options.instance_name, self._options, self._bootstrap
        try:
            listing = await self._store.list(f"{bootstrap.prefix}..")
            since = self._seen_at = self._seen_at or listing.read_at
            self._notify(LeasesBalanced(owner=me, outcome="listed"))
            leases, damaged = readable(listing.documents)
            by_range = ByRange(leases)
            decided = plan(leases, options, running=self._owned.ids, now=listing.read_at)
            # Remove the ranges that have a lease by now from `left`. If such a lease is deleted later, it may
            # have had an owner, and `_fill_gaps` has to wait before it creates the lease again.
            gaps = find_gaps([EVERY_KEY], leases)
            bootstrap.left = tuple(left for left in bootstrap.left if any(gap.contains(left) for gap in gaps))
            for lease_id, error in damaged.items():  # report damaged leases, and go on with all other leases
                self._owned.report_failure(lease_id, error)
            self._owned.forget_failing_except(
                {*decided.within_reach, *damaged, *map(bootstrap.id_for, bootstrap.left)}
            )
            for lease in decided.hand_over:
                self._owned.hand_over(lease)
            self._owned.release_half_split(by_range)
            again = False
            for lease in decided.ask:
                again |= await self._attempt_step(lease, self._ask(lease))
            begun = [with_start(lease, bootstrap.start, since=since) for lease in decided.take]
            again |= await self._take(begun, others=by_range, group=group)
            if not damaged:  # a damaged lease may cover any range, so ranges without a lease are unknown
                self._fill_gaps(gaps, group)
                again |= bool(bootstrap.left)
        except _FAILURES as error:  # the lease container may be reachable at the next pass
            self._report_failure(error)
            return options.acquire_interval
        return soon(options) if again else decided.pause

    async def _take(self, leases: Sequence[Lease], *, others: ByRange, group: asyncio.TaskGroup) -> bool:
        """
        Take leases, a few at the same time. Return whether a lease could not be taken and should be tried again soon.
        """
        room = asyncio.Semaphore(_TAKES_AT_ONCE)

        async def take(lease: Lease) -> bool:
            async with room:
                taking = self._owned.take(
                    lease, others=others, container=self._bootstrap.container, group=group
                )
                return await self._attempt_step(lease, taking)

        async with asyncio.TaskGroup() as takes:
            taken = [takes.create_task(take(lease)) for lease in leases]
        return any(task.result() for task in taken)

    async def _attempt_step(self, lease: Lease, step: Coroutine[Any, Any, None]) -> bool:
        """
        Await one step for a lease, such as taking it. Return whether the step failed and should be tried again soon.

        A failure is reported and not raised, so that the worker goes on with its other leases.
        """
        try:
            await step
        except _FAILURES as error:
            self._owned.report_failure(lease.id, error)
            return error.retriable
        return False

    async def _ask(self, lease: Lease) -> None:
        with suppress(PreconditionFailed, NotFound):
            properties = with_handover_request(lease.properties, self._options.instance_name)
            await self._store.replace(with_properties(lease, properties), etag=lease.etag or "")

    def _fill_gaps(self, gaps: Sequence[FeedRange], group: asyncio.TaskGroup) -> None:
        """
        Start a task that creates leases for ranges that have none. The task runs beside the balancing, so that
        partitions that do not answer do not delay the balancing.

        If a lease was deleted, it is created again only when its last owner has surely stopped its work on it. Ranges that
        never had a lease get one at once.
        """
        now, left = asyncio.get_running_loop().time(), self._bootstrap.left
        deleted = tuple(rest for gap in gaps for rest in gap.without(left))
        if deleted != self._gaps:
            self._gaps, self._gaps_since = deleted, now
        repair = bool(deleted) and now - self._gaps_since > self._options.expiration.total_seconds()
        if (repair or left) and (self._filling is None or self._filling.done()):
            if repair:  # create deleted leases again only after another `expiration`, not in each pass
                self._gaps_since = now
            self._filling = group.create_task(self._fill(None if repair else left))

    async def _fill(self, only: Sequence[FeedRange] | None) -> None:
        try:
            await within(0, self._bootstrap.create(only), asked=self._stopping)
        except TimeoutError:
            return
        except _FAILURES as error:
            self._report_failure(error)
        else:
            if only is None or len(self._bootstrap.left) < len(only):  # new leases exist: take them at once
                self._wake.set()

    def _report_failure(self, error: BaseException) -> None:
        self._notify(LeasesBalanced(owner=self._options.instance_name, outcome="failed", error=error))

    async def _pause(self, seconds: float) -> None:
        jittered = seconds * random.uniform(1.0, 1.1)
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered):
                await self._wake.wait()
