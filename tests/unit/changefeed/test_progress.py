"""Which leases count as stalled: those that should make progress and do not. An idle lease does not count."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from cosmos_outbox.changefeed import ChangeFeedProcessor, LeaseStatus
from cosmos_outbox.changefeed.leases import STANDSTILL
from cosmos_outbox.errors import AccessDenied, InvalidRequest, StoreUnavailable
from cosmos_outbox.ports import ChangeBatch
from tests.support.changefeed_world import Faulty, World


def only(processor: ChangeFeedProcessor) -> LeaseStatus:
    (status,) = processor.status(stalled_after=timedelta(seconds=60))
    return status


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_lease_whose_reads_fail_or_hang_is_stalled_after_the_limit(hangs: bool):
    world = World()
    feed = Faulty(world.container)
    processor = world.start("a", feed=feed)
    await asyncio.sleep(30)
    if hangs:
        feed.hanging.add("read_page")
    else:
        feed.failing["read_page"] = StoreUnavailable
    await asyncio.sleep(55)
    assert not only(processor).stalled
    await asyncio.sleep(10)

    status = only(processor)
    assert (True, "0") == (status.stalled, status.token)
    assert ("StoreUnavailable" in (status.error or "")) != hangs
    await world.kill("a")


async def test_a_lease_that_works_through_a_long_lag_is_not_stalled():
    world = World()

    async def slow(batch: ChangeBatch) -> None:
        await asyncio.sleep(20)
        await world.handle(batch)

    await world.write_many(10)
    processor = world.start("a", handler=slow, max_items=1)
    for left in (8, 6, 4):
        await asyncio.sleep(40)
        status = only(processor)
        assert (False, True) == (status.stalled, left <= (status.lag or 0) <= left + 1)
    await world.until(world.all_handled)
    await world.stop_all()


async def test_the_pause_until_the_next_poll_does_not_count_as_idle_time():
    world = World()
    processor = world.start("a", max_poll_interval=timedelta(seconds=20))
    await asyncio.sleep(100)
    for _ in range(30):
        assert only(processor).idle_seconds < 1
        await asyncio.sleep(1)
    await world.stop_all()


@pytest.mark.parametrize("tells", [True, False])
async def test_a_long_page_is_stalled_unless_its_handler_reports_progress(tells: bool):
    world = World()

    async def slow(batch: ChangeBatch) -> None:
        for _ in range(10):
            await asyncio.sleep(20)
            if tells:
                batch.moving()

    await world.write("k")
    processor = world.start("a", handler=slow)
    await asyncio.sleep(150)
    assert only(processor).stalled != tells
    await world.kill("a")


async def test_an_idle_lease_with_a_long_poll_interval_is_not_stalled():
    world = World()
    processor = world.start("a", max_poll_interval=timedelta(minutes=10))
    for _ in range(60):
        await asyncio.sleep(30)
        assert not only(processor).stalled
    await world.stop_all()


async def test_a_stalled_lease_that_makes_progress_is_no_longer_stalled():
    world = World()
    feed = Faulty(world.container)
    processor = world.start("a", feed=feed)
    await asyncio.sleep(30)
    feed.failing["read_page"] = StoreUnavailable
    await asyncio.sleep(100)
    feed.failing.clear()
    await world.write("k")
    await world.until(world.all_handled)

    status = only(processor)
    assert (False, 0, None) == (status.stalled, status.failed_attempts, status.error)
    await world.stop_all()


async def stalled_within(processor: ChangeFeedProcessor, seconds: int) -> list[tuple[str, int]]:
    """
    Watch the status of a processor for this number of seconds. Return each lease that was stalled, and for how many seconds.
    """
    seen = Counter[str]()
    for _ in range(seconds):
        await asyncio.sleep(1)
        seen.update(status.token for status in processor.status() if status.stalled)
    return sorted(seen.items())


async def test_a_range_whose_split_cannot_be_finished_is_stalled():
    world = World(ranges=2)
    store = Faulty(world.leases)
    processor = world.start("a", leases=store)
    await asyncio.sleep(20)
    store.failing["create"] = AccessDenied
    world.container.split("0")

    assert [] == await stalled_within(processor, 50)
    await asyncio.sleep(20)
    assert [("0", 100)] == await stalled_within(processor, 100)
    (stalled,) = [status for status in processor.status() if status.stalled]
    assert "AccessDenied" in (stalled.error or "")

    store.failing.clear()
    await asyncio.sleep(30)
    assert [] == await stalled_within(processor, 100)
    await world.stop_all()


async def test_a_lease_that_cannot_be_read_is_stalled_until_it_is_repaired_or_deleted():
    world = World(ranges=3)
    processor = world.start("a")
    await asyncio.sleep(20)
    for lease in (await world.all_leases())[:2]:
        await world.leases.replace({**lease.raw, "ContinuationToken": "eyJWIjox"}, etag=lease.etag or "")
    await asyncio.sleep(100)
    assert [("0", 100), ("1", 100)] == await stalled_within(processor, 100)

    mended, gone = (await world.leases.list("p")).documents[:2]
    await world.leases.replace({**mended, "ContinuationToken": None}, etag=mended["_etag"])
    await world.leases.delete(gone["id"], gone["id"])
    await asyncio.sleep(30)
    assert [] == await stalled_within(processor, 30)
    await world.stop_all()


async def test_a_lease_that_cannot_be_taken_is_stalled_until_another_worker_takes_it():
    world = World(ranges=2)

    class Refusing(Faulty):
        async def replace(self, document, *, etag):
            if document["id"].endswith("..0"):
                raise InvalidRequest
            return await world.leases.replace(document, etag=etag)

    processor = world.start("a", leases=Refusing(world.leases))  # type: ignore[arg-type] - it has every method
    await asyncio.sleep(100)
    assert [("0", 10)] == await stalled_within(processor, 10)

    world.start("b")
    await asyncio.sleep(30)
    assert [] == await stalled_within(processor, 100)
    await world.stop_all()


async def standstills(world: World) -> list[str | None]:
    listing = await world.leases.list("")
    return [
        document["properties"].get(STANDSTILL) for document in listing.documents if "LeaseToken" in document
    ]


async def test_a_lease_shows_within_a_minute_why_its_handler_makes_no_progress():
    """After the handler works again, the worker removes the cause from the lease within a minute."""
    world = World()
    broken = True

    async def handle(batch: ChangeBatch) -> None:
        if broken:
            raise RuntimeError("The topic is full. Empty it.")
        await world.handle(batch)

    await world.write("k")
    world.start("a", handler=handle)
    await asyncio.sleep(60)
    (said,) = await standstills(world)
    assert said is not None
    assert "The topic is full. Empty it." in said

    broken = False
    await asyncio.sleep(60)
    assert [None] == await standstills(world)
    await world.stop_all()


async def test_a_new_owner_removes_the_cause_of_failure_that_the_former_owner_wrote():
    world = World()

    async def fail(_: ChangeBatch) -> None:
        raise RuntimeError("no")

    await world.write("k")
    world.start("a", handler=fail)
    await asyncio.sleep(60)
    await world.kill("a")
    assert [None] != await standstills(world)
    world.start("b")
    await world.until(world.all_handled)
    assert [None] == await standstills(world)
    await world.stop_all()
