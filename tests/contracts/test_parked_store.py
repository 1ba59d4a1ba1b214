"""
Run the contract tests of the `ParkedStore` port on each of its implementations, in memory and for Cosmos DB.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.parked import open_parked
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_testing.contracts.parked_store import ParkedStoreContract
from tests.support.backends import AZURE_VARIABLE, BACKENDS

pytestmark = pytest.mark.looptime(False)


@pytest.fixture(params=BACKENDS)
async def parked(request: pytest.FixtureRequest) -> AsyncIterator[ParkedStore]:
    if request.param == "memory":
        yield MemoryParked()
    elif request.param == "emulator":
        async with CosmosServer() as server, _database(server.connection_string) as (client, name):
            yield await _created(client, name)
    else:
        async with _database(os.environ[AZURE_VARIABLE]) as (client, name):
            yield await _created(client, name)


@asynccontextmanager
async def _database(connection_string: str) -> AsyncIterator[tuple[CosmosClient, str]]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    async with open_cosmos_client(connection_string=connection_string) as client:
        await client.create_database(name)
        try:
            yield client, name
        finally:
            await client.delete_database(name)


async def _created(client: CosmosClient, database: str, **options: Any) -> ParkedStore:
    await client.get_database_client(database).create_container(
        "parked", options.pop("partition_key", PartitionKey("/partitionKey")), **options
    )
    return await open_parked(client, database, "parked")


class TestParkedStore(ParkedStoreContract):
    @pytest.fixture
    def store(self, parked: ParkedStore) -> ParkedStore:
        return parked


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"partition_key": PartitionKey("/id")}, "create one with partition key /partitionKey"),
        ({"default_ttl": 3600}, "deletes its documents after 3600 s"),
    ],
)
async def test_a_parked_container_that_could_lose_events_is_refused(
    options: dict[str, Any], fault: str
) -> None:
    async with CosmosServer() as server, _database(server.connection_string) as (client, name):
        with pytest.raises(ConfigurationError, match=fault):
            await _created(client, name, **options)
