"""
Range coverage: find the ranges that no lease covers, and the physical partition that serves a range. `bootstrap.py` creates the missing
leases.

Many partitions are asked at the same time, so that a partition that is throttled or does not answer delays no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.errors import OutboxError, RangeGone, StoreUnavailable
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed
from cosmos_outbox.retries import Backoff

EVERY_KEY = FeedRange(min="", max="FF")
ASK_AGAIN = Backoff(maximum_seconds=1.0)
ANSWER_SECONDS = 5.0
# The most partitions that are asked for their ids at the same time, because a container may have hundreds of partitions
_AT_ONCE = 32


def find_gaps(physical: Sequence[FeedRange], leases: Sequence[Lease]) -> tuple[FeedRange, ...]:
    """
    Return the parts of the physical ranges that no lease covers. Return none if a lease names no range, because that
    lease may cover any of them.
    """
    known = [lease.range for lease in leases if lease.range is not None]
    if len(known) < len(leases):
        return ()
    gaps = EVERY_KEY.without(known)
    return tuple(
        gap.intersection(candidate) for candidate in physical for gap in gaps if gap.overlaps(candidate)
    )


async def identify(
    ranges: Iterable[FeedRange], feed: ChangeFeed
) -> tuple[Mapping[FeedRange, str], Mapping[FeedRange, OutboxError]]:
    """
    Ask Cosmos DB once for the id of the partition of each range. Wait at most `ANSWER_SECONDS` for each answer.

    Returns:
        Two mappings by range: the ids of the partitions, and the errors of the partitions that did not answer, or that were
            split or merged in the meantime.

    Raises:
        OutboxError: a request was refused for good.
    """
    room = asyncio.Semaphore(_AT_ONCE)
    async with asyncio.TaskGroup() as group:
        asked = {one: group.create_task(_answer(one, feed, room)) for one in dict.fromkeys(ranges)}
    answers = {feed_range: task.result() for feed_range, task in asked.items()}
    silent = {one: answer for one, answer in answers.items() if isinstance(answer, OutboxError)}
    for error in silent.values():
        if not (error.retriable or isinstance(error, RangeGone)):
            raise error
    ids = {one: answer for one, answer in answers.items() if isinstance(answer, str)}
    # A split or merge between two answers can give two ranges the same partition id. Their leases would be
    # one document, and one range would have no lease. So use the id for neither range.
    named = Counter(ids.values())
    for one in [one for one, partition in ids.items() if named[partition] > 1]:
        silent[one] = RangeGone(
            f"Partition {ids.pop(one)} was merged or split while partitions were asked for their ids."
        )
    return ids, silent


async def _answer(feed_range: FeedRange, feed: ChangeFeed, room: asyncio.Semaphore) -> str | OutboxError:
    async with room:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await feed.partition_id(feed_range)
        except OutboxError as error:
            return error
        except TimeoutError:
            return StoreUnavailable(f"The partition did not return its id within {ANSWER_SECONDS:g} s.")


async def locate(
    leases: Sequence[Lease], physical: Sequence[FeedRange], feed: ChangeFeed
) -> tuple[tuple[Lease, ...], Mapping[FeedRange, OutboxError]]:
    """
    Find the range of each lease that names none, as old .NET SDKs write leases: it is the range of the partition that
    the lease's token names.

    Returns:
        All leases, and the errors of the partitions that did not answer. A lease stays without a range if its partition
            is gone or did not answer.
    """
    if all(lease.range for lease in leases):
        return tuple(leases), {}
    taken = {lease.range for lease in leases}
    ids, silent = await identify((candidate for candidate in physical if candidate not in taken), feed)
    by_id = {partition_id: feed_range for feed_range, partition_id in ids.items()}
    placed = tuple(lease if lease.range else replace(lease, range=by_id.get(lease.token)) for lease in leases)
    return placed, silent


def retry_seconds(errors: Iterable[BaseException]) -> float | None:
    """
    Return the longest time, in seconds, that the service asked to wait in one of these errors; None if it named none.
    """
    return max(filter(None, (getattr(error, "retry_after", None) for error in errors)), default=None)
