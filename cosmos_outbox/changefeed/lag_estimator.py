"""
Lag estimator: how many changes wait, for each lease of all workers; as .NET's ChangeFeedEstimator counts.

The count is of transactions (LSNs), not documents: from the LSN of the first waiting change to the newest of the partition.
Beyond .NET it returns how old that change is, and follows a split that no worker noticed yet instead of reporting phantom
lag for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from cosmos_outbox.changefeed.lease_ahead import AHEAD, ahead_of
from cosmos_outbox.changefeed.leases import STANDSTILL, Lease, cut, lease_prefix, readable, start_of
from cosmos_outbox.changefeed.options import EXPIRATION
from cosmos_outbox.changefeed.range_coverage import locate
from cosmos_outbox.changefeed.read_ahead import lsn_of, newest_below
from cosmos_outbox.errors import RangeGone, StoreError, error_line
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangePage, LeaseStore

_AT_ONCE = 8  # pages in memory at once; each holds one change
_MOST_EMPTY_PAGES = 300  # this takes some seconds; a worker writes a checkpoint after as many empty pages

_Read = Callable[..., Awaitable[ChangePage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLag:
    """
    The lag of one lease: transactions that wait in its range, and the age of the oldest unread change.

    owner: None where the lease is free, as one that was not renewed in time.
    unseen: why the range, or a part of it, could not be read; changes that may wait there count as one transaction.
    ahead: the error of a lease that lies ahead of its range, as after a restore, with the fix; changes that may be skipped
        count as one transaction.
    standstill: why the owner makes no progress, as it wrote into the lease.
    free_for: where there is no owner, for how long no worker has written the lease.
    """

    lease: str
    token: str
    owner: str | None
    transactions: int
    oldest_age: timedelta | None
    unseen: str | None = None
    ahead: str | None = None
    standstill: str | None = None
    free_for: timedelta | None = None

    @property
    def age_known(self) -> bool:
        return self.oldest_age is not None or not self.transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """
    The lag of all ranges of a processor, except those whose leases are damaged.

    damaged: by the id of a lease that cannot be read, why.
    """

    leases: tuple[LeaseLag, ...]
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def transactions(self) -> int:
        return sum(lease.transactions for lease in self.leases)

    @property
    def oldest_age(self) -> timedelta | None:
        return max((lease.oldest_age for lease in self.leases if lease.oldest_age is not None), default=None)

    @property
    def age_known(self) -> bool:
        return self.oldest_age is not None or not self.transactions

    @property
    def ahead(self) -> Mapping[str, str]:
        return {lease.lease: lease.ahead for lease in self.leases if lease.ahead is not None}

    @property
    def unseen(self) -> Mapping[str, str]:
        return {lease.lease: lease.unseen for lease in self.leases if lease.unseen is not None}


async def estimate_lag(
    processor_name: str, *, feed: ChangeFeed, leases: LeaseStore, expiration: timedelta = EXPIRATION
) -> Lag:
    """
    Return what waits now. It costs one small read of the feed for each lease, and more where changes lie far apart.

    A lease whose range is throttled, or does not answer, is reported as unseen. Ages are measured on the service's clock. A
    processor that never ran has no leases, so no lag.
    """
    container = await feed.describe()
    listing = await leases.list(f"{lease_prefix(processor_name, container)}..")
    readable_ones, damaged = readable(listing.documents)
    physical = await feed.physical_ranges()
    found, _ = await locate(readable_ones, physical, feed)
    read = partial(feed.read_page, container_rid=container.container_rid, max_items=1)
    room = asyncio.Semaphore(_AT_ONCE)

    async def lag_of(lease: Lease) -> LeaseLag:
        async with room:
            # If the range was split since, read its parts, without those that child leases cover already.
            parts = [] if lease.range is None else cut(lease, lease.range, physical, found)[1]
            lag = await _lag_of(lease, parts, read, listing.read_at)
        free = lease.expired(listing.read_at, expiration)
        since = listing.read_at - lease.written_at()
        return replace(lag, owner=None, standstill=None, free_for=since) if free else lag

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(lag_of(lease)) for lease in found]
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return Lag(
        leases=tuple(task.result() for task in tasks),
        damaged={lease_id: str(error) for lease_id, error in damaged.items()},
    )


async def _lag_of(lease: Lease, parts: Sequence[FeedRange], read: _Read, now: datetime) -> LeaseLag:
    transactions, ages, unseen, ahead = 0, [], None, None
    if AHEAD in lease.properties:
        ahead = ahead_of(lease.id, lease.continuation, lsn_of(lease.properties[AHEAD]))
    if lease.range is None:
        transactions, unseen = 1, f"The partition {lease.token!r} is gone, or does not answer."
    for part in parts:
        try:
            page = await _first_change(read, part, lease)
        except RangeGone:  # the range is being split this moment
            page = None
        except StoreError as error:
            if not error.retriable:
                raise
            page, unseen = None, error_line(error)
        if page is None:  # there may be work; how much is not known
            transactions += 1
        elif page.documents:
            first = page.documents[0]
            latest = page.latest_lsn if page.latest_lsn is not None else first["_lsn"]
            transactions += max(1, latest - first["_lsn"] + 1)
            ages.append(max(timedelta(0), now - datetime.fromtimestamp(first["_ts"], UTC)))
        elif (newest := newest_below(lease.continuation, page)) is not None:
            ahead = ahead_of(lease.id, lease.continuation, newest)
    return LeaseLag(
        lease=lease.id,
        token=lease.token,
        owner=lease.owner,
        transactions=max(1, transactions) if ahead else transactions,
        oldest_age=max(ages, default=None),
        unseen=unseen,
        ahead=str(ahead) if ahead else None,
        standstill=lease.properties.get(STANDSTILL),
    )


async def _first_change(read: _Read, part: FeedRange, lease: Lease) -> ChangePage | None:
    """
    Return the first page that has a change, or the empty page at the end. Return None where neither was reached.
    """
    continuation = lease.continuation
    for _ in range(_MOST_EMPTY_PAGES):
        page = await read(part, continuation=continuation, start=start_of(lease))
        if not page.skipped:
            return page
        continuation = page.continuation
    return None
