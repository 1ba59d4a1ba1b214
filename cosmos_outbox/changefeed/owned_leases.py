"""
Owned leases: the leases that a worker owns, each from its acquisition to its release, split or loss. `balancing.py`
decides which leases a worker acquires or releases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from cosmos_outbox import errors
from cosmos_outbox.changefeed.leases import ByRange, Lease, from_document, token_of, with_signature
from cosmos_outbox.changefeed.owned_lease import OwnedLease, Progress, Worker
from cosmos_outbox.changefeed.polling import Pump
from cosmos_outbox.changefeed.range_coverage import locate
from cosmos_outbox.changefeed.splits import split
from cosmos_outbox.event_loop import within
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import MonitoredContainer
from cosmos_outbox.records import LeaseMoved, LeasesBalanced


class CloseReason(StrEnum):
    """Why a worker's work on a lease ended. The outcome of the record `LeaseMoved` states it."""

    STOPPED = "stopped"  # the worker stops; the lease is released
    # Another worker asked for the lease, or another program began to create the leases that replace it (its
    # children). The lease is released.
    HANDED_OVER = "handed over"
    # Another worker owns the lease, or the lease was not renewed in time. This worker writes nothing more into the lease.
    LOST = "lost"
    # The range was split or merged, and new leases replace the lease. If the work ended with an error, some of
    # the new leases are still missing, and the lease is released.
    RANGE_GONE = "range gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """
    A snapshot of the work on one lease, for health checks and status pages. The worker owns the lease, or has failed to
    take it.

    idle_seconds: how long ago the lease last made progress. The pause before the next poll of a range where nothing
        waits does not count.
    stalled: the lease has made no progress for longer than the caller's limit, because the handler or the service fails
        or hangs. It is also stalled if it can make no progress before an operator acts.
    """

    lease: str
    token: str
    lag: int | None
    idle_seconds: float
    failed_attempts: int
    error: str | None
    draining: bool
    stalled: bool


class OwnedLeases:
    """
    The leases that a worker owns, by id. A lease enters when the worker takes it, and leaves when the work on it has
    ended.

    Args:
        split: called when a lease was replaced by its children, so that the worker takes them without delay.
    """

    def __init__(self, worker: Worker, *, split: Callable[[], None]) -> None:
        self._worker = worker
        self._owned: dict[str, OwnedLease] = {}
        self._failing: dict[str, Progress] = {}
        self.ids = self._owned.keys()  # a view: it always has the ids of the leases that are owned now
        self._was_split = split
        self._draining = False

    def status(self, *, stalled_after: timedelta) -> tuple[LeaseStatus, ...]:
        """Return the status of each owned lease, and of each lease that could not be taken for `stalled_after`."""
        now = asyncio.get_running_loop().time()
        found = {name: one for name, one in self._failing.items() if one.stalled(now, stalled_after)}
        found |= {name: owned.progress for name, owned in self._owned.items()}
        return tuple(
            LeaseStatus(
                lease=lease_id,
                token=token_of(lease_id),
                lag=progress.lag,
                idle_seconds=max(0.0, now - progress.moved_at - progress.rest),
                failed_attempts=progress.failed_attempts,
                error=errors.error_line(progress.error) if progress.error else None,
                draining=owned is not None and owned.drain.is_set(),
                stalled=progress.stalled(now, stalled_after),
            )
            for lease_id, progress in sorted(found.items())
            for owned in [self._owned.get(lease_id)]
        )

    def report_failure(self, lease_id: str, error: BaseException) -> None:
        """
        Report that a lease could not be read, taken or split. Remember since when, because `status` reports it later.
        """
        progress = Progress(moved_at=asyncio.get_running_loop().time())
        self._failing.setdefault(lease_id, progress).note_failure(error)
        self._worker.notify(
            LeasesBalanced(owner=self._worker.options.instance_name, outcome="failed", error=error)
        )

    def forget_failing_except(self, lease_ids: Collection[str]) -> None:
        """
        Forget the failures of all leases except those given. The other leases are gone, or other workers own them.
        """
        self._failing = {name: progress for name, progress in self._failing.items() if name in lease_ids}

    def drain(self) -> None:
        """Ask the work on all owned leases to end, after which they are released. Acquire no more leases."""
        self._draining = True
        for owned in self._owned.values():
            owned.drain.set()

    def hand_over(self, lease: Lease) -> None:
        self._owned[lease.id].hand_over()

    def release_half_split(self, leases: ByRange) -> None:
        """
        Release each owned lease that another program began to replace by its children. The next owner finishes the split.
        """
        for lease in leases.leases:
            owned = self._owned.get(lease.id)
            if owned is not None and not owned.splitting and leases.has_unfinished_split(lease):
                owned.hand_over()

    async def take(
        self,
        lease: Lease,
        *,
        others: ByRange,
        container: MonitoredContainer,
        group: asyncio.TaskGroup,
    ) -> None:
        """Acquire a lease, and work on it in a task of the group. If another worker was faster, do nothing."""
        if self._draining or lease.id in self._owned:
            return
        lease = lease if lease.range else await self._locate(lease, others)
        if lease.range is None:
            return
        with suppress(errors.PreconditionFailed, errors.NotFound):
            owned = await acquire(lease, lease.range, self._worker, container=container)
            owned.unfinished_split = others.has_unfinished_split(lease)
            me = self._worker.options.instance_name
            self._worker.notify(
                LeaseMoved(lease=lease.id, owner=me, outcome="acquired", previous_owner=lease.owner)
            )
            work = self._work(owned)
            try:
                group.create_task(work)
            # The task group is ending and refuses the coroutine. Close the coroutine here: a group before
            # Python 3.13 does not, and Python would warn that it was never awaited.
            except RuntimeError:
                work.close()
                raise

    async def _locate(self, lease: Lease, others: ByRange) -> Lease:
        """
        If a lease has a token and no range, return it with the range of the physical partition that the token names. If
        that partition does not answer, return the lease as it is.
        """
        taken = {other.range for other in others.leases}
        physical = [one for one in await self._worker.feed.physical_ranges() if one not in taken]
        (placed,), silent = await locate([lease], physical, self._worker.feed)
        if placed.range is None:
            gone = errors.ConfigurationError(
                f"Lease {lease.id!r} has no FeedRange and its physical partition {lease.token!r} is gone. Delete the "
                "lease: workers then read its changes again from the start of the new ranges."
            )
            self.report_failure(lease.id, next(iter(silent.values()), gone))
        return placed

    async def _work(self, owned: OwnedLease) -> None:
        lease_id = owned.lease.id
        # Keep the progress of the failed attempts to take this lease: the lease stays "stalled" until a page
        # is handled, and not only until the next attempt.
        owned.progress = self._failing.pop(lease_id, owned.progress)
        # Register the lease here and not in `take`: a task that is cancelled before its first step does not
        # run its `finally`, and would leave the entry behind.
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
            self.report_failure(lease_id, closed.error)


async def acquire(
    lease: Lease, feed_range: FeedRange, worker: Worker, *, container: MonitoredContainer
) -> OwnedLease:
    """
    Acquire a lease: write this worker into it as its owner. The lease is free, expired, promised to this worker, or
    taken by force from a .NET processor.

    Raises:
        PreconditionFailed: another program wrote the lease since it was listed.
        NotFound: the lease was deleted.
        StoreError: it is unknown whether the write succeeded. The next balancing pass finds out.
    """
    sent_at, suspended = asyncio.get_running_loop().time(), worker.suspended()
    me = worker.options.instance_name
    taken = replace(lease, range=feed_range).with_changes(
        now=worker.utcnow(), owner=me, properties=with_signature(lease.properties, me)
    )
    document = await worker.store.replace(taken.raw, etag=lease.etag or "")
    owned = replace(from_document(document), range=feed_range)
    return OwnedLease(
        owned,
        feed_range,
        worker,
        container=container,
        acquired_at=sent_at,
        suspended_before=suspended,
    )


async def serve(owned: OwnedLease) -> LeaseMoved:
    """
    Work on a lease until it is drained or lost. Then release it, or create the leases that replace it after a split,
    and return a record that says how the work ended.

    When `drain` is set, the handler has `grace_period` to finish its page, and is cancelled after that. If the handler
    ignores the cancellation, this task waits until it ends, and does nothing else on the lease before. If this task
    itself is cancelled, it does not release the lease, which then expires.
    """
    error: BaseException | None = None
    try:
        if owned.unfinished_split:
            raise errors.RangeGone  # noqa: TRY301 - ends as if the pump had found that the range is gone
        await _keep_and_pump(owned)
        error = await _release(owned)
        reason = CloseReason.HANDED_OVER if owned.handover_requested else CloseReason.STOPPED
    except* errors.LeaseLost as lost:
        reason, error = CloseReason.LOST, lost.exceptions[0]
    except* errors.RangeGone:
        reason, owned.splitting = CloseReason.RANGE_GONE, True
    if reason is CloseReason.RANGE_GONE:
        error = await _split(owned)
    instance = owned.worker.options.instance_name
    return LeaseMoved(lease=owned.lease.id, owner=instance, outcome=reason, error=error)


async def _keep_and_pump(owned: OwnedLease) -> None:
    """Renew the lease and work on it, in two tasks at the same time. When one task ends, end the other task."""
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(owned.keep())
        # Name the task after the lease: the report of a blocked event loop shows the task's name.
        pumping = group.create_task(Pump(owned).run(), name=f"lease {owned.lease.id}")
        draining = group.create_task(owned.drain.wait())
        try:
            await asyncio.wait({pumping, draining}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({pumping}, timeout=owned.worker.options.grace_period.total_seconds())
        finally:
            owned.end()
        for task in (keeping, pumping, draining):
            task.cancel()


async def _release(owned: OwnedLease) -> Exception | None:
    """
    Save the position and give the lease up. If that fails, return the error: other workers can take the lease only when
    it expires.
    """
    seconds = max(1.0, owned.worker.options.grace_period.total_seconds() / 2)
    try:
        async with asyncio.timeout(seconds):
            await owned.release()
    except errors.LeaseLost as lost:
        return lost
    except TimeoutError:
        return errors.StoreUnavailable(
            f"Lease {owned.lease.id} could not be released in time; other workers can take it when it expires."
        )
    return None


async def _split(owned: OwnedLease) -> Exception | None:
    grace = owned.worker.options.grace_period.total_seconds()
    try:
        async with asyncio.timeout_at(owned.trusted_until):
            await within(grace, split(owned), asked=owned.drain)
    except (
        errors.ConfigurationError,
        errors.LeaseLost,
        errors.RangeGone,
        errors.StoreError,
        TimeoutError,
    ) as error:
        await _release(owned)
        return error
    return None
