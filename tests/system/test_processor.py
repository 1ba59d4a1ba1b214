"""
Tests of change feed processors as real processes on the emulator: frozen, drained, throttled and disconnected under load.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.system.processor_world import RANGES, World, owned_by, started, until

pytestmark = [pytest.mark.system, pytest.mark.looptime(False)]


async def test_a_worker_that_wakes_after_its_leases_expired_does_not_write_them(world: World):
    (frozen,) = await started(world, "a")
    await world.start("b")
    await owned_by(world, "a", "b")
    await world.write(200)
    await until(lambda: len(world.arrivals()) > 60)
    os.killpg(frozen.pid, signal.SIGSTOP)
    await owned_by(world, "b")
    before = await world.leases()
    await world.write(100)
    os.killpg(frozen.pid, signal.SIGCONT)
    await until(lambda: world.log("a").count("outcome=lost") >= RANGES // 2)
    await until(world.all_arrived)
    after = await world.leases()

    assert [] == world.out_of_order()
    assert all(after[token][1] >= position for token, (_, position) in before.items())
    assert "Traceback" not in world.log("a")


async def test_splits_and_merges_under_load_lose_no_change(world: World):
    """Splits and merges lose no change, and keep the order of the changes of each key."""
    await started(world, "a", "b")
    where = {"database": "db", "container": "data"}
    async with asyncio.TaskGroup() as group:
        group.create_task(world.write(500))
        for range_id, arrived in (("0", 50), ("2", 150), ("3", 250)):
            await until(lambda arrived=arrived: len(world.arrivals()) > arrived)
            split = await world.control("POST", "/cosmos/split", range=range_id, completing=3, **where)
        await until(lambda: len(world.arrivals()) > 350)
        await world.control("POST", "/cosmos/merge", ranges=split["children"], completing=3, **where)
    await until(world.all_arrived)

    async def only_children_are_left() -> bool:
        tokens = (await world.leases()).keys()
        # After a merge, two leases share the merged range. They are leases of version 1, whose names are their bounds.
        return len(tokens) == RANGES + 3 and sum("-" in token for token in tokens) == 2

    await until(only_children_are_left)
    assert [] == world.out_of_order()


async def test_storms_of_refusals_and_lost_connections_lose_no_change(world: World):
    """Refused requests and lost connections lose no change, and keep the order of the changes of each key."""
    await started(world, "a", "b")
    storms: list[dict[str, Any]] = [
        {"operation": "changefeed", "status": 429, "substatus": 3200, "retry_after_ms": 5, "count": 40},
        {"container": "leases", "status": 429, "substatus": 3200, "retry_after_ms": 5, "count": 10},
        *({"container": "leases", "status": status, "count": 2} for status in (449, 503, 500, 408)),
        *({"operation": "changefeed", "status": status, "count": 3} for status in (449, 503, 500, 408)),
        {"operation": "changefeed", "drop": True, "count": 5},
        {"operation": "changefeed", "drop": True, "when": "after", "count": 5},
        {"operation": "replace", "drop": True, "count": 4},
        {"operation": "replace", "drop": True, "when": "after", "count": 4},
        {"operation": "changefeed", "delay_s": 1.5, "count": 2},  # the delay exceeds the read timeout
    ]
    async with asyncio.TaskGroup() as group:
        group.create_task(world.write(300))
        for storm in storms:
            await world.fault(**storm)
    await until(world.all_arrived)

    async def storms_are_over() -> bool:
        return (await world.control("GET", "/cosmos/stats"))["faults"] == 0

    await until(storms_are_over)
    await owned_by(world, "a", "b")
    assert [] == world.out_of_order()


async def test_no_change_is_handled_twice_when_leases_are_handed_over(world: World):
    first = await world.start("a", expiration_seconds=60)
    await owned_by(world, "a")
    async with asyncio.TaskGroup() as group:
        group.create_task(world.write(300))
        await until(lambda: len(world.arrivals()) > 50)
        await world.start("b", expiration_seconds=60)
        await owned_by(world, "a", "b")
        first.signal(signal.SIGTERM)
        await first.wait()
    await world.write(40)
    await until(world.all_arrived)

    assert 0 == first.exit_code
    assert [] == world.repeated()
    assert {"a", "b"} == {worker for worker, _, _ in world.arrivals()}
