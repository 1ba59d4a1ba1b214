"""
Partitions: which physical partition serves a range; asked of one at a time, so that one that is throttled holds up no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cosmos_outbox.backoff import Backoff
from cosmos_outbox.errors import OutboxError, RangeGone, StoreError
from cosmos_outbox.leases import FeedRange, Lease
from cosmos_outbox.ports import ChangeFeed

ASK_AGAIN = Backoff(maximum_seconds=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """
    The ids of partitions by their ranges, and why the rest did not tell theirs now.
    """

    ids: Mapping[FeedRange, str] = field(default_factory=dict)
    silent: Mapping[FeedRange, OutboxError] = field(default_factory=dict)


async def identified(ranges: Iterable[FeedRange], feed: ChangeFeed) -> Identified:
    """
    Ask each range once for the id of its partition.

    Raises:
        StoreError: one is refused for good.
    """
    ids: dict[FeedRange, str] = {}
    silent: dict[FeedRange, OutboxError] = {}
    for feed_range in ranges:
        try:
            ids[feed_range] = await feed.partition_id(feed_range)
        except RangeGone as error:
            silent[feed_range] = error
        except StoreError as error:
            if not error.retriable:
                raise
            silent[feed_range] = error
    return Identified(ids=ids, silent=silent)


async def located(
    leases: Sequence[Lease], physical: Sequence[FeedRange], feed: ChangeFeed
) -> tuple[tuple[Lease, ...], Mapping[FeedRange, OutboxError]]:
    """
    Give a lease without a range (written by an old .NET SDK) the range of the partition that its token names.

    Returns:
        The leases, those without a range whose partition is gone or did not answer, and the answers of these.
    """
    if all(lease.range for lease in leases):
        return tuple(leases), {}
    taken = {lease.range for lease in leases}
    found = await identified((candidate for candidate in physical if candidate not in taken), feed)
    by_id = {partition_id: feed_range for feed_range, partition_id in found.ids.items()}
    return tuple(
        lease if lease.range else replace(lease, range=by_id.get(lease.token)) for lease in leases
    ), found.silent


def asked_to_wait(errors: Iterable[BaseException]) -> float | None:
    """
    Return for how many seconds the service asks to be left alone, the longest of several answers.
    """
    return max(filter(None, (getattr(error, "retry_after", None) for error in errors)), default=None)
