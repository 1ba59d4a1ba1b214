"""
A partition that is throttled, or does not answer, delays only its own lease: at a start, at a split, and in the lag estimator.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.changefeed.bootstrap import create_leases
from cosmos_outbox.errors import TooManyRequests
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.records import LeasesBalanced, Record
from tests.support.changefeed_world import World

RETRY_AFTER = 2.0


class Throttled:
    """
    A change feed that refuses each read of the ranges in `hot` with status 429. Each refusal takes `silence` seconds.
    """

    silence = 0.0

    def __init__(self, world: World) -> None:
        self._container = world.container
        self.hot: set[FeedRange] = set()
        self.calls: Counter[str] = Counter()
        self.refused_at: list[float] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if args and any(hot.contains(args[0]) for hot in self.hot):
                self.refused_at.append(asyncio.get_running_loop().time())
                await asyncio.sleep(self.silence)
                raise TooManyRequests(retry_after=RETRY_AFTER)
            return await getattr(self._container, name)(*args, **kwargs)

        return call


async def hot_world(*, ranges: int, hot: int) -> tuple[World, Throttled, FeedRange]:
    world = World(ranges=ranges)
    feed = Throttled(world)
    hot_range = (await world.container.physical_ranges())[hot]
    feed.hot.add(hot_range)
    return world, feed, hot_range


async def tokens(world: World) -> list[str]:
    return sorted(lease.token for lease in await world.all_leases())


async def test_a_start_asks_no_partition_for_its_id_if_all_leases_exist():
    world, feed, _ = await hot_world(ranges=10, hot=3)
    await world.create_leases()
    processor = world.start("b", feed=feed)

    assert await world.until(lambda: len(processor.status()) == 10) < 1
    assert 0 == feed.calls["partition_id"]
    await world.stop_all()


@pytest.mark.parametrize(("hot", "silence"), [({0}, 35.0), ({0, 1, 2}, 10.5), (set(range(9)), 35.0)])
async def test_ranges_that_do_not_answer_delay_no_other_range_during_bootstrap(hot, silence):
    """Reads of these ranges, one after another, take longer than the bootstrap lock lives (30 s)."""
    world = World(ranges=10)
    feed = Throttled(world)
    feed.silence = silence
    feed.hot |= {one for number, one in enumerate(await world.container.physical_ranges()) if number in hot}
    processor = world.start("a", feed=feed)

    async with asyncio.timeout(20):
        while {str(number) for number in {*range(10)} - hot} != set(await tokens(world)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await asyncio.sleep(75)
    assert len(hot) == sum(status.stalled for status in processor.status())
    feed.hot.clear()
    await world.write_many(40, keys=40)
    await world.until(world.all_handled, within=timedelta(minutes=1))
    await world.stop_all()


async def test_partitions_that_do_not_answer_delay_neither_balancing_nor_a_stop():
    world, feed, _ = await hot_world(ranges=8, hot=7)
    feed.hot |= set((await world.container.physical_ranges())[4:])
    feed.silence = 35.0
    listed = list[float]()

    def note(record: Record) -> None:
        if isinstance(record, LeasesBalanced) and record.outcome == "listed":
            listed.append(asyncio.get_running_loop().time())

    world.start("a", feed=feed, hooks=[note])
    await asyncio.sleep(600)
    stopped = asyncio.get_running_loop().time()
    await world.stop_all()

    assert asyncio.get_running_loop().time() - stopped < 1
    assert max(later - earlier for earlier, later in pairwise(listed)) < 15


async def test_a_range_without_a_lease_is_reported_as_stalled_within_a_minute():
    world, feed, hot = await hot_world(ranges=3, hot=1)
    processor = world.start("a", feed=feed)
    await asyncio.sleep(75)

    (stalled,) = [status for status in processor.status() if status.stalled]
    assert f"{hot.min}-{hot.max}" == stalled.token
    assert "TooManyRequests" in (stalled.error or "")
    feed.hot.clear()
    await asyncio.sleep(30)
    assert [False] * 3 == [status.stalled for status in processor.status()]
    await world.stop_all()


async def test_a_lease_that_is_created_late_begins_at_the_first_start_of_the_processor():
    world, feed, _ = await hot_world(ranges=4, hot=0)
    world.start("a", feed=feed, start=StartFrom.NOW)
    await asyncio.sleep(20)
    await world.write_many(40, keys=40)
    await asyncio.sleep(600)
    feed.hot.clear()

    assert await world.until(world.all_handled) < 30
    assert 1 == len({lease.properties["start"] for lease in await world.all_leases()})
    await world.stop_all()


async def test_bootstrap_retries_a_throttled_partition_after_its_retry_delay():
    """Bootstrap returns the ranges that still have no lease, so that their leases are created later."""
    world, feed, hot = await hot_world(ranges=3, hot=1)
    started = asyncio.get_running_loop().time()
    left = await create_leases("p", feed=feed, store=world.leases, start=StartFrom.BEGINNING)

    assert ({hot}, ["0", "2"]) == (set(left), await tokens(world))
    assert asyncio.get_running_loop().time() - started <= 6
    gaps = [later - earlier for earlier, later in zip(feed.refused_at, feed.refused_at[1:], strict=False)]
    assert len(gaps) >= 1
    assert min(gaps) >= RETRY_AFTER


async def test_a_lease_that_is_created_late_is_taken_before_the_next_balancing_pass():
    world, feed, _ = await hot_world(ranges=3, hot=1)
    processor = world.start("a", feed=feed, acquire_interval=timedelta(minutes=1))
    await asyncio.sleep(30)
    assert 2 == len(processor.status())
    feed.hot.clear()
    asked = feed.calls["partition_id"]
    await world.until(lambda: feed.calls["partition_id"] > asked)

    assert await world.until(lambda: len(processor.status()) == 3) < 5
    await world.stop_all()


async def test_retries_for_one_missing_lease_do_not_recreate_a_deleted_lease_early():
    world, feed, _ = await hot_world(ranges=3, hot=1)
    world.start("a", feed=feed)
    await asyncio.sleep(30)
    deleted = (await world.all_leases())[0]
    await world.leases.delete(deleted.id, deleted.id)
    await asyncio.sleep(40)
    assert ["2"] == await tokens(world)

    feed.hot.clear()
    await asyncio.sleep(80)
    assert ["0", "1", "2"] == await tokens(world)
    await world.stop_all()


async def test_a_split_does_not_wait_for_a_throttled_child():
    world = World(ranges=2)
    feed = Throttled(world)
    processor = world.start("a", feed=feed)
    await asyncio.sleep(20)
    world.container.split("0")
    _, high, _ = await world.container.physical_ranges()
    feed.hot.add(high)
    await asyncio.sleep(20)
    assert ["0", "1", "2"] == await tokens(world)
    assert "2" in {status.token for status in processor.status()}

    feed.hot.clear()
    await world.write_many(40, keys=40)
    assert await world.until(world.all_handled) < 2 * RETRY_AFTER + 1
    assert ["1", "2", "3"] == await tokens(world)
    await world.stop_all()
    assert world.first_copies_in_order()


async def test_a_split_with_a_throttled_child_is_finished_by_the_next_owner():
    world = World(ranges=2)
    feed = Throttled(world)
    world.start("a", feed=feed)
    await asyncio.sleep(20)
    world.container.split("0")
    _, high, _ = await world.container.physical_ranges()
    feed.hot.add(high)
    await asyncio.sleep(200)
    assert ["0", "1", "2"] == await tokens(world)
    await world.stop("a")
    feed.hot.clear()
    world.start("b", feed=feed)
    await asyncio.sleep(30)

    assert ["1", "2", "3"] == await tokens(world)
    await world.stop_all()


async def test_the_lag_estimator_names_the_lease_of_a_throttled_range():
    """The estimator still returns the lag of all other leases."""
    world, feed, _ = await hot_world(ranges=4, hot=2)
    await world.create_leases()
    await world.write_many(40, keys=40)
    lag = await estimate_lag("p", feed=feed, leases=world.leases)

    (name,) = lag.unseen
    assert name.endswith("..2")
    seen = {lease.token: lease for lease in lag.leases}
    assert (1, None, False) == (seen["2"].transactions, seen["2"].oldest_age, seen["2"].age_known)
    assert all(seen[token].transactions > 1 and seen[token].unseen is None for token in "013")


async def test_the_lag_estimator_waits_in_parallel_for_ranges_that_do_not_answer():
    world, feed, _ = await hot_world(ranges=8, hot=0)
    await world.create_leases()
    feed.hot |= set((await world.container.physical_ranges())[2:5])
    feed.silence = 35.0
    started = asyncio.get_running_loop().time()
    lag = await estimate_lag("p", feed=feed, leases=world.leases)

    assert asyncio.get_running_loop().time() - started < 36
    assert ["0", "2", "3", "4"] == sorted(name.rpartition("..")[2] for name in lag.unseen)


async def test_the_lag_estimator_sends_one_read_for_each_lease():
    world, feed, _ = await hot_world(ranges=20, hot=0)
    feed.hot.clear()
    await create_leases("p" + await _suffix(world), feed=feed, store=world.leases, start=StartFrom.BEGINNING)
    feed.calls.clear()
    await estimate_lag("p", feed=feed, leases=world.leases)

    assert {"describe": 1, "physical_ranges": 1, "read_page": 20} == feed.calls


@pytest.mark.parametrize("hot", [0, 1])
async def test_leases_that_name_no_range_are_handled_beside_a_throttled_range(hot: int):
    """Old versions of the .NET SDK write leases that do not say which range they cover."""
    world, feed, hot_range = await hot_world(ranges=2, hot=hot)
    await create_leases(
        "p" + await _suffix(world), feed=world.container, store=world.leases, start=StartFrom.BEGINNING
    )
    await world.forget_ranges()
    processor = world.start("a", feed=feed)
    await asyncio.sleep(30)
    assert {str(1 - hot)} == {status.token for status in processor.status() if not status.failed_attempts}
    lag = await estimate_lag("p", feed=feed, leases=world.leases)
    assert [str(hot)] == [name.rpartition("..")[2] for name in lag.unseen]

    feed.hot.discard(hot_range)
    await world.write_many(20)
    await world.until(world.all_handled, within=timedelta(minutes=1))
    await world.stop_all()


async def test_a_throttled_start_is_retried_after_the_retry_delay_of_the_service():
    world = World()
    asked: list[float] = []

    class Busy:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.container, name)

        async def describe(self) -> Any:
            asked.append(asyncio.get_running_loop().time())
            if len(asked) < 3:
                raise TooManyRequests(retry_after=7)
            return await world.container.describe()

    world.start("a", feed=Busy())  # type: ignore[arg-type] - it has every method
    await world.until(lambda: len(asked) == 3)
    await world.stop_all()

    assert min(asked[1] - asked[0], asked[2] - asked[1]) >= 7


async def _suffix(world: World) -> str:
    container = await world.container.describe()
    return f"{container.account_host}_{container.database_rid}_{container.container_rid}"
