"""
Tests of a worker whose hooks raise errors, or which finds leases that it cannot read or that .NET created.
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


async def test_an_error_of_a_hook_is_logged_and_does_not_stop_the_worker(caplog: pytest.LogCaptureFixture):
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
async def test_a_failing_hook_does_not_stop_reports_of_a_blocked_event_loop(caplog: pytest.LogCaptureFixture):
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
async def test_a_lease_that_cannot_be_read_does_not_stop_the_other_leases(
    spoiled: dict[str, object],
):
    """
    The worker reports the id of the unreadable lease. A worker that starts later ends with an error that names it.
    """
    world, records = World(ranges=3), list[Record]()
    world.start("a", hooks=[records.append])
    await asyncio.sleep(20)
    lease = (await world.all_leases())[0]
    await world.leases.replace({**lease.raw, **spoiled}, etag=lease.etag or "")
    # Wait as long as a worker needs to create a missing lease. The damaged lease exists, so the worker must not create it.
    await asyncio.sleep(150)

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
    with pytest.raises(ConfigurationError, match=r"\.\.0"):  # the error names the unreadable lease
        await world.start("b").run()
    world.workers.clear()


async def test_a_lease_that_cannot_be_read_does_not_delay_splits_of_other_ranges():
    world = World(ranges=2)
    processor = world.start("a")
    await asyncio.sleep(20)
    lease = (await world.all_leases())[0]
    await world.leases.replace({**lease.raw, "ContinuationToken": "eyJWIjox"}, etag=lease.etag or "")
    world.container.split("1")

    await world.until(lambda: ["2", "3"] == [status.token for status in processor.status()])
    await world.stop("a")


async def test_a_split_waits_while_the_lease_of_one_child_cannot_be_read():
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


async def test_a_lease_of_a_partition_that_no_longer_exists_is_reported():
    """The test also checks that the worker goes on with its other leases."""
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


async def test_start_from_now_means_the_time_when_another_program_created_the_lease():
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


async def test_start_from_now_skips_no_page_that_a_former_owner_failed_on():
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


async def test_start_from_now_means_the_start_of_the_worker_if_the_lease_is_newer():
    world = World()
    started = virtual_utcnow()
    await asyncio.sleep(100)
    await dotnet_lease(world)
    (lease,) = await world.all_leases()

    assert started - timedelta(seconds=1) == start_of(with_start(lease, StartFrom.NOW, since=started))


async def test_a_lease_with_a_start_keeps_it_although_another_start_is_given():
    """The test also checks that a lease with a continuation gets no start, because the continuation says where to read on."""
    lease = new_lease("p", "0", FeedRange(min="", max="FF"), properties={"start": "beginning"})
    read = new_lease("p", "0", FeedRange(min="", max="FF"), continuation='"7"')

    assert lease == with_start(lease, StartFrom.NOW, since=virtual_utcnow())
    assert read == with_start(read, StartFrom.NOW, since=virtual_utcnow())
    assert StartFrom.BEGINNING == start_of(from_document({**read.raw, "_etag": "x"}))
