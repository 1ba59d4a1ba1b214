"""
The Cosmos DB that a contract runs on: memory, the emulator through the vendor SDK, or a real account.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos.client import account_host, open_cosmos_client, rest_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.rest_store import open_rest_store
from cosmos_outbox.adapters.cosmos.store import CosmosStore, open_store
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.ports import ChangeFeed, LeaseStore, Store, Write, WriteKind
from cosmos_outbox_emulators.cosmos.faults import Faults
from cosmos_outbox_emulators.cosmos.server import CosmosServer

AZURE_VARIABLE = "OUTBOX_TEST_COSMOS_CONNECTION_STRING"
WITHOUT_REST = "emulator through the SDK alone"
REST_STORE = "emulator, commits over REST"
BACKENDS = ["memory", "emulator", *(["azure"] if os.environ.get(AZURE_VARIABLE) else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """
    One empty container through all of its ports.

    `split` is None where the backend splits when it likes. `recreate` deletes the container and creates it again. `faults` is None
    where no request fails on demand.
    """

    store: Store
    feed: ChangeFeed
    leases: LeaseStore
    split: Callable[[str], object] | None
    recreate: Callable[[], Awaitable[None]] | None = None
    faults: Faults | None = None


@asynccontextmanager
async def opened(
    backend: str, *, ranges: int = 1, key_paths: Sequence[str] = ("/partitionKey",)
) -> AsyncIterator[Container]:
    if backend == "memory":
        memory = MemoryContainer(ranges=ranges, key_paths=key_paths)

        async def recreate() -> None:
            memory.recreate(ranges=ranges)

        yield Container(
            store=memory, feed=memory, leases=MemoryLeases(), split=memory.split, recreate=recreate
        )
    elif backend in ("emulator", WITHOUT_REST, REST_STORE):
        with_rest = backend != WITHOUT_REST
        open_data = _warm_rest_store if backend == REST_STORE else open_store
        async with (
            CosmosServer() as server,
            _on_account(server.connection_string, ranges, key_paths, with_rest, open_data) as (
                container,
                name,
            ),
        ):

            def split(range_id: str) -> object:
                return server.account.container(name, "data").split(range_id)

            async def recreate() -> None:  # by another program: our client's caches keep the old one
                async with open_cosmos_client(connection_string=server.connection_string) as other:
                    database = other.get_database_client(name)
                    await database.delete_container("data")
                    await database.create_container("data", PartitionKey("/partitionKey"))

            yield replace(container, split=split, recreate=recreate, faults=server.faults)
    else:
        async with _on_account(os.environ[AZURE_VARIABLE], ranges, key_paths) as (container, _):
            yield container


@asynccontextmanager
async def _on_account(
    connection_string: str,
    ranges: int,
    key_paths: Sequence[str],
    with_rest: bool = True,
    open_data: Callable[[CosmosClient, str, str], Awaitable[Store]] = open_store,
) -> AsyncIterator[tuple[Container, str]]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    # What is slow is the machine: no contract is about the client's own timeout.
    async with open_cosmos_client(connection_string=connection_string, read_timeout_seconds=60) as client:
        database = await client.create_database(name)
        try:
            throughput = 6_000 * ranges if ranges > 1 else None
            key = PartitionKey([*key_paths]) if len(key_paths) > 1 else PartitionKey(key_paths[0])
            data = await database.create_container("data", key, default_ttl=-1, offer_throughput=throughput)
            store = await open_data(client, name, "data")
            leases = await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
            rest = rest_client(client) if with_rest else None
            feed = CosmosChangeFeed(data, account_host=account_host(client), rest=rest)
            yield (
                Container(store=store, feed=feed, leases=CosmosLeases(leases, rest=rest), split=None),
                name,
            )
        finally:
            await client.delete_database(name)


async def _warm_rest_store(client: CosmosClient, database: str, container: str) -> CosmosStore:
    """
    Return a store that has learned from the SDK how to send, so that the test's own requests go over REST.
    """
    store = await open_rest_store(client, database, container)
    levels = {name: "warm" for path in store.key_paths.levels for name in path}
    key = ("warm",) * len(store.key_paths.levels) if len(store.key_paths.levels) > 1 else "warm"
    await store.commit(key, [Write(kind=WriteKind.CREATE, id="warm", document={**levels, "id": "warm"})])
    await store.read("warm", key)
    await store.commit(key, [Write(kind=WriteKind.DELETE, id="warm")])
    return store
