"""
Watching: what each page of the feed costs, and what waits or is parked, whoever works on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from cosmos_outbox.changefeed import Lag, estimate_lag
from cosmos_outbox.errors import ParkingError, StoreUnavailable
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.ports import (
    ChangeFeed,
    ChangePage,
    LeaseStore,
    MonitoredContainer,
    ParkedStore,
    StartFrom,
)
from cosmos_outbox.records import Hook, WatchFailed
from cosmos_outbox.service.health import ParkedSeen, Vitals

_MOST_KEYS = 100  # told one by one
_OBSERVED_EVERY_SECONDS = 1.0
_WAITING, _PARKED = "what waits", "what is parked"


class WatchedFeed:
    """
    A change feed that tells what each page cost.
    """

    def __init__(self, feed: ChangeFeed, *, charged: Callable[[float], None]) -> None:
        self._feed, self._charged = feed, charged

    async def describe(self) -> MonitoredContainer:
        return await self._feed.describe()

    async def physical_ranges(self) -> tuple[FeedRange, ...]:
        return await self._feed.physical_ranges()

    async def partition_id(self, feed_range: FeedRange) -> str:
        return await self._feed.partition_id(feed_range)

    async def read_page(
        self,
        feed_range: FeedRange,
        *,
        container_rid: str,
        continuation: str | None,
        start: StartFrom | datetime,
        max_items: int,
    ) -> ChangePage:
        page = await self._feed.read_page(
            feed_range,
            container_rid=container_rid,
            continuation=continuation,
            start=start,
            max_items=max_items,
        )
        self._charged(page.request_charge)
        return page


async def watch(
    processor_name: str,
    *,
    feed: ChangeFeed,
    leases: LeaseStore,
    parked: ParkedStore | None,
    every: timedelta,
    vitals: Vitals,
    observe: Callable[[], None],
    notify: Hook,
) -> None:
    """
    Look at what waits and what is parked, whoever works on it, until cancelled.

    A look that fails changes nothing but is told of: what it would have seen counts as unknown after a while.

    Args:
        processor_name: of the leases.
        feed: of the container.
        leases: where they are.
        parked: where keys are parked, None where none ever is.
        every: time between two looks.
        vitals: told what was seen.
        observe: called every second, however long a look takes: that it sees nothing has to be told too.
        notify: hears of looks that fail.
    """

    async def look_at_waiting() -> None:
        waiting = await estimate_lag(processor_name, feed=feed, leases=leases)
        vitals.measured(waiting)
        tell_unseen(waiting, lambda error: failed(_WAITING, error))

    async def look_at_keys(store: ParkedStore) -> None:
        # Each time, for a container that replaces another has another resource id.
        scope = Scope(processor=processor_name, container=(await feed.describe()).container_rid)
        keys = ParkedKeys(store, scope=scope)
        vitals.seen_parked(await look_at_parked(keys, unreadable=lambda error: failed(_PARKED, error)))

    def failed(subject: str, error: Exception) -> None:
        notify(WatchFailed(subject=subject, error=error))

    async def attempt(subject: str, look: Awaitable[None]) -> None:
        # Broadly, for the documents that are read are anybody's, and who only looks must not end the worker:
        # whether it can work at all is for the processor to find out.
        try:
            await look
        except Exception as error:  # noqa: BLE001 - see above
            failed(subject, error)

    async def look() -> None:
        while True:
            await attempt(_WAITING, look_at_waiting())
            if parked is not None:
                await attempt(_PARKED, look_at_keys(parked))
            await asyncio.sleep(every.total_seconds())

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        while True:
            observe()
            await asyncio.sleep(_OBSERVED_EVERY_SECONDS)


def tell_unseen(lag: Lag, tell: Callable[[StoreUnavailable], None]) -> None:
    """
    Tell of each lease that could not be looked at, though the others could.
    """
    for lease, reason in lag.unseen.items():
        tell(StoreUnavailable(f"Lease {lease} could not be looked at: {reason}"))


async def look_at_parked(keys: ParkedKeys, *, unreadable: Callable[[ParkingError], None]) -> ParkedSeen:
    """
    Return what is parked; of very many keys, only how many they are.

    Args:
        keys: of the worker's processor.
        unreadable: told of each key whose document cannot be read; the others are returned.
    """
    damaged: dict[str, str] = {}

    def note(key: str, error: ParkingError) -> None:
        damaged[key] = str(error)
        unreadable(error)

    found = await keys.list(unreadable=note)
    return ParkedSeen(
        count=len(found) + len(damaged),
        keys=found if len(found) <= _MOST_KEYS else (),
        unreadable=damaged,
        events=None if damaged else sum(key.held for key in found),
    )
