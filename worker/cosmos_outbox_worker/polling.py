"""
Polling: what waits and what is parked, whichever worker owns the leases; and what each page of the feed costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from cosmos_outbox.background import raise_if_cancelled
from cosmos_outbox.changefeed import Lag
from cosmos_outbox.errors import OutboxError, StoreUnavailable
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.parking.first_run import note_first_run
from cosmos_outbox.ports import (
    ChangeFeed,
    ChangePage,
    MonitoredContainer,
    ParkedStore,
    Session,
    Subscription,
)
from cosmos_outbox.records import Hook, WatchFailed
from cosmos_outbox_worker.fleet import Fleet
from cosmos_outbox_worker.health import parked_seen
from cosmos_outbox_worker.worker_health import WorkerVitals

_OBSERVE_SECONDS = 1.0
_BEAT_SECONDS = 5.0  # a silent container must not delay the next round for long


class MeteredFeed:
    """A change feed that reports the charge of each page."""

    def __init__(self, feed: ChangeFeed, *, charged: Callable[[float], None]) -> None:
        self._feed, self._charged = feed, charged

    async def describe(self) -> MonitoredContainer:
        return await self._feed.describe()

    async def physical_ranges(self) -> tuple[FeedRange, ...]:
        return await self._feed.physical_ranges()

    async def partition_id(self, feed_range: FeedRange) -> str:
        return await self._feed.partition_id(feed_range)

    async def read_page(self, feed_range: FeedRange, **options: Any) -> ChangePage:
        page = await self._feed.read_page(feed_range, **options)
        self._charged(page.request_charge)
        return page


class WatchedSubscription:
    """A subscription that reports each answer of the broker."""

    def __init__(self, subscription: Subscription, *, reached: Callable[[], None]) -> None:
        self._subscription, self._reached = subscription, reached

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self._subscription.accept(wait_seconds)
        self._reached()
        return session


async def poll(
    health: WorkerVitals,
    *,
    lag: Callable[[], Awaitable[Lag]],
    scope: Callable[[], Awaitable[Scope]],
    parked: ParkedStore | None,
    fleet: Fleet,
    reach: Callable[[], Awaitable[None]],
    observe: Callable[[], None],
    notify: Hook,
) -> None:
    """
    Poll what waits and what is parked until cancelled. A poll that fails changes nothing and is reported.

    Args:
        health: says how often, and learns the results.
        lag: returns what waits.
        scope: returns whose parked keys are the processor's.
        parked: where keys are parked; None if the worker parks none.
        fleet: the workers of the processor; it gets this one's heartbeat.
        reach: opens a link to each topic; called until it succeeds once, for a worker is not ready before.
        observe: called every second, also while a poll gets no answer.
        notify: hears `WatchFailed`.
    """

    begun, noted = False, set[Scope]()

    async def poll_lag() -> Iterable[Exception]:
        nonlocal begun
        measured = await lag()
        health.measured(measured)
        begun = begun or bool(measured.leases)
        return [
            StoreUnavailable(f"The range of lease {lease} could not be read: {reason}")
            for lease, reason in measured.unseen.items()
        ]

    async def poll_keys() -> Iterable[Exception]:
        if parked is None:
            return ()
        ours = await scope()
        if begun and ours not in noted:
            await note_first_run(parked, ours)
            noted.add(ours)
        seen = parked_seen(await ParkedKeys(parked, scope=ours).list())
        health.seen_parked(seen)
        return seen.unreadable.values()

    beating = True

    async def poll_workers() -> Iterable[Exception]:
        nonlocal beating
        try:
            async with asyncio.timeout(_BEAT_SECONDS):
                health.met(await fleet.beat(health.heartbeat()))
        except (OutboxError, TimeoutError) as error:
            # Report it once: no task waits for it, and the other polls report the same outage.
            beating, news = False, beating
            return [error] if news else ()
        beating = True
        return ()

    reached = False
    health.unreached("it is tried now.")

    async def reach_topics() -> Iterable[Exception]:
        nonlocal reached
        if not reached:
            try:
                await reach()
            except OutboxError as error:
                health.unreached(str(error))
                raise
            reached = True
            health.unreached(None)
        return ()

    polls = {
        "whether events can be sent": reach_topics,
        "what waits": poll_lag,
        "what is parked": poll_keys,
        "the other workers": poll_workers,
    }
    await keep_polling(polls, every=health.poll_interval, observe=observe, notify=notify)


async def keep_polling(
    polls: Mapping[str, Callable[[], Awaitable[Iterable[Exception]]]],
    *,
    every: timedelta,
    observe: Callable[[], None],
    notify: Hook,
) -> None:
    """
    Poll until cancelled. A poll that fails is reported.

    Args:
        polls: by what each polls, for the report; it returns errors of parts.
        every: time between two rounds.
        observe: called every second, also while a poll gets no answer.
        notify: hears `WatchFailed`.
    """

    async def rounds() -> None:
        while True:
            for subject, poll_once in polls.items():
                try:
                    errors = await poll_once()
                # Broadly: any program may have written what is read, and polling must not end the work.
                except Exception as failure:  # noqa: BLE001 - see above
                    errors = [failure]
                raise_if_cancelled()
                for error in errors:
                    notify(WatchFailed(subject=subject, error=error))
            await asyncio.sleep(every.total_seconds())

    async with asyncio.TaskGroup() as group:
        group.create_task(rounds())
        while True:
            observe()
            await asyncio.sleep(_OBSERVE_SECONDS)
