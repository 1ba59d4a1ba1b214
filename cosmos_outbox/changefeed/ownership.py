"""Ownership: the set of leases that this worker owns, and those it fails to take; the life of each one is its `tenure`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, KeysView
from contextlib import suppress
from datetime import datetime, timedelta

from cosmos_outbox.changefeed.coverage import located
from cosmos_outbox.changefeed.lease_status import LeaseStatus, Progress
from cosmos_outbox.changefeed.leases import ByRange, Lease, has_unfinished_split, token_of
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.owned_lease import OwnedLease, Worker, acquire
from cosmos_outbox.changefeed.reader import Budget
from cosmos_outbox.changefeed.tenure import CloseReason, serve
from cosmos_outbox.errors import ConfigurationError, NotFound, PreconditionFailed
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore, MonitoredContainer
from cosmos_outbox.records import Hook, LeaseMoved, LeasesBalanced


class OwnedLeases:
    """
    What a worker owns, by lease id; a lease enters when it was taken and leaves when the work on it has ended.

    Args:
        split: called when one of our leases was split, and its children can be taken.
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
        split: Callable[[], None],
    ) -> None:
        self._owned: dict[str, OwnedLease] = {}
        self._failing: dict[str, Progress] = {}
        self._worker = Worker(
            feed=feed,
            store=store,
            handler=handler,
            options=options,
            budget=Budget(options.memory_bytes, leases=lambda: len(self._owned)),
            notify=notify,
            utcnow=utcnow,
        )
        self._was_split = split
        self._draining = False

    @property
    def ids(self) -> KeysView[str]:
        """Return the ids of the leases, always as they are now."""
        return self._owned.keys()

    def status(self, *, stalled_after: timedelta) -> tuple[LeaseStatus, ...]:
        """Return how each lease is doing, with those that could not be worked on for so long."""
        now = asyncio.get_running_loop().time()
        found = {name: one for name, one in self._failing.items() if one.stalled(now, stalled_after)}
        found |= {name: owned.progress for name, owned in self._owned.items()}
        return tuple(
            LeaseStatus(
                lease=lease_id,
                token=token_of(lease_id),
                lag=progress.lag,
                idle_seconds=now - progress.moved_at,
                failed_attempts=progress.failed_attempts,
                error=repr(progress.error) if progress.error else None,
                draining=owned is not None and owned.drain.is_set(),
                stalled=progress.stalled(now, stalled_after),
            )
            for lease_id, progress in sorted(found.items())
            for owned in [self._owned.get(lease_id)]
        )

    def failed(self, lease_id: str, error: BaseException) -> None:
        """
        Report that a lease could not be read, taken or split, and remember since when nothing moves there.
        """
        progress = Progress(moved_at=asyncio.get_running_loop().time())
        self._failing.setdefault(lease_id, progress).failed(error)
        self._worker.notify(
            LeasesBalanced(owner=self._worker.options.instance_name, outcome="failed", error=error)
        )

    def forget_failing_except(self, lease_ids: Collection[str]) -> None:
        """Forget what failed with all leases but these: the others are gone, or another worker has them."""
        self._failing = {name: progress for name, progress in self._failing.items() if name in lease_ids}

    def drain(self) -> None:
        """Have all leases released, and take no others."""
        self._draining = True
        for owned in self._owned.values():
            owned.drain.set()

    def hand_over(self, lease: Lease) -> None:
        self._owned[lease.id].hand_over()

    def release_half_split(self, leases: ByRange) -> None:
        """
        Have those leases released of which another program created children: the next owner finishes the split.
        """
        for lease in leases.leases:
            owned = self._owned.get(lease.id)
            if owned is not None and not owned.splitting and has_unfinished_split(lease, leases):
                owned.hand_over()

    async def take(
        self,
        lease: Lease,
        *,
        others: ByRange,
        container: MonitoredContainer,
        group: asyncio.TaskGroup,
    ) -> None:
        """Acquire a lease, unless another worker was faster, and work on it in a task of the group."""
        if self._draining or lease.id in self._owned:
            return
        lease = lease if lease.range else await self._located(lease, others)
        if lease.range is None:
            return
        with suppress(PreconditionFailed, NotFound):
            owned = await acquire(lease, lease.range, self._worker, container=container)
            owned.unfinished_split = has_unfinished_split(lease, others)
            me = self._worker.options.instance_name
            self._worker.notify(
                LeaseMoved(lease=lease.id, owner=me, outcome="acquired", previous_owner=lease.owner)
            )
            work = self._work(owned)
            try:
                group.create_task(work)
            except RuntimeError:  # the group is ending; before Python 3.13 it leaves what it refuses open
                work.close()
                raise

    async def _located(self, lease: Lease, others: ByRange) -> Lease:
        """
        Return a lease that names its partition by its token alone with its range, if the partition answers.
        """
        taken = {other.range for other in others.leases}
        physical = [one for one in await self._worker.feed.physical_ranges() if one not in taken]
        (placed,), silent = await located([lease], physical, self._worker.feed)
        if placed.range is None:
            gone = ConfigurationError(
                f"Lease {lease.id!r} has no FeedRange and its physical partition {lease.token!r} is gone; "
                "delete the lease, its changes are then read again from the start of the new ranges."
            )
            self.failed(lease.id, next(iter(silent.values()), gone))
        return placed

    async def _work(self, owned: OwnedLease) -> None:
        lease_id = owned.lease.id
        # A lease that failed before stays "stalled" until a page is handled; a new attempt alone does not reset it.
        owned.progress = self._failing.pop(lease_id, owned.progress)
        # Entered here and not by `take`: a task that is cancelled before its first step leaves nothing behind.
        self._owned[lease_id] = owned
        if self._draining:
            owned.drain.set()
        try:
            closed = await serve(owned)
        finally:
            del self._owned[lease_id]
        self._worker.notify(closed)
        if closed.outcome != CloseReason.RANGE_GONE:
            return
        if closed.error is None:
            self._was_split()
        else:
            self._failing[lease_id] = owned.progress
            self.failed(lease_id, closed.error)
