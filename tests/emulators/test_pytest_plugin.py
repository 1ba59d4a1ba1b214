"""
Tests of the pytest fixtures of the package `cosmos-outbox-emulators`. Pytest finds them through the package's entry point, as on a user's
machine.
"""

from __future__ import annotations

import pytest
from azure.cosmos import CosmosClient
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.servicebus import ServiceBusClient as BlockingServiceBusClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

pytestmark = pytest.mark.looptime(False)


def test_a_blocking_test_can_use_the_cosmos_db_fixture(cosmos_emulator):
    """With the fixture, a test can create containers, split ranges, move the clock and plant faults."""
    cosmos_emulator.create_container("shop", "orders", default_ttl=-1, ranges=2)
    cosmos_emulator.create_container("shop", "leases")
    with CosmosClient.from_connection_string(cosmos_emulator.connection_string, retry_total=0) as client:
        orders = client.get_database_client("shop").get_container_client("orders")
        orders.create_item({"id": "1", "partitionKey": "ada", "ttl": 60})
        cosmos_emulator.add_fault({"operation": "read", "status": 500})
        with pytest.raises(CosmosHttpResponseError):
            orders.read_item("1", "ada")
        cosmos_emulator.clear_faults()
        assert "1" == orders.read_item("1", "ada")["id"]
        assert 2 == len(list(orders.read_feed_ranges()))

        first, second = cosmos_emulator.split("shop", "orders", "0")
        assert 3 == len(list(orders.read_feed_ranges(force_refresh=True)))
        cosmos_emulator.merge("shop", "orders", first, second)
        assert 2 == len(list(orders.read_feed_ranges(force_refresh=True)))

        cosmos_emulator.advance(61)
        assert [] == list(orders.read_all_items())
    assert 1 == cosmos_emulator.requests()["create"]


def test_the_cosmos_db_fixture_creates_a_container_with_a_hierarchical_key(cosmos_emulator):
    cosmos_emulator.create_container("shop", "orders", partition_key=["/tenantId", "/userId"])
    with CosmosClient.from_connection_string(cosmos_emulator.connection_string) as client:
        orders = client.get_database_client("shop").get_container_client("orders")
        orders.create_item({"id": "1", "tenantId": "t1", "userId": "u1"})
        assert "1" == orders.read_item("1", ["t1", "u1"])["id"]


async def test_an_async_test_can_use_the_cosmos_db_fixture(cosmos_emulator):
    cosmos_emulator.create_container("shop", "orders")
    async with AsyncCosmosClient.from_connection_string(cosmos_emulator.connection_string) as client:
        orders = client.get_database_client("shop").get_container_client("orders")
        await orders.create_item({"id": "1", "partitionKey": "ada"})
        assert ["1"] == [item["id"] async for item in orders.read_all_items()]


async def test_a_test_can_use_the_service_bus_fixture(servicebus_emulator):
    servicebus_emulator.add_topic({"name": "orders", "subscriptions": [{"name": "all"}]})
    servicebus_emulator.add_queue({"name": "returns"})
    async with (
        ServiceBusClient.from_connection_string(servicebus_emulator.connection_string) as client,
        client.get_topic_sender("orders") as sender,
    ):
        servicebus_emulator.add_fault({"action": "server-busy"})
        await sender.send_messages(ServiceBusMessage("one"))  # refused once, and the SDK repeats it
        servicebus_emulator.clear_faults()
        await sender.send_messages(ServiceBusMessage("two"))
    servicebus_emulator.drop_connections()

    assert 2 == servicebus_emulator.stats()["topics"]["orders"]["published"]


def test_each_fixture_can_switch_on_a_deviation(cosmos_emulator, servicebus_emulator):
    cosmos_emulator.create_container("shop", "orders")
    statuses = []
    with CosmosClient.from_connection_string(cosmos_emulator.connection_string) as client:
        orders = client.get_database_client("shop").get_container_client("orders")
        for name in ("missing-is-1003", None):
            cosmos_emulator.deviate(name)
            with pytest.raises(CosmosHttpResponseError) as refused:
                orders.read_item("1", "ada")
            statuses.append(refused.value.sub_status)
    servicebus_emulator.deviate("duplicates-kept")
    client = BlockingServiceBusClient.from_connection_string(servicebus_emulator.connection_string)
    with client, client.get_topic_sender("events") as sender:
        for _ in range(2):
            sender.send_messages(ServiceBusMessage("same", message_id="1", session_id="ada"))
    assert ([1003, 0], 2) == (statuses, servicebus_emulator.stats()["topics"]["events"]["published"])
    with pytest.raises(ValueError, match="no deviation 'none'; the deviations are duplicates-kept, "):
        servicebus_emulator.deviate("none")


def test_a_test_gets_an_error_for_a_wrong_argument_of_a_fixture(cosmos_emulator, servicebus_emulator):
    with pytest.raises(ValueError, match="unknown field 'operations'"):
        cosmos_emulator.add_fault({"operations": "batch"})
    with pytest.raises(ValueError, match="lock_s"):
        servicebus_emulator.add_queue({"name": "returns", "lock_s": "long"})
