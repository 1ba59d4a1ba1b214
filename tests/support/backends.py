"""Open a container for contract tests: in memory, on the emulator through the Azure SDK, or on a real account."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from azure.cosmos import PartitionKey

from cosmos_outbox.adapters.cosmos.client import account_of, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.ports import ChangeFeed, LeaseStore, Store
from cosmos_outbox_emulators.cosmos.faults import Faults
from cosmos_outbox_emulators.cosmos.server import CosmosServer

AZURE_VARIABLE = "OUTBOX_TEST_COSMOS_CONNECTION_STRING"
SDK_ONLY = "emulator through the SDK alone"
BACKENDS = ["memory", "emulator", *(["azure"] if os.environ.get(AZURE_VARIABLE) else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """
    An empty container for a test, and the ports of the library on it.

    `split` splits a physical partition, or is None if a test cannot do that on this backend. `recreate` deletes the container and creates
    it again. `faults` makes requests fail, or is None if a test cannot do that.
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
    elif backend in ("emulator", SDK_ONLY):
        sdk_only = backend == SDK_ONLY
        async with (
            CosmosServer() as server,
            _on_account(server.connection_string, ranges, key_paths, sdk_only=sdk_only) as (
                container,
                name,
            ),
        ):

            def split(range_id: str) -> object:
                return server.account.container(name, "data").split(range_id)

            # Recreate the container with another client, so that the caches of the client under test still have the old container.
            async def recreate() -> None:
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
    *,
    sdk_only: bool = False,
) -> AsyncIterator[tuple[Container, str]]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    # Set a long timeout, because a slow answer only means that the machine is busy. No contract tests the timeout of the client.
    async with open_cosmos_client(connection_string=connection_string, read_timeout_seconds=60) as client:
        database = await client.create_database(name)
        try:
            throughput = 6_000 * ranges if ranges > 1 else None
            key = PartitionKey([*key_paths]) if len(key_paths) > 1 else PartitionKey(key_paths[0])
            data = await database.create_container("data", key, default_ttl=-1, offer_throughput=throughput)
            store = await open_store(client, name, "data")
            leases = await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
            polls = None if sdk_only else account_of(client).polls()
            feed = CosmosChangeFeed(data, account_host=account_of(client).host, polls=polls)
            yield (
                Container(store=store, feed=feed, leases=CosmosLeases(leases), split=None),
                name,
            )
        finally:
            await client.delete_database(name)
