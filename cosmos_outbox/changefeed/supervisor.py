"""
Supervisor: the life of one owned lease; the keeping of the lease and the work on it share one fate.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum

from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.progress import Progress
from cosmos_outbox.changefeed.pump import Pump
from cosmos_outbox.changefeed.splits import children_of, replace_lease
from cosmos_outbox.changefeed.tenure import Tenure
from cosmos_outbox.errors import LeaseLost, RangeGone, StoreError
from cosmos_outbox.instrumentation import Hook, LeaseClosed
from cosmos_outbox.leases import FeedRange, from_document
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore


class CloseReason(StrEnum):
    """
    Why the work on a lease ended.
    """

    STOPPED = "stopped"  # the worker stops; the lease is released
    HANDED_OVER = "handed over"  # another worker asked for it; the lease is released
    LOST = "lost"  # somebody else owns it, or trust ran out; nothing more was written
    RANGE_GONE = "range gone"  # the range was split or merged
    REPLACED = "replaced"  # the same, and the leases of the new ranges can be taken


async def supervise(
    tenure: Tenure,
    feed_range: FeedRange,
    *,
    feed: ChangeFeed,
    store: LeaseStore,
    handler: ChangeHandler,
    options: ProcessorOptions,
    progress: Progress,
    notify: Hook,
    replaced: bool = False,
) -> CloseReason:
    """
    Work on a lease until it is drained or lost, then give it up in the way that fits.

    A drained pump has `grace_period` to finish its page, then its handler is cancelled. When this task itself is
    cancelled the lease is left to expire.

    Args:
        replaced: somebody began to replace the lease; finish that and do nothing else.
    """
    pump = Pump(
        tenure,
        feed_range,
        feed=feed,
        handler=handler,
        options=options,
        progress=progress,
        notify=notify,
    )
    error: BaseException | None = None
    replacing = False
    try:
        if replaced:
            raise RangeGone  # noqa: TRY301 - the same end as if the pump had found out
        await _share_fate(tenure, pump, lease=tenure.lease.id, grace=options.grace_period.total_seconds())
        await _released(tenure, options)
        reason = CloseReason.HANDED_OVER if tenure.wanted else CloseReason.STOPPED
    except* LeaseLost as lost:
        reason, error = CloseReason.LOST, lost.exceptions[0]
    except* RangeGone:
        reason, tenure.replacing = CloseReason.RANGE_GONE, True
    if reason is CloseReason.RANGE_GONE:
        error, replacing = await _split(tenure, feed_range, feed, store)
    notify(LeaseClosed(lease=tenure.lease.id, owner=options.instance_name, reason=reason, error=error))
    return CloseReason.REPLACED if replacing else reason


async def _released(tenure: Tenure, options: ProcessorOptions) -> None:
    with suppress(TimeoutError):  # the store does not answer: the lease expires by itself
        async with asyncio.timeout(max(1.0, options.grace_period.total_seconds() / 2)):
            await tenure.release()


async def _share_fate(tenure: Tenure, pump: Pump, *, lease: str, grace: float) -> None:
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(tenure.keep())
        pumping = group.create_task(pump.run(), name=f"lease {lease}")  # the watchdog tells this name
        draining = group.create_task(tenure.drain.wait())
        await asyncio.wait({pumping, draining}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({pumping}, timeout=grace)
        for task in (keeping, pumping, draining):
            task.cancel()


async def _split(
    tenure: Tenure, feed_range: FeedRange, feed: ChangeFeed, store: LeaseStore
) -> tuple[Exception | None, bool]:
    """
    Put the children in place and return True with no error; where that fails, the parent is released or expires and its next owner tries again.
    """
    try:
        async with asyncio.timeout_at(tenure.trusted_until):
            await tenure.save()
            physical = await feed.physical_ranges()
            by_id = await store.partitioned_by_id()
            listing = await store.list(f"{tenure.lease.id.removesuffix(tenure.lease.token)}")
            others = [from_document(document) for document in listing.documents]
            children = children_of(tenure.lease, feed_range, physical, others=others, partitioned_by_id=by_id)
            if children is None:
                await tenure.release()
                return None, False
            await replace_lease(tenure.lease, children, store)
    except (LeaseLost, RangeGone, StoreError, TimeoutError) as error:  # RangeGone: split again meanwhile
        await tenure.release()
        return error, False
    return None, True
