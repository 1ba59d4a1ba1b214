"""
What the adapter makes of the lease container's answers: its splits are outages, and its clock is the service's.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.errors import (
    ConfigurationError,
    StoreUnavailable,
)
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)


@pytest.mark.parametrize("sub_status", [1002, 1007])
async def test_a_range_of_the_lease_container_that_is_gone_makes_every_call_one_that_was_not_executed(
    server: CosmosServer, client: CosmosClient, sub_status: int
):
    database = await client.create_database("db")
    leases = CosmosLeases(await database.create_container("leases", PartitionKey("/id")))
    lease = await leases.create({"id": "a"})
    calls = {
        RequestKind.READ: lambda: leases.read("a", "a"),
        RequestKind.CREATE: lambda: leases.create({"id": "b"}),
        RequestKind.REPLACE: lambda: leases.replace({"id": "a"}, etag=lease["_etag"]),
        RequestKind.DELETE: lambda: leases.delete("a", "a", etag=lease["_etag"]),
    }
    for operation, call in calls.items():
        server.faults.add(FaultRule(operation=operation, status=410, substatus=sub_status))
        with pytest.raises(StoreUnavailable) as refused:
            await call()
        assert refused.value.applied is False


async def test_a_list_was_read_when_the_service_says_so_whatever_the_time_is_here():
    moment = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    async with (
        CosmosServer(Account(clock=moment.timestamp)) as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("db")
        leases = CosmosLeases(await database.create_container("leases", PartitionKey("/id")))

        assert moment == (await leases.list("p..")).read_at


@pytest.mark.parametrize("ttl", [None, -1, 3600])
async def test_a_container_that_deletes_leases_by_itself_is_refused_with_the_fix(
    client: CosmosClient, ttl: int | None
):
    database = await client.create_database("db")
    container = await database.create_container("leases", PartitionKey("/id"), default_ttl=ttl)
    leases = CosmosLeases(container)
    if ttl == 3600:
        with pytest.raises(ConfigurationError, match="time to live to -1"):
            await leases.partitioned_by_id()
    else:
        assert await leases.partitioned_by_id()


async def test_in_a_container_partitioned_on_partition_key_a_document_without_one_gets_its_id(
    client: CosmosClient,
):
    database = await client.create_database("db")
    leases = CosmosLeases(await database.create_container("leases", PartitionKey("/partitionKey")))
    named = [await leases.create({"id": "a"}), await leases.create({"id": "b", "partitionKey": "c"})]

    assert ["a", "c"] == [document["partitionKey"] for document in named]
    assert ["a", "b"] == [(await leases.read("a", "a"))["id"], (await leases.read("b", "c"))["id"]]
