"""
Tests of change feed processors as real processes: permissions, leases and containers disappear, and clocks are wrong.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime

import pytest

from tests.system.processor_world import RANGES, World, owned_by, started, until

pytestmark = [pytest.mark.system, pytest.mark.looptime(False)]


async def lost(world: World, name: str, *, times: int) -> None:
    await until(lambda: world.log(name).count("outcome=lost") >= times)


async def test_workers_without_permission_stop_until_it_is_granted_again(world: World):
    await started(world, "a", "b")
    await world.write(100)
    await until(lambda: len(world.arrivals()) > 20)
    await world.fault(container="leases", status=403)
    await world.fault(operation="changefeed", status=403)
    await lost(world, "a", times=RANGES // 2)
    await lost(world, "b", times=RANGES // 2)
    await world.write(50)
    await world.control("DELETE", "/cosmos/faults")
    await until(world.all_arrived)
    await owned_by(world, "a", "b")

    assert [] == world.out_of_order()


async def test_a_deleted_lease_is_created_again_by_a_worker(world: World):
    """The owner of a deleted lease stops its work, and a worker creates the lease again."""
    await started(world, "a")
    await world.write(100)
    await until(world.all_arrived)
    deleted = (await world.lease_documents())[0]
    await world.lease_container.delete_item(deleted["id"], deleted["id"])
    await lost(world, "a", times=1)
    await world.write(100)
    await world.start("b")
    await until(world.all_arrived)
    await owned_by(world, "a", "b")

    assert RANGES == len(await world.leases())
    # Either worker may repair the lease, depending on how long "b" took to start.
    assert any("lease.repaired" in world.log(name) for name in ("a", "b"))
    assert [] == world.out_of_order()


async def test_workers_read_a_container_that_was_recreated_while_they_were_frozen(
    world: World,
):
    """Workers that wake up read the recreated container from its start."""
    workers = await started(world, "a", "b")
    await world.write(100)
    await until(world.all_arrived)
    # Freeze the workers: a worker that sends a request while the container does not exist ends with an error,
    # as it should.
    for worker in workers:
        os.killpg(worker.pid, signal.SIGSTOP)
    await world.recreate()
    # Write no more changes than the old container had. If the workers kept their old positions, they would
    # read no change.
    await world.write(100)
    for worker in workers:
        os.killpg(worker.pid, signal.SIGCONT)
    await until(world.all_arrived)

    assert [] == world.out_of_order()
    assert all("deleted and created again" in world.log(name) for name in ("a", "b"))


async def test_workers_with_clocks_a_minute_apart_lose_no_leases_to_each_other(world: World):
    await world.start("a", clock_ahead_seconds=30, expiration_seconds=20)
    await owned_by(world, "a")
    await world.start("b", clock_ahead_seconds=-30, expiration_seconds=20)
    await owned_by(world, "a", "b")
    async with asyncio.TaskGroup() as group:
        group.create_task(world.write(300))
        began = {document["id"]: document["_ts"] for document in await world.lease_documents()}

        # By the clock of "a", each lease is half a minute old as soon as it is written, which is longer than the expiration.
        async def renewed_again_and_again() -> bool:
            return all(d["_ts"] > began[d["id"]] + 3 for d in await world.lease_documents())

        await until(renewed_again_and_again)
    await until(world.all_arrived)

    for document in await world.lease_documents():
        stamped = datetime.fromisoformat(document["timestamp"]).astimezone(UTC).timestamp()
        assert (30 if document["Owner"] == "a" else -30) == pytest.approx(stamped - document["_ts"], abs=3)
    assert [] == world.repeated()
    assert "outcome=lost" not in world.log("a") + world.log("b")
