"""
Supervisor: the life of one owned lease; the keeping of the lease and the work on it share one fate.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum

from cosmos_outbox.changefeed.budget import Budget
from cosmos_outbox.changefeed.grace import within_grace
from cosmos_outbox.changefeed.leases import from_document, range_of
from cosmos_outbox.changefeed.options import ProcessorOptions
from cosmos_outbox.changefeed.partitions import ASK_AGAIN, asked_to_wait, identified
from cosmos_outbox.changefeed.progress import Progress
from cosmos_outbox.changefeed.pump import Pump
from cosmos_outbox.changefeed.splits import children_of, replace_lease, to_identify
from cosmos_outbox.changefeed.tenure import Tenure
from cosmos_outbox.errors import ConfigurationError, LeaseLost, OutboxError, RangeGone, StoreError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangeHandler, LeaseStore
from cosmos_outbox.records import Hook, LeaseClosed

_TO_RELEASE_SECONDS = 5  # left of the trust, to release a lease that cannot be replaced now


class CloseReason(StrEnum):
    """
    Why the work on a lease ended.
    """

    STOPPED = "stopped"  # the worker stops; the lease is released
    HANDED_OVER = "handed over"  # another worker asked for it, or it is to be replaced; the lease is released
    LOST = "lost"  # somebody else owns it, or trust ran out; nothing more was written
    # Leases of the new ranges took its place; with an error: not yet, it is released
    RANGE_GONE = "range gone"


async def supervise(
    tenure: Tenure,
    feed_range: FeedRange,
    *,
    container_rid: str,
    feed: ChangeFeed,
    store: LeaseStore,
    handler: ChangeHandler,
    options: ProcessorOptions,
    progress: Progress,
    budget: Budget,
    notify: Hook,
    replaced: bool = False,
) -> LeaseClosed:
    """
    Work on a lease until it is drained or lost, give it up in the way that fits, and return how it ended.

    A drained pump has `grace_period` to finish its page, then its handler is cancelled. A handler that goes on all the
    same is waited for: nothing else is done on the lease here before it is over. When this task itself is cancelled
    the lease is left to expire.

    Args:
        replaced: somebody began to replace the lease; finish that and do nothing else.
    """
    pump = Pump(
        tenure,
        feed_range,
        container_rid=container_rid,
        feed=feed,
        handler=handler,
        options=options,
        progress=progress,
        budget=budget,
        notify=notify,
    )
    error: BaseException | None = None
    try:
        if replaced:
            raise RangeGone  # noqa: TRY301 - the same end as if the pump had found out
        await _share_fate(tenure, pump, grace=options.grace_period.total_seconds())
        await _release(tenure, options)
        reason = CloseReason.HANDED_OVER if tenure.wanted else CloseReason.STOPPED
    except* LeaseLost as lost:
        reason, error = CloseReason.LOST, lost.exceptions[0]
    except* RangeGone:
        reason, tenure.replacing = CloseReason.RANGE_GONE, True
    if reason is CloseReason.RANGE_GONE:
        error = await _replace(tenure, feed_range, feed, store, options)
    return LeaseClosed(lease=tenure.lease.id, owner=options.instance_name, reason=reason, error=error)


async def _share_fate(tenure: Tenure, pump: Pump, *, grace: float) -> None:
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(tenure.keep())
        # The watchdog tells this name.
        pumping = group.create_task(pump.run(), name=f"lease {tenure.lease.id}")
        draining = group.create_task(tenure.drain.wait())
        try:
            await asyncio.wait({pumping, draining}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({pumping}, timeout=grace)
        finally:
            tenure.end()
        for task in (keeping, pumping, draining):
            task.cancel()


async def _release(tenure: Tenure, options: ProcessorOptions) -> None:
    with suppress(TimeoutError):  # the store does not answer: the lease expires by itself
        async with asyncio.timeout(max(1.0, options.grace_period.total_seconds() / 2)):
            await tenure.release()


async def _replace(
    tenure: Tenure, feed_range: FeedRange, feed: ChangeFeed, store: LeaseStore, options: ProcessorOptions
) -> Exception | None:
    """
    Put leases of the new ranges in place of this one; where that fails, release it for a next try and return why.
    """
    try:
        async with asyncio.timeout_at(tenure.trusted_until):
            await within_grace(
                _put_children(tenure, feed_range, feed, store),
                asked=tenure.drain,
                seconds=options.grace_period.total_seconds(),
            )
    except (ConfigurationError, LeaseLost, RangeGone, StoreError, TimeoutError) as error:
        await _release(tenure, options)
        return error
    return None


async def _put_children(tenure: Tenure, feed_range: FeedRange, feed: ChangeFeed, store: LeaseStore) -> None:
    """
    Create all children and delete the parent; asked again, as soon as the service allows, while there is time for it.
    """
    loop = asyncio.get_running_loop()
    attempt = 0
    await tenure.save()
    while True:
        try:
            silent = await _put_those_that_answer(tenure, feed_range, feed, store)
        except StoreError as error:
            if not error.retriable:
                raise
            silent = [error]
        if not silent:
            return
        attempt += 1
        delay = ASK_AGAIN.delay(attempt, at_least=asked_to_wait(silent))
        if loop.time() + delay > tenure.trusted_until - _TO_RELEASE_SECONDS:
            raise silent[0]
        await asyncio.sleep(delay)


async def _put_those_that_answer(
    tenure: Tenure, feed_range: FeedRange, feed: ChangeFeed, store: LeaseStore
) -> list[OutboxError]:
    """
    Create the children whose partitions tell their ids, and delete the parent when that is all; return what the others say.
    """
    physical = await feed.physical_ranges()
    by_id = await store.partitioned_by_id()
    listing = await store.list(tenure.lease.id.removesuffix(tenure.lease.token))
    # Only those of this range: a lease of another that is damaged must not hold this one up.
    others = [
        from_document(document)
        for document in listing.documents
        if (found := range_of(document)) and found.overlaps(feed_range)
    ]
    asked = await identified(to_identify(tenure.lease, feed_range, physical, others), feed)
    children = children_of(
        tenure.lease, feed_range, physical, ids=asked.ids, others=others, partitioned_by_id=by_id
    )
    if children is None:
        raise RangeGone(f"The range of {tenure.lease.id} cannot be read, but one partition serves it.")
    if asked.silent and [feed_range] == list(asked.silent):
        return list(asked.silent.values())  # whether the lease is to be replaced at all is not known yet
    await replace_lease(
        tenure.lease, children, store, ensure_trusted=tenure.ensure_trusted, complete=not asked.silent
    )
    return list(asked.silent.values())
