"""A worker stops in time, even if its lease store or the change feed does not answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cosmos_outbox.errors import StoreUnavailable
from cosmos_outbox.ports import ChangeBatch, ChangePage
from cosmos_outbox.records import Record
from cosmos_outbox.retries import Backoff
from tests.support.changefeed_world import Faulty, World, ended

GRACE = timedelta(seconds=10)
RELEASE = GRACE / 2  # the time in which a worker must release its leases after the grace period


async def stopped(world: World) -> float:
    loop = asyncio.get_running_loop()
    before = loop.time()
    await world.stop("a")
    return loop.time() - before


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_worker_stops_in_time_while_the_lease_store_does_not_answer(hangs: bool):
    world, records = World(), list[Record]()
    store = Faulty(world.leases)
    await world.write_many(10)
    world.start("a", leases=store, grace_period=GRACE, hooks=[records.append])
    await world.until(world.all_handled)
    await asyncio.sleep(5)
    if hangs:
        store.hanging.add("replace")
    else:
        store.failing["replace"] = StoreUnavailable

    assert RELEASE.total_seconds() - 1 <= await stopped(world) <= RELEASE.total_seconds() + 1
    assert {"a": 1} == await world.owners(), "it expires by itself"
    assert 1 == len(ended(records))


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_worker_stops_in_time_while_reads_of_the_feed_fail_or_hang(hangs: bool):
    world = World()
    feed = Faulty(world.container)
    world.start("a", feed=feed, grace_period=GRACE)
    await asyncio.sleep(20)
    if hangs:
        feed.hanging.add("read_page")
    else:
        feed.failing["read_page"] = StoreUnavailable
    await asyncio.sleep(5 if hangs else 60)

    assert await stopped(world) <= GRACE.total_seconds() + 1
    assert {"free": 1} == await world.owners()


async def test_a_worker_stops_in_time_while_a_balancing_pass_hangs():
    world = World()
    store = Faulty(world.leases)
    world.start("a", leases=store, grace_period=GRACE)
    await asyncio.sleep(5)
    store.hanging.add("list")
    await asyncio.sleep(20)

    assert await stopped(world) <= GRACE.total_seconds() + 1
    assert {"free": 1} == await world.owners()


async def test_a_worker_stops_in_time_while_its_start_hangs():
    world = World()
    feed = Faulty(world.container)
    feed.hanging.add("physical_ranges")
    world.start("a", feed=feed, grace_period=GRACE)
    await asyncio.sleep(20)

    assert await stopped(world) <= 1


async def test_a_worker_stops_in_time_while_it_waits_for_the_next_poll():
    world = World()
    world.start("a", grace_period=GRACE, max_poll_interval=timedelta(minutes=10))
    await asyncio.sleep(300)

    assert await stopped(world) <= 1
    assert {"free": 1} == await world.owners()


async def test_a_worker_stops_in_time_while_a_page_fails_and_the_next_read_hangs():
    world = World()
    failed = asyncio.Event()

    class Feed(Faulty):
        async def read_page(self, *args, continuation: str | None, **kwargs) -> ChangePage:
            if continuation is not None:
                await asyncio.Event().wait()
            return await world.container.read_page(*args, continuation=continuation, **kwargs)

    async def fail(_: ChangeBatch) -> None:
        failed.set()
        raise RuntimeError("poison")

    await world.write("k")
    world.start(
        "a",
        feed=Feed(world.container),
        handler=fail,
        grace_period=GRACE,
        backoff=Backoff(initial_seconds=1000),
    )
    await failed.wait()
    await asyncio.sleep(1)

    assert await stopped(world) <= 1
    assert {"free": 1} == await world.owners()
