"""
Change feed processors as real processes on the emulator: killed, frozen, throttled and cut off under load.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import DatabaseProxy

from cosmos_outbox.adapters.cosmos_client import open_cosmos_client
from examples.contacts.demo.processes import Child, Children

pytestmark = [pytest.mark.system, pytest.mark.looptime(False)]

RANGES = 4
KEYS = 12
ROOT = Path(__file__).parents[2]


class World:
    """
    The emulator, its containers, the workers and the file that their handlers write to.
    """

    def __init__(
        self,
        children: Children,
        connection_string: str,
        control: aiohttp.ClientSession,
        database: DatabaseProxy,
        directory: Path,
    ) -> None:
        self._children, self._connection_string, self._control = children, connection_string, control
        self._database, self._directory = database, directory
        self._sink = directory / "arrived"
        self._sink.touch()
        self._written: dict[str, int] = defaultdict(int)

    async def start(self, name: str) -> Child:
        return await self._children.start(
            name,
            ("-m", "tests.system.processor_worker", self._connection_string, name, str(self._sink)),
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()

    async def control(self, method: str, path: str, **fields: Any) -> Any:
        async with self._control.request(method, path, json=fields) as answer:
            return await answer.json() if answer.status == 200 else None

    async def fault(self, **rule: Any) -> None:
        await self.control("POST", "/cosmos/faults", **rule)

    async def write(self, count: int) -> None:
        container = self._database.get_container_client("data")
        for number in range(count):
            key = f"key-{number % KEYS}"
            n = self._written[key]
            await container.create_item({"id": f"{key}-{n}", "partitionKey": key, "n": n})
            self._written[key] += 1

    async def leases(self) -> dict[str, tuple[str | None, int]]:
        """
        Return owner and position of each lease by its token.
        """
        items = self._database.get_container_client("leases").query_items("SELECT * FROM c")
        return {
            item["LeaseToken"]: (item["Owner"], int((item["ContinuationToken"] or '"0"').strip('"')))
            async for item in items
            if "LeaseToken" in item
        }

    async def owners(self) -> list[str]:
        return sorted(str(owner) for owner, _ in (await self.leases()).values())

    def arrivals(self) -> list[tuple[str, str, int]]:
        lines = [line.split(" ") for line in self._sink.read_text().splitlines()]
        return [(worker, key, int(n)) for worker, key, n in lines]

    def all_arrived(self) -> bool:
        numbers = defaultdict(set)
        for _, key, n in self.arrivals():
            numbers[key].add(n)
        return all(numbers[key] == set(range(count)) for key, count in self._written.items())

    def out_of_order(self) -> list[tuple[str, int]]:
        """
        Return the changes whose first copy arrived before that of an earlier one of their key.
        """
        reached: dict[str, int] = defaultdict(int)
        wrong = []
        for _, key, n in self.arrivals():
            if n > reached[key]:
                wrong.append((key, n))
            reached[key] = max(reached[key], n + 1)
        return wrong


async def until(fact: Callable[[], Any], *, within: float = 25) -> None:
    async with asyncio.timeout(within):
        while True:
            found = fact()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.05)


@asynccontextmanager
async def a_world(directory: Path) -> AsyncIterator[World]:
    async with Children(directory) as children:
        emulators = await children.start(
            "emulators",
            ("-m", "emulators", "--json", "--partitions", str(RANGES)),
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            announces=True,
        )
        announced = await emulators.announcement()
        async with (
            open_cosmos_client(connection_string=announced["cosmos"]) as client,
            aiohttp.ClientSession(announced["control"], raise_for_status=True) as control,
        ):
            database = await client.create_database("db")
            await database.create_container("data", PartitionKey("/partitionKey"))
            await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
            yield World(children, announced["cosmos"], control, database, directory)


async def owned_by(world: World, *names: str) -> None:
    async def fact() -> bool:
        return set(await world.owners()) == set(names)

    await until(fact)


async def test_after_a_sigkill_under_load_every_change_arrives_and_in_order(tmp_path: Path):
    async with a_world(tmp_path) as world:
        first = await world.start("a")
        await world.start("b")
        await owned_by(world, "a", "b")
        async with asyncio.TaskGroup() as group:
            group.create_task(world.write(400))
            await until(lambda: len(world.arrivals()) > 100)
            await first.kill()
        await until(world.all_arrived)
        await owned_by(world, "b")

        assert [] == world.out_of_order()


async def test_a_worker_frozen_past_expiry_writes_nothing_when_it_wakes(tmp_path: Path):
    async with a_world(tmp_path) as world:
        frozen = await world.start("a")
        await owned_by(world, "a")
        await world.start("b")
        await owned_by(world, "a", "b")
        await world.write(200)
        await until(lambda: len(world.arrivals()) > 60)
        os.killpg(frozen.pid, signal.SIGSTOP)
        await owned_by(world, "b")
        before = await world.leases()
        await world.write(100)
        os.killpg(frozen.pid, signal.SIGCONT)
        await until(lambda: world.log("a").count("reason=lost") >= RANGES // 2)
        await until(world.all_arrived)
        after = await world.leases()

        assert [] == world.out_of_order()
        assert all(after[token][1] >= position for token, (_, position) in before.items())
        assert "Traceback" not in world.log("a")


async def test_splits_and_a_merge_under_load_lose_nothing_and_keep_the_order(tmp_path: Path):
    async with a_world(tmp_path) as world:
        await world.start("a")
        await world.start("b")
        await owned_by(world, "a", "b")
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
            # Both that were merged live on as version 1 leases, named by their bounds.
            return len(tokens) == RANGES + 3 and sum("-" in token for token in tokens) == 2

        await until(only_children_are_left)
        assert [] == world.out_of_order()


async def test_storms_of_refusals_and_lost_connections_lose_nothing_and_keep_the_order(tmp_path: Path):
    async with a_world(tmp_path) as world:
        await world.start("a")
        await world.start("b")
        await owned_by(world, "a", "b")
        storms: list[dict[str, Any]] = [
            {"operation": "changefeed", "status": 429, "substatus": 3200, "retry_after_ms": 5, "count": 40},
            {"container": "leases", "status": 429, "substatus": 3200, "retry_after_ms": 5, "count": 10},
            *({"container": "leases", "status": status, "count": 2} for status in (449, 503, 500, 408)),
            *({"operation": "changefeed", "status": status, "count": 3} for status in (449, 503, 500, 408)),
            {"operation": "changefeed", "drop": True, "count": 5},
            {"operation": "changefeed", "drop": True, "when": "after", "count": 5},
            {"operation": "replace", "drop": True, "count": 4},
            {"operation": "replace", "drop": True, "when": "after", "count": 4},
            {"operation": "changefeed", "delay_s": 1.5, "count": 2},  # past the read timeout
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


async def test_leases_change_hands_without_a_change_being_handled_twice(tmp_path: Path):
    async with a_world(tmp_path) as world:
        first = await world.start("a")
        await owned_by(world, "a")
        async with asyncio.TaskGroup() as group:
            group.create_task(world.write(300))
            await until(lambda: len(world.arrivals()) > 50)
            await world.start("b")
            await owned_by(world, "a", "b")
            first.signal(signal.SIGTERM)
            await first.wait()
        await world.write(40)
        await until(world.all_arrived)

        assert 0 == first.exit_code
        copies = [(key, n) for _, key, n in world.arrivals()]
        assert [] == [copy for copy, again in itertools.groupby(sorted(copies)) if len(list(again)) > 1]
        assert {"a", "b"} == {worker for worker, _, _ in world.arrivals()}
