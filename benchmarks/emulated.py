"""Start the emulators in a process of their own for the benchmarks, and create containers full of events and topics there."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient, DatabaseProxy

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox_testing.verify.child_processes import Children

DATABASE = "bench"
PARKED = "parked"
ACTION = "ContactNameUpdatedEvent"
BODY_TEXT = "x" * 500  # a message with this text and its properties has about 1 KB
_SEEDERS = 8
_TOPICS = 128
SESSION_TOPICS = 64
_WATCH_SECONDS = 0.02
_THROUGHPUT_OF_A_PARTITION, _MOST_THROUGHPUT = 6_000, 1_000_000


class Emulated:
    """
    The running emulators, with methods that create containers, choose unused topics and read counters.

    A topic remembers message ids and would drop repeated messages, so each run that sends needs a topic of its own.
    """

    def __init__(
        self, announced: dict[str, str], client: CosmosClient, control: aiohttp.ClientSession
    ) -> None:
        self.cosmos, self.servicebus = announced["cosmos"], announced["servicebus"]
        self.client, self._control = client, control
        self._numbers, self._session_numbers = itertools.count(), itertools.count()

    @property
    def database(self) -> DatabaseProxy:
        """Return the database in which all containers of the benchmarks are."""
        return self.client.get_database_client(DATABASE)

    def new_session_topic(self) -> str:
        """Return the name of an unused topic. Its subscription `all` requires sessions."""
        return f"sessions-{next(self._session_numbers)}"

    def new_topic(self, *, premium: bool = False) -> str:
        """Return the name of an unused topic. With `premium`, it accepts batches of 1 MB, as in the Premium tier."""
        return f"{'premium' if premium else 'events'}-{next(self._numbers)}"

    async def new_leases(self) -> str:
        """Create an empty lease container, and return its name."""
        name = f"leases-{uuid.uuid4().hex[:8]}"
        await self.database.create_container(name, PartitionKey("/id"))
        return name

    async def new_events(
        self, events: int, *, keys: int = 1000, in_commit: int = 1, partitions: int = 1, text: str = BODY_TEXT
    ) -> str:
        """Create a container with `events` events, spread evenly over `keys` partition keys, and return its name."""
        name = f"data-{events}-{uuid.uuid4().hex[:8]}"
        at_first = min(partitions, _MOST_THROUGHPUT // _THROUGHPUT_OF_A_PARTITION)
        container = await self.database.create_container(
            name,
            PartitionKey("/partitionKey"),
            default_ttl=-1,
            offer_throughput=_THROUGHPUT_OF_A_PARTITION * at_first,
        )
        ranges = deque(str(number) for number in range(at_first))
        while len(ranges) < partitions:
            of = {"database": DATABASE, "container": name, "range": ranges.popleft()}
            ranges += (await self._tell("POST", "/cosmos/split", of))["children"]
        commits = iter(range(0, events, in_commit))

        async def seed() -> None:
            for first in commits:
                key = f"key-{first // in_commit % keys}"
                await commit_events(container, key, first, in_commit, text=text)

        async with asyncio.TaskGroup() as group:
            for _ in range(_SEEDERS):
                group.create_task(seed())
        return name

    async def delay(self, milliseconds: float, *, cosmos: bool = True) -> None:
        """
        Have the emulators delay every acknowledgement of a send and, if `cosmos` is set, every reply of Cosmos DB. 0 milliseconds end
        the delay.
        """
        for path in ("/cosmos/faults", "/servicebus/faults"):
            await self._tell("DELETE", path)
        if milliseconds:
            seconds = milliseconds / 1000
            if cosmos:
                await self._tell("POST", "/cosmos/faults", {"delay_s": seconds})
            await self._tell("POST", "/servicebus/faults", {"action": "latency", "seconds": seconds})

    async def throttle(self, data: str, request_units: float) -> None:
        """Limit a container to a number of request units per second."""
        of = {"database": DATABASE, "container": data, "request_units": request_units}
        await self._tell("POST", "/cosmos/throttle", of)

    async def throttled(self) -> int:
        """Return how many requests of normal priority Cosmos DB has refused because of too few request units."""
        stats = await self._tell("GET", "/cosmos/stats")
        return int(stats["requests"].get("throttled", 0))

    async def published(self, topic: str) -> int:
        """Return how many messages a topic has accepted so far."""
        stats = await self._tell("GET", "/servicebus/stats")
        return int(stats["topics"][topic]["published"])

    async def until_published(self, topic: str, messages: int) -> None:
        """Wait until a topic has accepted a number of messages."""
        while True:
            if await self.published(topic) >= messages:
                return
            await asyncio.sleep(_WATCH_SECONDS)

    async def requests(self, kind: str | None = None) -> int:
        """Return how many requests Cosmos DB has answered: those of one kind, or all if no kind is given."""
        requests = (await self._tell("GET", "/cosmos/stats"))["requests"]
        return int(requests.get(kind, 0)) if kind else sum(requests.values())

    async def _tell(self, method: str, path: str, fields: dict[str, Any] | None = None) -> Any:
        async with self._control.request(method, path, json=fields) as answer:
            return await answer.json() if answer.status == 200 else None  # noqa: PLR2004 - 204 has no body


async def commit_events(
    container: ContainerProxy,
    key: str,
    first: int,
    count: int,
    *,
    created_ns: int | None = None,
    text: str = BODY_TEXT,
) -> None:
    """Write events in one transactional batch, as documents like those that the outbox writes."""
    commit = str(uuid.uuid4())
    operations: list[Any] = []
    for sequence in range(count):
        event_id = f"{first + sequence}-{uuid.uuid4()}"
        document = {
            "id": event_id,
            "partitionKey": key,
            "type": "domainEvent",
            "ttl": 864000,
            "data": {
                "id": event_id,
                "action": ACTION,
                "createdAt": "2026-01-01T00:00:00.000000Z",
                "createdNs": created_ns,
                "number": first + sequence,
                "text": text,
            },
            "meta": {
                "entityType": "contact",
                "entityId": key,
                "entityVersion": first + 1,
                "commitId": commit,
                "sequence": sequence,
                "schemaVersion": 1,
                "correlationId": commit,
            },
        }
        operations.append(("create", (document,), {}))
    await container.execute_item_batch(operations, key)


def _configuration(directory: Path) -> Path:
    topics = [
        {
            "name": f"{name}-{number}",
            "dedup_window_s": 600,
            "max_message_size": size,
            "subscriptions": [{"name": "all", "requires_session": False}],
        }
        for name, size in (("events", 256 * 1024), ("premium", 1024 * 1024))
        for number in range(_TOPICS)
    ]
    topics += [
        {
            "name": f"sessions-{number}",
            "subscriptions": [{"name": "all", "requires_session": True, "lock_s": 60}],
        }
        for number in range(SESSION_TOPICS)
    ]
    config = directory / "servicebus.json"
    config.write_text(json.dumps({"topics": topics}))
    return config


@asynccontextmanager
async def emulated() -> AsyncIterator[Emulated]:
    """Start the emulators, yield them, and stop them at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="cosmos-outbox-bench-") as directory:
        config = _configuration(Path(directory))
        async with Children(Path(directory)) as children:
            process = await children.start(
                "emulators",
                ("-m", "cosmos_outbox_emulators", "--json", "--config", str(config)),
                env={},
                announces=True,
            )
            announced = await process.announcement()
            async with (
                open_cosmos_client(connection_string=announced["cosmos"]) as client,
                aiohttp.ClientSession(announced["control"], raise_for_status=True) as control,
            ):
                database = await client.create_database(DATABASE)
                await database.create_container(PARKED, PartitionKey("/partitionKey"))
                yield Emulated(announced, client, control)
