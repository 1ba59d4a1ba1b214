"""What applications do with azure-cosmos, over real sockets."""

from __future__ import annotations

import asyncio

import pytest
from azure.cosmos import CosmosClient as SyncClient
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import (
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)
from azure.cosmos.partition_key import NonePartitionKeyValue, NullPartitionKeyValue

from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.emulators.cosmos.sdk import continuation_entries, continuation_of, drain, running

pytestmark = pytest.mark.looptime(False)


# Account, databases, containers


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_clients_connect_by_either_name(host):
    async with CosmosServer() as server, CosmosClient(f"http://{host}:{server.port}", server.key) as client:
        await client.create_database("d")
        assert ["d"] == [database["id"] async for database in client.list_databases()]


async def test_databases_and_containers_are_created_read_listed_replaced_and_deleted():
    async with running() as it:
        with pytest.raises(CosmosResourceExistsError):
            await it.client.create_database("d")
        assert "d" == (await it.database.read())["id"]
        with pytest.raises(CosmosResourceExistsError):
            await it.database.create_container("c", PartitionKey("/pk"))
        same = await it.database.create_container_if_not_exists("c", PartitionKey("/pk"))
        assert -1 == (await same.read())["defaultTtl"]
        await it.database.replace_container("c", PartitionKey("/pk"), default_ttl=30)
        assert 30 == (await it.container.read())["defaultTtl"]
        assert ["c"] == [container["id"] async for container in it.database.list_containers()]
        found = it.database.query_containers(
            "SELECT * FROM r WHERE r.id = @id", parameters=[{"name": "@id", "value": "c"}]
        )
        assert ["c"] == [container["id"] async for container in found]
        with pytest.raises(CosmosResourceNotFoundError):
            await it.database.get_container_client("nope").read()
        await it.database.delete_container("c")
        await it.client.delete_database("d")
        with pytest.raises(CosmosResourceNotFoundError):
            await it.database.read()


async def test_the_sync_sdk_works_too():
    async with CosmosServer() as server:

        def use() -> list[str]:
            with SyncClient(server.url, server.key) as client:
                container = client.create_database("d").create_container("c", PartitionKey("/pk"))
                container.create_item({"id": "a", "pk": "k"})
                container.execute_item_batch([("upsert", ({"id": "b", "pk": "k"},))], "k")
                feed = container.query_items_change_feed(start_time="Beginning")
                return sorted(item["id"] for item in feed)

        assert ["a", "b"] == await asyncio.to_thread(use)


# Items


async def test_items_are_created_read_replaced_upserted_and_deleted():
    async with running(partitions=3) as it:
        c = it.container
        created = await c.create_item({"id": "a", "pk": "k", "n": 1})
        assert float(created.get_response_headers()["x-ms-request-charge"]) > 0
        assert created["_etag"] == created.get_response_headers()["etag"]
        with pytest.raises(CosmosResourceExistsError):
            await c.create_item({"id": "a", "pk": "k"})
        assert 1 == (await c.read_item("a", "k"))["n"]
        replaced = await c.replace_item("a", {"id": "a", "pk": "k", "n": 2})
        assert (2, created["_rid"]) == (replaced["n"], replaced["_rid"])
        assert 3 == (await c.upsert_item({"id": "a", "pk": "k", "n": 3}))["n"]
        await c.delete_item("a", "k")
        with pytest.raises(CosmosResourceNotFoundError):
            await c.read_item("a", "k")
        with pytest.raises(CosmosResourceNotFoundError):
            await c.delete_item("a", "k")


@pytest.mark.parametrize("key", ["text", "ä/%+'|", "", 1, 1.5, -0.0, True, False])
async def test_every_type_of_partition_key_reaches_its_item(key):
    async with running(partitions=5) as it:
        await it.container.create_item({"id": "x", "pk": key})
        assert key == (await it.container.read_item("x", key))["pk"]
        assert 1 == len(await it.rows("SELECT * FROM c", partition_key=key))


async def test_null_and_missing_partition_keys_are_two_keys():
    async with running(partitions=5) as it:
        c = it.container
        await c.create_item({"id": "x", "pk": None, "n": 1})
        await c.create_item({"id": "x", "n": 2})
        assert 1 == (await c.read_item("x", NullPartitionKeyValue))["n"]
        assert 2 == (await c.read_item("x", NonePartitionKeyValue))["n"]


@pytest.mark.parametrize("item_id", ["ä €", "100%", "a+b", "it's", "a|b", "%41", '"q"', "😀"])
async def test_ids_with_special_characters_are_found(item_id):
    async with running() as it:
        await it.container.create_item({"id": item_id, "pk": "k"})
        assert item_id == (await it.container.read_item(item_id, "k"))["id"]


# Batches


async def test_a_batch_of_every_kind_succeeds_as_a_whole():
    async with running() as it:
        c = it.container
        await c.create_item({"id": "old", "pk": "k", "n": 1})
        etag = (await c.create_item({"id": "gone", "pk": "k"}))["_etag"]
        results = await c.execute_item_batch(
            [
                ("create", ({"id": "new", "pk": "k"},)),
                ("upsert", ({"id": "event", "pk": "k", "ttl": 100},)),
                (
                    "patch",
                    ("old", [{"op": "incr", "path": "/n", "value": 1}]),
                    {"filter_predicate": "from c where c.n = 1"},
                ),
                ("read", ("old",)),
                ("replace", ("new", {"id": "new", "pk": "k", "n": 9})),
                ("delete", ("gone",), {"if_match_etag": etag}),
            ],
            "k",
        )
        assert [201, 201, 200, 200, 200, 204] == [result["statusCode"] for result in results]
        assert 2 == results[3]["resourceBody"]["n"]
        assert float(results.get_response_headers()["x-ms-request-charge"]) > 6
        items, _, _ = await drain(c, start_time="Beginning")
        assert {"old", "new", "event"} == {item["id"] for item in items}
        assert 1 == len({item["_lsn"] for item in items})


async def test_a_hundred_operations_fit_a_batch():
    async with running() as it:
        operations = [("create", ({"id": str(i), "pk": "k"},)) for i in range(100)]
        assert 100 == len(await it.container.execute_item_batch(operations, "k"))


# Queries


# Change feed


async def test_a_token_made_from_a_range_and_a_raw_etag_resumes_there():
    async with running() as it:
        for i in range(10):
            await it.container.create_item({"id": f"d{i}", "pk": f"k{i}", "i": i})
        (feed_range,) = await it.ranges()
        items, _, _ = await drain(it.container, feed_range=feed_range, start_time="Beginning")
        middle = items[4]["_lsn"]
        token = continuation_of(it.inside.rid, feed_range, f'"{middle}"')
        rest, _, after = await drain(it.container, continuation=token)
        assert [item["id"] for item in items[5:]] == [item["id"] for item in rest]
        assert f'"{items[-1]["_lsn"]}"' == continuation_entries(after)[0]["token"]


# Splits and merges
