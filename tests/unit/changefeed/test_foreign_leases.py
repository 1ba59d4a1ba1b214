"""
What other programs do to a worker: hooks that raise, leases that cannot be read, leases that .NET created.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

import pytest

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed.bootstrap import create_leases
from cosmos_outbox.changefeed.leases import from_document, new_lease, start_of, with_start
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeBatch, StartFrom
from cosmos_outbox.records import LeasesBalanced, LoopBlocked, Record
from tests.support.changefeed_world import World, virtual_utcnow
from tests.support.patience import HUNG_SECONDS

PREFIX = "pmemory_AAAAAA==_AAAAAIAAAAA="


async def test_a_hook_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture):
    world, records = World(ranges=2), list[Record]()

    def broken(record: Record) -> None:
        raise ValueError("no metrics today")

    await world.write_many(20)
    world.start("a", hooks=[broken, records.append])
    with caplog.at_level(logging.ERROR):
        await world.until(world.all_handled)
        await world.stop("a")

    assert {"free": 2} == await world.owners()
    assert records
    assert len(records) == caplog.text.count("hook.failed")
    assert "hook.failed PageHandled" in caplog.text


@pytest.mark.looptime(False)
async def test_a_hook_that_raises_does_not_end_the_watchdog(caplog: pytest.LogCaptureFixture):
    world, reported = World(), 0

    def broken(record: Record) -> None:
        nonlocal reported
        reported += isinstance(record, LoopBlocked)
        raise ValueError("no metrics today")

    async def block(batch: ChangeBatch) -> None:
        until = time.monotonic() + HUNG_SECONDS
        while reported < 2 and time.monotonic() < until:
            pass
        await world.handle(batch)

    world.leases = MemoryLeases()
    await world.write("k")
    processor = world.start("a", handler=block, hooks=[broken], blocked_loop_after=timedelta(seconds=0.05))
    async with asyncio.timeout(HUNG_SECONDS):
        while not world.handled:  # noqa: ASYNC110 - the handler knows nothing of this test
            await asyncio.sleep(0.01)
    processor.stop()
    await world.workers["a"][1]

    assert reported >= 2


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param({"ContinuationToken": "eyJWIjox"}, id="a Java processor's token"),
        pytest.param({"LeaseToken": None}, id="no lease"),
        pytest.param({"Mode": "Full-Fidelity Feed"}, id="another mode"),
        pytest.param({"properties": 5}, id="no properties"),
        pytest.param({"properties": {"start": "soon"}, "Owner": None}, id="a start that is no time"),
        pytest.param({"properties": {"handover.wanted-by": 7}}, id="a request without a worker"),
    ],
)
async def test_one_lease_that_cannot_be_read_is_told_of_and_does_not_end_the_work_on_the_others(
    spoiled: dict[str, object],
):
    world, records = World(ranges=3), list[Record]()
    world.start("a", hooks=[records.append])
    await asyncio.sleep(20)
    lease = (await world.all_leases())[0]
    await world.leases.replace({**lease.raw, **spoiled}, etag=lease.etag or "")
    await asyncio.sleep(150)  # long enough to take it for a gap, which it is not

    processor, task = world.workers["a"]
    assert not task.done()
    assert ["1", "2"] == [status.token for status in processor.status() if not status.stalled]
    errors = {
        str(record.error)
        for record in records
        if isinstance(record, LeasesBalanced) and record.outcome == "failed"
    }
    assert all(lease.id in error for error in errors)
    assert 1 == len(errors)
    await world.stop("a")
    with pytest.raises(ConfigurationError, match=r"\.\.0"):  # a worker that starts says so at once
        await world.start("b").run()
    world.workers.clear()


async def test_a_lease_that_cannot_be_read_holds_up_no_split_of_another_range():
    world = World(ranges=2)
    processor = world.start("a")
    await asyncio.sleep(20)
    lease = (await world.all_leases())[0]
    await world.leases.replace({**lease.raw, "ContinuationToken": "eyJWIjox"}, etag=lease.etag or "")
    world.container.split("1")

    await world.until(lambda: ["2", "3"] == [status.token for status in processor.status()])
    await world.stop("a")


async def test_a_split_waits_for_a_part_of_its_own_that_cannot_be_read():
    world = World()
    world.start("a")
    await asyncio.sleep(20)
    (lease,) = await world.all_leases()
    part = new_lease(PREFIX, "2", FeedRange(min=f"2{31 * '0'}", max="FF")).raw
    await world.leases.create({**part, "ContinuationToken": "eyJWIjox"})
    world.container.split("0")
    await asyncio.sleep(60)

    documents = (await world.leases.list(f"{PREFIX}..")).documents
    assert {lease.id, part["id"]} == {document["id"] for document in documents}
    await world.stop("a")


async def test_a_lease_whose_partition_is_gone_is_reported_and_the_other_leases_go_on():
    world, records = World(ranges=2), list[Record]()
    await create_leases(PREFIX, feed=world.container, store=world.leases, start=StartFrom.BEGINNING)
    await world.forget_ranges()
    world.container.split("0")
    await world.write_many(20)
    processor = world.start("a", hooks=[records.append])
    await asyncio.sleep(30)

    assert ["1"] == [status.token for status in processor.status()]
    assert any(
        "Delete the lease" in str(r.error)
        for r in records
        if isinstance(r, LeasesBalanced) and r.outcome == "failed"
    )
    await world.stop("a")


async def dotnet_lease(world: World) -> None:
    feed_range = FeedRange(min="", max="FF")
    await world.leases.create({"id": f"{PREFIX}.info"})
    await world.leases.create(new_lease(PREFIX, "0", feed_range).raw)


async def test_now_does_not_skip_what_came_after_another_program_created_the_lease():
    world = World()
    await world.write("history")
    await asyncio.sleep(100)
    await dotnet_lease(world)
    await asyncio.sleep(100)
    await world.write("k")
    await asyncio.sleep(100)
    world.start("a", start=StartFrom.NOW)
    await world.until(lambda: bool(world.handled))
    await world.stop_all()

    assert {"k": [0]} == world.handled


async def test_now_does_not_skip_the_page_that_an_owner_before_could_not_handle():
    world = World()

    async def fail(_: ChangeBatch) -> None:
        raise RuntimeError("poison")

    await dotnet_lease(world)
    await asyncio.sleep(10)
    world.start("a", start=StartFrom.NOW, handler=fail)
    await world.write("k")
    await asyncio.sleep(100)
    await world.kill("a")
    await asyncio.sleep(100)
    world.start("b", start=StartFrom.NOW)
    await world.until(world.all_handled)
    await world.stop_all()

    assert {"k": [0]} == world.handled


async def test_now_counts_from_the_start_of_the_worker_where_the_lease_was_written_later():
    world = World()
    started = virtual_utcnow()
    await asyncio.sleep(100)
    await dotnet_lease(world)
    (lease,) = await world.all_leases()

    assert started - timedelta(seconds=1) == start_of(with_start(lease, StartFrom.NOW, since=started))


async def test_a_start_that_was_chosen_stays_and_one_that_no_worker_needs_is_not_written():
    lease = new_lease("p", "0", FeedRange(min="", max="FF"), properties={"start": "beginning"})
    read = new_lease("p", "0", FeedRange(min="", max="FF"), continuation='"7"')

    assert lease == with_start(lease, StartFrom.NOW, since=virtual_utcnow())
    assert read == with_start(read, StartFrom.NOW, since=virtual_utcnow())
    assert StartFrom.BEGINNING == start_of(from_document({**read.raw, "_etag": "x"}))
