"""
Runs change feed processors as processes on an emulator, and reads from a shared file which changes they handled.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, DatabaseProxy

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_testing.verify.child_processes import Child, Children
from tests.support.patience import HUNG_SECONDS

RANGES = 4
KEYS = 12
ROOT = Path(__file__).parents[2]


class World:
    """The emulator, its containers, the workers, and the file to which their handlers write."""

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
        self._created_times = 0

    async def start(
        self, name: str, *, clock_ahead_seconds: float = 0, expiration_seconds: float = 4
    ) -> Child:
        """
        Start a worker.

        A test in which no lease may be lost sets an expiration that is longer than any delay on a busy machine.
        """
        return await self._children.start(
            name,
            ("-m", "tests.system.processor_worker", self._connection_string, name, str(self._sink)),
            env=os.environ
            | {
                "PYTHONPATH": str(ROOT),
                "CLOCK_AHEAD_SECONDS": str(clock_ahead_seconds),
                "EXPIRATION_SECONDS": str(expiration_seconds),
            },
        )

    async def recreate(self) -> None:
        """
        Delete the monitored container and create it again. Changes that were written before need not arrive any more.
        """
        await self._database.delete_container("data")
        await self._database.create_container("data", PartitionKey("/partitionKey"))
        self._written.clear()
        self._created_times += 1

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
            key = f"key-{number % KEYS}.{self._created_times}"
            n = self._written[key]
            await container.create_item({"id": f"{key}-{n}", "partitionKey": key, "n": n})
            self._written[key] += 1

    @property
    def lease_container(self) -> ContainerProxy:
        return self._database.get_container_client("leases")

    async def lease_documents(self) -> list[dict[str, Any]]:
        items = self.lease_container.query_items("SELECT * FROM c")
        return [item async for item in items if "LeaseToken" in item]

    async def leases(self) -> dict[str, tuple[str | None, int]]:
        """Return owner and position of each lease by its token."""
        return {
            item["LeaseToken"]: (item["Owner"], int((item["ContinuationToken"] or '"0"').strip('"')))
            for item in await self.lease_documents()
        }

    async def owners(self) -> list[str]:
        return sorted(str(owner) for owner, _ in (await self.leases()).values())

    def arrivals(self) -> list[tuple[str, str, int]]:
        lines = [line.split(" ") for line in self._sink.read_text().splitlines()]
        return [(worker, key, int(n)) for worker, key, n in lines]

    def repeated(self) -> list[tuple[str, int]]:
        """Return the changes that were handled more than once."""
        copies = Counter((key, n) for _, key, n in self.arrivals())
        return [change for change, count in copies.items() if count > 1]

    def all_arrived(self) -> bool:
        numbers = defaultdict(set)
        for _, key, n in self.arrivals():
            numbers[key].add(n)
        return all(numbers[key] == set(range(count)) for key, count in self._written.items())

    def out_of_order(self) -> list[tuple[str, int]]:
        """Return the changes that were first handled before an earlier change of their key."""
        reached: dict[str, int] = defaultdict(int)
        wrong = []
        for _, key, n in self.arrivals():
            if n > reached[key]:
                wrong.append((key, n))
            reached[key] = max(reached[key], n + 1)
        return wrong


async def until(fact: Callable[[], Any], *, within: float = HUNG_SECONDS) -> None:
    async with asyncio.timeout(within):
        while True:
            found = fact()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def a_world(directory: Path) -> AsyncIterator[World]:
    clock = AdjustableClock()
    async with (
        CosmosServer(Account(partitions=RANGES, clock=clock)) as cosmos,
        ControlServer(cosmos, Broker.default(), clock=clock) as controlled,
        open_cosmos_client(connection_string=cosmos.connection_string) as client,
        aiohttp.ClientSession(controlled.url, raise_for_status=True) as control,
        # The workers stand last, so they end first, before the server that they use.
        Children(directory, grace_seconds=HUNG_SECONDS) as children,
    ):
        database = await client.create_database("db")
        await database.create_container("data", PartitionKey("/partitionKey"))
        await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
        yield World(children, cosmos.connection_string, control, database, directory)


async def owned_by(world: World, *names: str) -> None:
    """Wait until exactly these workers own the leases, each of them a fair share."""

    async def fact() -> bool:
        shares = Counter(await world.owners())
        return shares.keys() == set(names) and max(shares.values()) - min(shares.values()) <= 1

    await until(fact)


async def started(world: World, *names: str) -> list[Child]:
    """Start workers, wait until they share the leases, and return them."""
    workers = [await world.start(name) for name in names]
    await owned_by(world, *names)
    return workers
