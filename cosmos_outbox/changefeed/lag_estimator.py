"""
Lag estimator: count the transactions that wait for each lease of a processor, as .NET's ChangeFeedEstimator does.

Transactions (LSNs) are counted, not documents: from the LSN of the first waiting change to the newest LSN of the
partition. Unlike .NET, the estimator also returns how old the first waiting change is. If a range was split and no
worker has noticed it yet, the estimator reads the parts of the range, where .NET reports lag that does not exist.
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

_AT_ONCE = 8  # how many leases are read at the same time at most, to limit memory and requests
# After this many empty pages of a range, which take some seconds to read, the estimator stops and counts one waiting change.
_MOST_EMPTY_PAGES = 300

_Read = Callable[..., Awaitable[ChangePage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLag:
    """
    The lag of one lease: how many transactions wait in its range, and how old the oldest waiting change is.

    owner: the worker that owns the lease; None if the lease is free, also if it was not renewed in time.
    unseen: why the range, or a part of it, could not be read. Changes that may wait in it count as one transaction.
    ahead: the error of a lease that lies ahead of its range, as after a restore; its text says how to mend the lease.
        The changes that a worker may skip count as one transaction.
    standstill: why the owner makes no progress, as the owner wrote it into the lease.
    free_for: for how long no worker has written the lease; None if the lease has an owner.
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
    The lag of all ranges of a processor, except ranges whose leases are damaged.

    damaged: why a lease cannot be read, by the lease's id.
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
    Return how many transactions wait now for each lease of a processor. This costs one small read of the change feed
    for each lease, and more reads where changes lie far apart.

    A lease whose range is throttled, or does not answer, is reported as unseen. Ages are measured on the service's
    clock. A processor that never ran has no leases and so no lag.
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
            # If the range was split since the lease was created, read the parts that no child lease covers
            # yet: the changes of the other parts are counted with the child leases.
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
        except RangeGone:  # the range is being split at this moment, so it cannot be read
            page = None
        except StoreError as error:
            if not error.retriable:
                raise
            page, unseen = None, error_line(error)
        if page is None:  # it is unknown how many changes wait: count one, so that the lag is not zero
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
    Read pages from the lease's position until a page has a change or is the empty page at the end of the feed, and
    return that page. Return None if `_MOST_EMPTY_PAGES` pages had no change and the feed did not end.
    """
    continuation = lease.continuation
    for _ in range(_MOST_EMPTY_PAGES):
        page = await read(part, continuation=continuation, start=start_of(lease))
        if not page.skipped:
            return page
        continuation = page.continuation
    return None
