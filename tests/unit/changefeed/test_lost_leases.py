"""
Deleted leases are created again with the start of the first leases. So a start from "now" still means the time of the first bootstrap,
and no change is skipped.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from cosmos_outbox.errors import StoreUnavailable, TooManyRequests
from cosmos_outbox.ports import ChangeBatch, StartFrom
from cosmos_outbox.records import LeasesBalanced, LeasesLost, Record
from tests.support.changefeed_world import Faulty, World


async def lose_leases(world: World) -> None:
    for document in (await world.leases.list("")).documents:
        await world.leases.delete(document["id"], document["id"])


def told(records: list[Record]) -> list[LeasesLost]:
    return [record for record in records if isinstance(record, LeasesLost)]


@pytest.mark.parametrize("workers", [1, 3])
async def test_changes_that_wait_while_all_leases_are_deleted_are_still_handled(workers: int):
    world, records, down = World(ranges=4), list[Record](), [False]
    await world.write("before")
    await asyncio.sleep(10)

    async def handle(batch: ChangeBatch) -> None:
        if down[0]:
            raise RuntimeError("the topic is down")
        await world.handle(batch)

    for number in range(workers):
        world.start(f"w{number}", handler=handle, start=StartFrom.NOW, hooks=[records.append])
    await asyncio.sleep(60)
    await world.write_many(20)
    await world.until(lambda: 10 == len([key for key in world.handled if key != "before"]))
    down[0] = True
    await world.write_many(20)
    await asyncio.sleep(5)
    await lose_leases(world)
    await world.until(lambda: bool(told(records)))
    down[0] = False
    await world.until(lambda: all({0, 1, 2, 3} == set(world.handled[f"key-{i}"]) for i in range(10)))
    await world.stop_all()

    assert "before" not in world.handled, "the first now holds"
    assert world.first_copies_in_order()


@pytest.mark.parametrize(("proof", "handled"), [("it parked keys", ["earlier", "later"]), (None, ["later"])])
async def test_start_from_now_reads_from_the_beginning_if_workers_ran_before(
    proof: str | None, handled: list[str]
):
    world, records = World(), list[Record]()
    await world.write("earlier")
    await asyncio.sleep(10)

    async def earlier_life() -> str | None:
        return proof

    world.start("a", start=StartFrom.NOW, hooks=[records.append], earlier_life=earlier_life)
    await asyncio.sleep(30)
    await world.write("later")
    await world.until(lambda: "later" in world.handled)
    await world.stop_all()

    assert handled == [*world.handled]
    assert [proof] * bool(proof) == [one.reason for one in told(records)]


@pytest.mark.parametrize("start", [StartFrom.BEGINNING, datetime(2001, 2, 3, tzinfo=UTC)])
async def test_a_worker_that_finds_its_leases_lost_raises_one_alarm(
    start: StartFrom | datetime,
):
    """After the alarm, the worker begins where its settings say."""
    world, records = World(ranges=2), list[Record]()
    await world.write_many(10)
    feed = Faulty(world.container)
    feed.failing["physical_ranges"] = StoreUnavailable

    async def earlier_life() -> str | None:
        return "it parked keys"

    world.start("a", start=start, feed=feed, hooks=[records.append], earlier_life=earlier_life)  # type: ignore[arg-type]
    await asyncio.sleep(60)
    feed.failing.clear()
    await world.until(world.all_handled)
    await world.stop_all()

    text = "beginning" if start is StartFrom.BEGINNING else "2001-02-03T00:00:00.000000Z"
    assert [(text, "it parked keys")] == [(one.start, one.reason) for one in told(records)]


@pytest.mark.parametrize("start", StartFrom)
@pytest.mark.parametrize("apart", [0.0, 0.5, 3.0, 14.0])
async def test_the_first_start_of_several_workers_raises_no_alarm(start: StartFrom, apart: float):
    """
    A worker that starts a little later may see heartbeats and leases of the first worker. They are no sign of lost leases.
    """
    world, records = World(ranges=4), list[Record]()

    async def earlier_life() -> str | None:
        ran = any(isinstance(one, LeasesBalanced) and one.outcome == "listed" for one in records)
        noted = bool(await world.all_leases())
        await asyncio.sleep(0.3)
        return "a heartbeat" if ran else "a note" if noted else None

    for number in range(3):
        world.start(f"w{number}", start=start, hooks=[records.append], earlier_life=earlier_life)
        await asyncio.sleep(apart)
    await asyncio.sleep(60)
    await world.stop_all()

    assert [] == told(records)


@pytest.mark.parametrize("start", StartFrom)
async def test_a_restart_with_existing_leases_keeps_their_positions(
    start: StartFrom,
):
    """With existing leases, the worker does not ask the parked store whether workers ran before."""
    world, records = World(), list[Record]()

    async def earlier_life() -> str | None:
        raise TooManyRequests  # the parked container, which knows whether workers ran before, is busy

    world.start("a", start=start)
    await asyncio.sleep(30)
    await world.write("k")
    await world.until(world.all_handled)
    await world.stop("a")
    await world.write("l")
    world.start("b", start=start, hooks=[records.append], earlier_life=earlier_life)
    await world.until(world.all_handled, within=timedelta(seconds=30))
    await world.stop_all()

    assert ([], [0], [0]) == (told(records), world.handled["k"], world.handled["l"])
