"""
ChangeFeedProcessor: one worker of the group that shares the ranges of a container.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from cosmos_outbox.changefeed.balancing import plan, wished
from cosmos_outbox.changefeed.bootstrap import bootstrap, bootstrap_later, gaps_between, pinned
from cosmos_outbox.changefeed.grace import within_grace
from cosmos_outbox.changefeed.holdings import Holdings
from cosmos_outbox.changefeed.leases import Lease, lease_prefix, readable, with_properties
from cosmos_outbox.changefeed.naming import in_use
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.partitions import asked_to_wait
from cosmos_outbox.changefeed.progress import LeaseStatus
from cosmos_outbox.changefeed.watchdog import watched
from cosmos_outbox.errors import (
    ConfigurationError,
    ContainerRecreated,
    NotFound,
    OutboxError,
    PreconditionFailed,
    RangeGone,
    StoreError,
)
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore, MonitoredContainer, StartFrom
from cosmos_outbox.records import (
    BalancingFailed,
    Hook,
    LeasesListed,
    MonitoredContainerReplaced,
    Record,
    guarded,
    log_hook,
)

_Error = TypeVar("_Error", bound=BaseException)


def _utcnow() -> datetime:
    return datetime.now(UTC)


def _first_of(group: BaseExceptionGroup[BaseException], kind: type[_Error]) -> _Error | None:
    """
    Return an error of a kind out of nested groups.
    """
    for error in group.exceptions:
        found: object = _first_of(error, kind) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, kind):
            return found
    return None


def _raise_if_cancelled() -> None:
    """
    Raise a cancellation that a task group hid, because an error came out of it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


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
        hooks: called with a record of everything that happens; must not block. One that raises is logged and changes
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
        utcnow: Callable[[], datetime] = _utcnow,
    ) -> None:
        self._feed, self._store, self._options = feed, leases, options
        self._hooks = tuple(map(guarded, hooks))
        self._utcnow = utcnow
        self._start = options.start
        self._seen_at: datetime | None = None  # when the leases were first listed, on the service's clock
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._holdings = Holdings(
            feed, leases, handler, options, notify=self._notify, utcnow=utcnow, replaced=self._wake.set
        )
        self._gaps: tuple[FeedRange, ...] = ()
        self._gaps_since = 0.0
        # Never had a lease since this worker looked, for their partitions are silent.
        self._left: tuple[FeedRange, ...] = ()
        self._filling: asyncio.Task[None] | None = None

    def status(self, *, stalled_after: timedelta = timedelta(seconds=60)) -> tuple[LeaseStatus, ...]:
        """
        Return how each lease of this worker is doing; one that did not move for `stalled_after` is stalled.

        Among them are leases that this worker could not read, take or replace for so long.
        """
        return self._holdings.status(stalled_after=stalled_after)

    def stop(self) -> None:
        """
        Ask `run` to end: pages at hand are finished within the grace period and all leases released.
        """
        self._stopping.set()
        self._wake.set()
        self._holdings.drain()

    async def run(self) -> None:
        """
        Process changes until `stop` is called; cancelling it instead leaves the leases to expire.

        Raises:
            ConfigurationError: the containers, or the leases found there, cannot be used; the message names the fix.
            StoreError: the service refused the first requests for good (a passing fault is waited out).
        """
        with watched(self._notify, after_seconds=self._options.blocked_loop_after.total_seconds()):
            replacements = 0
            while not self._stopping.is_set():
                try:
                    await self._process()
                except* ContainerRecreated as replaced:
                    # Nothing is saved for the old container any more; its leases have other ids than the new ones.
                    error = _first_of(replaced, ContainerRecreated) or replaced
                    self._notify(MonitoredContainerReplaced(owner=self._options.instance_name, error=error))
                    # "Now" would skip what the new container got before anybody noticed.
                    self._start = StartFrom.BEGINNING
                    replacements += 1
                _raise_if_cancelled()
                if replacements > 1 and not self._stopping.is_set():
                    # An account that contradicts itself is not asked in a hot loop.
                    self._wake.clear()
                    await self._pause(self._options.backoff.delay(replacements))

    async def _process(self) -> None:
        """
        Process the container that is there now until `stop` is called or it is replaced by another.
        """
        self._seen_at = None
        try:
            container = await within_grace(self._prepare(), asked=self._stopping, seconds=0)
        except TimeoutError:
            return
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stopping.is_set():
                    self._wake.clear()
                    waiting = False
                    with suppress(TimeoutError):
                        waiting = await within_grace(
                            self._balance(container, group),
                            asked=self._stopping,
                            seconds=self._options.grace_period.total_seconds(),
                        )
                    await self._pause(self._options.acquire_interval.total_seconds() / (4 if waiting else 1))
        except BaseExceptionGroup as several:
            first = _first_of(several, ConfigurationError)
            if first is None:
                raise
            raise first from None

    async def _prepare(self) -> MonitoredContainer:
        """
        Return what names the container, once every range of it has a lease, but for those whose partitions are silent.
        """
        attempt = 0
        while True:
            try:
                container = await in_use(
                    await self._feed.describe(),
                    processor_name=self._options.processor_name,
                    leases=self._store,
                )
                await self._bootstrap(container)
            except (StoreError, RangeGone, ContainerRecreated) as error:
                if isinstance(error, StoreError) and not error.retriable:
                    raise
                attempt += 1
                self._failed(error)
                delay = self._options.backoff.delay(attempt, at_least=asked_to_wait([error]))
                await asyncio.sleep(delay)
            else:
                return container

    def _prefix(self, container: MonitoredContainer) -> str:
        return lease_prefix(
            self._options.processor_name,
            container.account_host,
            container.database_rid,
            container.container_rid,
        )

    async def _balance(self, container: MonitoredContainer, group: asyncio.TaskGroup) -> bool:
        """
        Do one balancing pass; return True where the next should come soon: leases asked for, or throttled, are to come.
        """
        try:
            listing = await self._store.list(f"{self._prefix(container)}..")
            since = self._seen_at = self._seen_at or listing.read_at
            self._notify(LeasesListed(owner=self._options.instance_name))
            leases, damaged = readable(listing.documents)
            for lease_id, error in damaged.items():  # must not end the work on the others
                self._holdings.failed(lease_id, error)
            to_be_had = {
                lease.id
                for lease in leases
                if lease.owner == self._options.instance_name
                or lease.expired(listing.read_at, self._options.expiration)
            }
            self._forget_left_except(gaps_between(leases))
            without_lease = map(partial(self._name_of, container), self._left)
            self._holdings.forget_failing_except({*to_be_had, *damaged, *without_lease})
            decided = plan(
                leases,
                me=self._options.instance_name,
                running=self._holdings.ids,
                now=listing.read_at,
                alive=1.5 * self._options.renew_interval,
                expiration=self._options.expiration,
                reservation=2 * self._options.acquire_interval,
            )
            for lease in decided.hand_over:
                self._holdings.hand_over(lease)
            self._holdings.release_replaced(leases)
            waiting = decided.waiting
            for lease in decided.ask:
                waiting |= await self._is_to_be_repeated(lease, self._ask(lease))
            for lease in decided.take:
                chosen = pinned(lease, self._start, since=since)
                taking = self._holdings.take(
                    chosen, others=leases, container_rid=container.container_rid, group=group
                )
                waiting |= await self._is_to_be_repeated(lease, taking)
            if not damaged:  # what cannot be read may cover anything
                self._fill_gaps(container, leases, group)
                waiting |= bool(self._left)
        except (StoreError, RangeGone) as error:  # the store may be back at the next pass
            self._failed(error)
            return False
        return waiting

    async def _is_to_be_repeated(self, lease: Lease, step: Coroutine[Any, Any, None]) -> bool:
        """
        Do a step on one lease; return True where it failed and should soon be tried again.

        A lease that cannot be written is told of, and must not cost those behind it their turn.
        """
        try:
            await step
        except (StoreError, RangeGone) as error:
            self._holdings.failed(lease.id, error)
            return error.retriable
        return False

    def _fill_gaps(
        self, container: MonitoredContainer, leases: Sequence[Lease], group: asyncio.TaskGroup
    ) -> None:
        """
        Have leases created of ranges that have none, beside the balancing: partitions that are silent must not hold it up.
        """
        deleted = self._is_to_be_repaired(gaps_between(leases))
        if (deleted or self._left) and (self._filling is None or self._filling.done()):
            if deleted:  # where it does not help, it is not tried at every pass
                self._gaps_since = asyncio.get_running_loop().time()
            self._filling = group.create_task(self._fill(container, deleted=deleted))

    def _is_to_be_repaired(self, gaps: Sequence[FeedRange]) -> bool:
        """
        Say whether leases were deleted, and no owner of a deleted one can trust it any more.
        """
        now = asyncio.get_running_loop().time()
        deleted = tuple(rest for gap in gaps for rest in gap.without(self._left))
        if deleted != self._gaps:
            self._gaps, self._gaps_since = deleted, now
        return bool(deleted) and now - self._gaps_since > self._options.expiration.total_seconds()

    async def _fill(self, container: MonitoredContainer, *, deleted: bool) -> None:
        try:
            await within_grace(
                self._repair(container) if deleted else self._create_left(container),
                asked=self._stopping,
                seconds=0,
            )
        except TimeoutError:
            return
        except (StoreError, RangeGone) as error:
            self._failed(error)

    async def _repair(self, container: MonitoredContainer) -> None:
        """
        Create leases where an operator deleted some.
        """
        await self._bootstrap(container)
        self._wake.set()

    async def _create_left(self, container: MonitoredContainer) -> None:
        """
        Try again to create the leases that `_bootstrap` left.

        They never had an owner that may still trust them, so no expiration is waited for.
        """
        created = await bootstrap_later(
            self._prefix(container), self._left, feed=self._feed, store=self._store, start=self._start
        )
        self._leave(container, created.left)
        if created.leases:
            self._wake.set()

    async def _bootstrap(self, container: MonitoredContainer) -> None:
        left = await bootstrap(self._prefix(container), feed=self._feed, store=self._store, start=self._start)
        self._leave(container, left)

    def _leave(self, container: MonitoredContainer, left: Mapping[FeedRange, OutboxError]) -> None:
        self._left = tuple(left)
        for feed_range, error in left.items():
            self._holdings.failed(self._name_of(container, feed_range), error)

    def _forget_left_except(self, gaps: Sequence[FeedRange]) -> None:
        """
        Forget that a range never had a lease once it has one: where that goes, it had an owner.
        """
        self._left = tuple(left for left in self._left if any(gap.contains(left) for gap in gaps))

    def _name_of(self, container: MonitoredContainer, feed_range: FeedRange) -> str:
        return f"{self._prefix(container)}..{feed_range.min}-{feed_range.max}"

    async def _ask(self, lease: Lease) -> None:
        with suppress(PreconditionFailed, NotFound):
            wish = with_properties(lease, wished(lease.properties, self._options.instance_name))
            await self._store.replace(wish, etag=lease.etag or "")

    def _failed(self, error: BaseException) -> None:
        self._notify(BalancingFailed(owner=self._options.instance_name, error=error))

    def _notify(self, record: Record) -> None:
        for hook in self._hooks:
            hook(record)

    async def _pause(self, seconds: float) -> None:
        jittered = seconds * random.uniform(0.9, 1.1)
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered):
                await self._wake.wait()
