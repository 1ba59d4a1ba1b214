"""The unmodified SDK on a running emulator."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient, DatabaseProxy

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.server import CosmosServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """
    A server, a client, database "d" and container "c" on `/pk` with TTL on; `inside` is the engine's view of it.
    """

    server: CosmosServer
    clock: AdjustableClock
    client: CosmosClient
    database: DatabaseProxy
    container: ContainerProxy

    @property
    def inside(self) -> Container:
        return self.server.account.container("d", "c")

    def requests(self, kind: str) -> int:
        return self.server.gateway.counts[kind]

    async def ranges(self) -> list[dict[str, Any]]:
        return [item async for item in self.container.read_feed_ranges(force_refresh=True)]

    async def rows(self, query: str, **options: Any) -> list[Any]:
        return [item async for item in self.container.query_items(query, **options)]


@asynccontextmanager
async def running(*, partitions: int = 1, **options: Any) -> AsyncIterator[Setup]:
    clock = AdjustableClock()
    async with (
        CosmosServer(Account(partitions=partitions, clock=clock)) as server,
        CosmosClient(server.url, server.key, **options) as client,
    ):
        database = await client.create_database("d")
        container = await database.create_container("c", PartitionKey("/pk"), default_ttl=-1)
        yield Setup(server=server, clock=clock, client=client, database=database, container=container)


async def drain(container: ContainerProxy, **options: Any) -> tuple[list[Any], list[int], str]:
    """
    Read a change feed to its end; return the items, the sizes of the pages and the last composite continuation.
    """
    items: list[Any] = []
    sizes: list[int] = []
    headers: list[Any] = []
    feed = container.query_items_change_feed(response_hook=lambda h, _: headers.append(h), **options)
    async for page in feed.by_page():
        found = [item async for item in page]
        sizes.append(len(found))
        items += found
    return items, sizes, headers[-1]["etag"]


def continuation_entries(token: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(base64.b64decode(token))["continuation"]["continuation"]
    return entries


def continuation_of(rid: str, feed_range: dict[str, Any], etag: str) -> str:
    """Build the SDK's token from a range and the raw etag of the service, as a lease stores them."""
    inner = feed_range["Range"]
    token = {
        "v": "v2",
        "containerRid": rid,
        "mode": "LatestVersion",
        "startFrom": {"Type": "Beginning"},
        "continuation": {
            "v": "v2",
            "rid": rid,
            "continuation": [{"token": etag, "range": inner}],
            "Range": inner,
        },
    }
    return base64.b64encode(json.dumps(token).encode()).decode()
