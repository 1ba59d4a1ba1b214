"""
Holdings: the leases that this worker owns, each with the task that works on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, KeysView, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from cosmos_outbox.changefeed.budget import Budget
from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.partitions import identified
from cosmos_outbox.changefeed.progress import LeaseStatus, Progress
from cosmos_outbox.changefeed.splits import half_replaced
from cosmos_outbox.changefeed.supervisor import CloseReason, supervise
from cosmos_outbox.changefeed.tenure import Tenure, acquire
from cosmos_outbox.errors import ConfigurationError, NotFound, PreconditionFailed
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore
from cosmos_outbox.records import BalancingFailed, Hook, LeaseAcquired


class Holdings:
    """
    What a worker owns, by lease id; a lease enters when it was taken and leaves when the work on it has ended.

    Args:
        replaced: called when the leases of new ranges took the place of one of ours, and can be taken.
    """

    def __init__(
        self,
        feed: ChangeFeed,
        store: LeaseStore,
        handler: ChangeHandler,
        options: ProcessorOptions,
        *,
        notify: Hook,
        utcnow: Callable[[], datetime],
        replaced: Callable[[], None],
    ) -> None:
        self._feed, self._store, self._handler, self._options = feed, store, handler, options
        self._notify, self._utcnow, self._replaced = notify, utcnow, replaced
        self._held: dict[str, tuple[Tenure, Progress]] = {}
        self._failing: dict[str, Progress] = {}
        self._budget = Budget(options.memory_bytes, leases=lambda: len(self._held))
        self._draining = False

    @property
    def ids(self) -> KeysView[str]:
        """
        Return the ids of the leases, always as they are now.
        """
        return self._held.keys()

    def status(self, *, stalled_after: timedelta) -> tuple[LeaseStatus, ...]:
        """
        Return how each lease is doing, those included that could not be worked on for so long.
        """
        now = asyncio.get_running_loop().time()
        held = {lease_id: progress for lease_id, (_, progress) in self._held.items()}
        failing = {
            lease_id: progress
            for lease_id, progress in self._failing.items()
            if progress.stands_still(now, stalled_after)
        }
        return tuple(
            LeaseStatus(
                lease=lease_id,
                token=lease_id.rpartition("..")[2],
                continuation=self._held[lease_id][0].continuation if lease_id in held else None,
                lag=progress.lag,
                idle_seconds=now - progress.moved_at,
                failed_attempts=progress.failed_attempts,
                error=repr(progress.error) if progress.error else None,
                draining=lease_id in held and self._held[lease_id][0].drain.is_set(),
                stalled=progress.stands_still(now, stalled_after),
            )
            for lease_id, progress in sorted({**failing, **held}.items())
        )

    def failed(self, lease_id: str, error: BaseException) -> None:
        """
        Tell that a lease could not be read, taken or replaced, and remember since when nothing moves there.
        """
        progress = Progress(moved_at=asyncio.get_running_loop().time())
        self._failing.setdefault(lease_id, progress).failed(error)
        self._notify(BalancingFailed(owner=self._options.instance_name, error=error))

    def forget_failing_except(self, lease_ids: Collection[str]) -> None:
        """
        Forget what failed with all leases but these: the others are gone, or somebody works on them.
        """
        self._failing = {name: progress for name, progress in self._failing.items() if name in lease_ids}

    def drain(self) -> None:
        """
        Have all leases released, and take no others.
        """
        self._draining = True
        for tenure, _ in self._held.values():
            tenure.drain.set()

    def hand_over(self, lease: Lease) -> None:
        """
        Have a lease released for the worker that asked for it.
        """
        self._held[lease.id][0].hand_over()

    def release_replaced(self, leases: Sequence[Lease]) -> None:
        """
        Have those leases released inside which somebody created others: who takes them next finishes the replacement.
        """
        for lease in leases:
            tenure, _ = self._held.get(lease.id, (None, None))
            if tenure is None or tenure.replacing or lease.range is None:
                continue
            if half_replaced(lease, lease.range, leases):
                tenure.hand_over()

    async def take(
        self, lease: Lease, *, others: Sequence[Lease], container_rid: str, group: asyncio.TaskGroup
    ) -> None:
        """
        Acquire a lease, unless somebody else was faster, and work on it in a task of the group.
        """
        if self._draining or lease.id in self._held:
            return
        feed_range = lease.range or await self._range_of(lease, others)
        if feed_range is None:
            return
        with suppress(PreconditionFailed, NotFound):
            tenure = await acquire(
                replace(lease, range=feed_range),
                self._store,
                self._options,
                utcnow=self._utcnow,
                notify=self._notify,
            )
            self._notify(
                LeaseAcquired(lease=lease.id, owner=self._options.instance_name, previous_owner=lease.owner)
            )
            replaced = half_replaced(lease, feed_range, others)
            work = self._work(tenure, feed_range, container_rid=container_rid, replaced=replaced)
            try:
                group.create_task(work)
            except RuntimeError:  # the group is ending; before Python 3.13 it leaves what it refuses open
                work.close()
                raise

    async def _work(
        self,
        tenure: Tenure,
        feed_range: FeedRange,
        *,
        container_rid: str,
        replaced: bool,
    ) -> None:
        # Where the work failed before it began, it stands still until it moves and not until it is tried again.
        progress = self._failing.pop(tenure.lease.id, None) or Progress(
            moved_at=asyncio.get_running_loop().time()
        )
        # Entered here and not by whoever starts this: a task that is cancelled before its first step leaves nothing.
        self._held[tenure.lease.id] = (tenure, progress)
        if self._draining:
            tenure.drain.set()
        try:
            closed = await supervise(
                tenure,
                feed_range,
                container_rid=container_rid,
                feed=self._feed,
                store=self._store,
                handler=self._handler,
                options=self._options,
                progress=progress,
                budget=self._budget,
                notify=self._notify,
                replaced=replaced,
            )
        finally:
            del self._held[tenure.lease.id]
        self._notify(closed)
        if closed.reason == CloseReason.RANGE_GONE:
            if closed.error is None:
                self._replaced()
            else:
                self._failing[tenure.lease.id] = progress
                self.failed(tenure.lease.id, closed.error)

    async def _range_of(self, lease: Lease, others: Sequence[Lease]) -> FeedRange | None:
        """
        Return the range of the partition that a lease names by its token alone.
        """
        taken = {other.range for other in others}
        physical = await self._feed.physical_ranges()
        found = await identified((candidate for candidate in physical if candidate not in taken), self._feed)
        for candidate, partition_id in found.ids.items():
            if partition_id == lease.token:
                return candidate
        silent = next(iter(found.silent.values()), None)
        gone = ConfigurationError(
            f"Lease {lease.id!r} has no FeedRange and its physical partition {lease.token!r} is gone; "
            "delete the lease, its changes are then read again from the start of the new ranges."
        )
        self.failed(lease.id, silent or gone)
        return None
