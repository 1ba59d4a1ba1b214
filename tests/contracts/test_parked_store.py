"""ParkedStores keep their contract, and parking works on them."""

from __future__ import annotations

import asyncio
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
from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import ConfigurationError, KeyNotParked
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.resend import resending
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.contracts.ports.parked_store import ParkedStoreContract, everything
from tests.support.backends import AZURE_VARIABLE, BACKENDS
from tests.support.event_documents import batch, event

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


async def test_a_key_is_parked_released_and_handed_back_while_its_events_go_on(parked: ParkedStore) -> None:
    broker = MemoryBroker(rejects=lambda message: message.message_id == "b.2")
    relay = Relay(broker.publisher(), parking=Parking(parked), notify=lambda record: None)
    operator = ParkedKeys(parked, resending(broker.publisher()))

    def numbered(number: int) -> dict[str, Any]:
        return {**event("b", number), "id": f"b.{number}"}  # an id that Cosmos DB takes

    await relay(batch(*(numbered(number) for number in range(1, 120))))
    assert [f"b.{number}" for number in range(2, 120)] == [
        held.event_id for held in (await operator.show("b")).held
    ]
    await operator.drop("b", "b.3", reason="of no use")
    broker.rejects = lambda message: False

    async def load() -> None:
        for number in range(120, 150):
            await relay(batch(numbered(number)))

    _, released = await asyncio.gather(load(), operator.release("b"))
    while released.handed_back and await operator.list():
        released = await operator.release("b")
    assert [f"b.{number}" for number in range(1, 150) if number != 3] == [
        message.message_id for message in broker.accepted
    ]
    assert ["event.b.3"] == [
        document["id"] for document in await everything(parked, Scope().partition_of("b"))
    ]
    with pytest.raises(KeyNotParked):
        await operator.show("b")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"partition_key": PartitionKey("/id")}, "has to be on /partitionKey"),
        ({"default_ttl": 3600}, "deletes its documents after 3600 s"),
    ],
)
async def test_a_container_in_which_events_would_get_lost_is_refused(
    options: dict[str, Any], fault: str
) -> None:
    async with CosmosServer() as server, _database(server.connection_string) as (client, name):
        with pytest.raises(ConfigurationError, match=fault):
            await _created(client, name, **options)


async def test_a_missing_container_is_refused() -> None:
    async with CosmosServer() as server, _database(server.connection_string) as (client, name):
        with pytest.raises(ConfigurationError, match="does not exist"):
            await open_parked(client, name, "parked")
        with pytest.raises(
            ConfigurationError,
            match="of database 'nowhere', or that database, does not exist: create it with",
        ):
            await open_parked(client, "nowhere", "parked")


async def test_a_container_without_or_with_an_idle_time_to_live_is_taken() -> None:
    async with CosmosServer() as server, _database(server.connection_string) as (client, name):
        assert await _created(client, name, default_ttl=-1)
