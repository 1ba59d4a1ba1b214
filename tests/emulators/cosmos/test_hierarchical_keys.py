"""Hierarchical partition keys, keys of other types and nested paths, as the unmodified SDK uses them."""

from __future__ import annotations

import json
import random
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from azure.cosmos.exceptions import (
    CosmosHttpResponseError,
)

from cosmos_outbox_emulators.cosmos.partition_key import logical_key
from tests.emulators.cosmos.driver import Driver, substatus
from tests.emulators.cosmos.sdk import Setup, running

pytestmark = pytest.mark.looptime(False)

PATHS = ["/tenantId", "/owner/userId", "/session"]


@asynccontextmanager
async def hierarchical(*, partitions: int = 1) -> AsyncIterator[tuple[Setup, ContainerProxy]]:
    async with running(partitions=partitions) as setup:
        yield setup, await setup.database.create_container("h", PartitionKey(path=PATHS), default_ttl=-1)


def an_item(item_id: str, tenant: Any, user: Any, session: Any, **fields: Any) -> dict[str, Any]:
    return {
        "id": item_id,
        "tenantId": tenant,
        "owner": {"userId": user, "name": "x"},
        "session": session,
        **fields,
    }


async def test_the_hash_is_the_one_of_the_python_sdk():
    draw = random.Random(7)
    words = ["".join(draw.choices(string.printable + "äß€😀", k=length)) for length in range(30)]
    keys: list[list[Any]] = [[words[n], words[-n - 1], n] for n in range(30)]
    keys += [["t", 1, 1.5], [True, False, "x"], [None, "a", ""], ["t1", "u1", {}]]
    async with hierarchical() as (_, container):
        for key in keys:
            found = (await container.feed_range_from_partition_key(key))["Range"]["min"]
            assert found == logical_key(key).epk, key
            assert 96 == len(found)


@pytest.mark.parametrize("key", [["t1"], ["t1", "u1"], ["t1", "u1", 1, 2]])
async def test_a_partial_key_is_refused_by_reads_writes_and_batches(key: list[Any]):
    async with hierarchical() as (_, container):
        await container.create_item(an_item("i", "t1", "u1", 1))
        for call in (
            container.read_item("i", key),
            container.delete_item("i", key),
            container.execute_item_batch([("delete", ("i",))], key),
        ):
            with pytest.raises(CosmosHttpResponseError) as caught:
                await call
            assert (400, 1001) == (caught.value.status_code, caught.value.sub_status)


async def test_a_query_by_the_first_levels_finds_all_keys_that_begin_with_them():
    async with hierarchical(partitions=4) as (setup, container):
        for tenant in ("t1", "t2"):
            for user in range(5):
                for session in (1, 2):
                    await container.create_item(an_item("i", tenant, user, session))

        async def count(key: list[Any]) -> int:
            return len([item async for item in container.query_items("SELECT * FROM c", partition_key=key)])

        assert [10, 2, 1, 0] == [await count(key) for key in (["t2"], ["t2", 3], ["t2", 3, 2], ["t3"])]

        inside = setup.server.account.container("d", "h")
        for partition in list(inside.partitions):
            inside.split(partition.range_id)
        assert [10, 2] == [await count(key) for key in (["t1"], ["t1", 0])]


def test_null_and_a_missing_property_are_keys_of_their_own():
    driver = Driver()
    for name, key in (("null", "[null]"), ("missing", "[{}]")):
        body = {"id": name, **({"pk": None} if name == "null" else {})}
        reply = driver.send("POST", "/dbs/d/colls/c/docs", body, x_ms_documentdb_partitionkey=key)
        assert 201 == reply.status
    body = {"id": "x"}
    refused = driver.send("POST", "/dbs/d/colls/c/docs", body, x_ms_documentdb_partitionkey="[null]")
    assert (400, 1001) == substatus(refused)


def test_a_container_says_how_its_key_is_made():
    driver = Driver()
    definition = {"paths": PATHS, "kind": "MultiHash", "version": 2}
    driver.ok("POST", "/dbs/d/colls", {"id": "h", "partitionKey": definition})
    assert definition == driver.ok("GET", "/dbs/d/colls/h")["partitionKey"]
    refused = driver.send("PUT", "/dbs/d/colls/h", {"id": "h", "partitionKey": {"paths": ["/tenantId"]}})
    assert 400 == refused.status, json.loads(refused.body)
