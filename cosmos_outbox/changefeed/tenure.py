"""
Tenure: the life of one owned lease, from its acquisition to its end: kept and worked on, then released, split or lost.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from cosmos_outbox.changefeed.grace import within_grace
from cosmos_outbox.changefeed.owned_lease import OwnedLease
from cosmos_outbox.changefeed.pump import Pump
from cosmos_outbox.changefeed.splits import split
from cosmos_outbox.errors import ConfigurationError, LeaseLost, RangeGone, StoreError, StoreUnavailable
from cosmos_outbox.records import LeaseMoved


class CloseReason(StrEnum):
    """Why the work on a lease ended."""

    STOPPED = "stopped"  # the worker stops; the lease is released
    # Another worker asked for it, or its split is to be finished; the lease is released
    HANDED_OVER = "handed over"
    LOST = "lost"  # another worker owns it, or trust ran out; nothing more was written
    RANGE_GONE = "range gone"  # its children took its place; with an error: not yet, the lease is released


async def serve(owned: OwnedLease) -> LeaseMoved:
    """
    Work on a lease until it is drained or lost, give it up in the way that fits, and return how it ended.

    A drained pump has `grace_period` to finish its page, then its handler is cancelled. If the handler goes on all the
    same, this task waits for it, and does nothing else on the lease before it ends. If this task itself is cancelled,
    the lease expires by itself.
    """
    error: BaseException | None = None
    try:
        if owned.unfinished_split:
            raise RangeGone  # noqa: TRY301 - the same end as if the pump had found out
        await _keep_and_pump(owned)
        error = await _release(owned)
        reason = CloseReason.HANDED_OVER if owned.handover_requested else CloseReason.STOPPED
    except* LeaseLost as lost:
        reason, error = CloseReason.LOST, lost.exceptions[0]
    except* RangeGone:
        reason, owned.splitting = CloseReason.RANGE_GONE, True
    if reason is CloseReason.RANGE_GONE:
        error = await _split(owned)
    instance = owned.worker.options.instance_name
    return LeaseMoved(lease=owned.lease.id, owner=instance, outcome=reason, error=error)


async def _keep_and_pump(owned: OwnedLease) -> None:
    """Keep the lease and work on it; the end of one is the end of the other."""
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(owned.keep())
        # The watchdog reports this name.
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
    """Save what is done and give the lease up; return why that failed: then it expires by itself."""
    seconds = max(1.0, owned.worker.options.grace_period.total_seconds() / 2)
    try:
        async with asyncio.timeout(seconds):
            await owned.release()
    except LeaseLost as lost:
        return lost
    except TimeoutError:
        return StoreUnavailable(
            f"Lease {owned.lease.id} could not be released in time; it expires by itself."
        )
    return None


async def _split(owned: OwnedLease) -> Exception | None:
    grace = owned.worker.options.grace_period.total_seconds()
    try:
        async with asyncio.timeout_at(owned.trusted_until):
            await within_grace(split(owned), asked=owned.drain, seconds=grace)
    except (ConfigurationError, LeaseLost, RangeGone, StoreError, StoreUnavailable, TimeoutError) as error:
        await _release(owned)
        return error
    return None
