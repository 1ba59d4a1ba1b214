"""What applications do with azure-cosmos, over real sockets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.core import MatchConditions
from azure.cosmos import CosmosClient as SyncClient
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosBatchOperationError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)
from azure.cosmos.partition_key import NonePartitionKeyValue, NullPartitionKeyValue

from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.emulators.cosmos.sdk import continuation_entries, continuation_of, drain, running

pytestmark = pytest.mark.looptime(False)

# aiohttp says so to the SDK, which sends bodies over 1 MB as bytes.
large_body = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


# Account, databases, containers


async def test_the_account_is_described():
    async with running() as it:
        account = await it.client._get_database_account()
        assert "Session" == account.ConsistencyPolicy["defaultConsistencyLevel"]
        assert it.server.url + "/" == account.WritableLocations[0]["databaseAccountEndpoint"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_clients_connect_by_either_name(host):
    async with CosmosServer() as server, CosmosClient(f"http://{host}:{server.port}", server.key) as client:
        await client.create_database("d")
        assert ["d"] == [database["id"] async for database in client.list_databases()]


async def test_clients_connect_by_connection_string():
    async with (
        CosmosServer() as server,
        CosmosClient.from_connection_string(server.connection_string) as client,
    ):
        assert [] == [database async for database in client.list_databases()]


async def test_a_wrong_key_is_unauthorized():
    async with CosmosServer() as server:
        client = CosmosClient(server.url, "d3Jvbmcga2V5")
        with pytest.raises(CosmosHttpResponseError) as caught:
            await client.__aenter__()
        await client.close()
    assert 401 == caught.value.status_code


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


async def test_a_recreated_container_is_found_by_a_client_that_knew_the_old_one():
    async with running() as it:
        await it.container.create_item({"id": "a", "pk": "k"})
        async with CosmosClient(it.server.url, it.server.key) as other:
            await other.get_database_client("d").delete_container("c")
            await other.get_database_client("d").create_container("c", PartitionKey("/pk"))
        await it.container.create_item({"id": "b", "pk": "k"})
        assert ["b"] == [item["id"] async for item in it.container.read_all_items()]


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


async def test_etags_guard_writes_and_spare_reads():
    async with running() as it:
        c = it.container
        old = await c.create_item({"id": "a", "pk": "k"})
        guard = {"etag": old["_etag"], "match_condition": MatchConditions.IfNotModified}
        await c.replace_item("a", {"id": "a", "pk": "k", "n": 1}, **guard)
        for write in (
            c.replace_item("a", {"id": "a", "pk": "k", "n": 2}, **guard),
            c.upsert_item({"id": "a", "pk": "k", "n": 2}, **guard),
            c.delete_item("a", "k", **guard),
            c.patch_item("a", "k", [{"op": "incr", "path": "/n", "value": 1}], **guard),
        ):
            with pytest.raises(CosmosAccessConditionFailedError):
                await write
        current = await c.read_item("a", "k")
        assert 1 == current["n"]
        changed = {"etag": current["_etag"], "match_condition": MatchConditions.IfModified}
        assert {} == dict(await c.read_item("a", "k", **changed))
        await c.upsert_item({"id": "a", "pk": "k", "n": 2})
        assert 2 == (await c.read_item("a", "k", **changed))["n"]


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


async def test_patches_are_applied_and_conditions_checked():
    async with running() as it:
        c = it.container
        await c.create_item({"id": "a", "pk": "k", "n": 1})
        operations = [
            {"op": "incr", "path": "/n", "value": 4},
            {"op": "set", "path": "/o", "value": {"list": [1]}},
            {"op": "add", "path": "/o/list/-", "value": 2},
            {"op": "move", "from": "/o/list", "path": "/list"},
        ]
        patched = await c.patch_item("a", "k", operations, filter_predicate="from c where c.n = 1")
        assert (5, {}, [1, 2]) == (patched["n"], patched["o"], patched["list"])
        with pytest.raises(CosmosAccessConditionFailedError):
            await c.patch_item("a", "k", operations, filter_predicate="from c where c.n = 1")
        with pytest.raises(CosmosHttpResponseError) as caught:
            await c.patch_item("a", "k", [{"op": "remove", "path": "/nothing"}])
        assert 400 == caught.value.status_code


async def test_no_response_leaves_the_body_out():
    async with running() as it:
        created = await it.container.create_item({"id": "a", "pk": "k"}, no_response=True)
        assert {} == dict(created)
        assert created.get_response_headers()["etag"]


@large_body
async def test_an_item_over_two_megabytes_is_too_large():
    async with running() as it:
        with pytest.raises(CosmosHttpResponseError) as caught:
            await it.container.create_item({"id": "a", "pk": "k", "text": "x" * 2_100_000})
        assert 413 == caught.value.status_code
        largest = await it.container.create_item({"id": "b", "pk": "k", "text": "x" * 2_090_000})
        assert 2_090_000 == len(largest["text"])


async def test_expired_items_are_invisible_everywhere():
    async with running() as it:
        c = it.container
        await c.create_item({"id": "short", "pk": "k", "ttl": 10})
        await c.create_item({"id": "never", "pk": "k", "ttl": -1})
        it.clock.advance(11)
        with pytest.raises(CosmosResourceNotFoundError):
            await c.read_item("short", "k")
        assert ["never"] == await it.rows("SELECT VALUE c.id FROM c", partition_key="k")
        items, _, _ = await drain(c, start_time="Beginning")
        assert ["never"] == [item["id"] for item in items]
        await c.create_item({"id": "short", "pk": "k"})


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


@pytest.mark.parametrize(
    ("operation", "status"),
    [
        (("create", ({"id": "there", "pk": "k"},)), 409),
        (("replace", ("there", {"id": "there", "pk": "k"}), {"if_match_etag": '"stale"'}), 412),
        (("delete", ("missing",)), 404),
        (("create", ({"id": "x", "pk": "other"},)), 400),
    ],
)
async def test_a_failing_batch_changes_nothing(operation, status):
    async with running() as it:
        c = it.container
        await c.create_item({"id": "there", "pk": "k"})
        _, _, token = await drain(c, start_time="Beginning")
        with pytest.raises(CosmosBatchOperationError) as caught:
            await c.execute_item_batch(
                [("upsert", ({"id": "first", "pk": "k"},)), operation, ("delete", ("there",))], "k"
            )
        assert (status, 1) == (caught.value.status_code, caught.value.error_index)
        assert [424, status, 424] == [result["statusCode"] for result in caught.value.operation_responses]
        assert ["there"] == await it.rows("SELECT VALUE c.id FROM c", partition_key="k")
        items, _, _ = await drain(c, continuation=token)
        assert [] == items


@large_body
@pytest.mark.parametrize(
    ("operations", "status"),
    [
        ([], 400),
        ([("upsert", ({"id": str(i), "pk": "k"},)) for i in range(101)], 400),
        ([("upsert", ({"id": str(i), "pk": "k", "text": "x" * 30_000},)) for i in range(80)], 413),
    ],
)
async def test_a_batch_past_the_limits_is_refused_as_a_whole(operations, status):
    async with running() as it:
        with pytest.raises(CosmosHttpResponseError) as caught:
            await it.container.execute_item_batch(operations, "k")
        assert status == caught.value.status_code
        assert [] == await it.rows("SELECT * FROM c", partition_key="k")


async def test_a_hundred_operations_fit_a_batch():
    async with running() as it:
        operations = [("create", ({"id": str(i), "pk": "k"},)) for i in range(100)]
        assert 100 == len(await it.container.execute_item_batch(operations, "k"))


# Queries


async def test_queries_run_on_one_key_on_one_range_and_on_all():
    async with running(partitions=4) as it:
        for i in range(60):
            await it.container.create_item({"id": f"d{i}", "pk": f"k{i % 20}", "i": i})
        where = "SELECT * FROM c WHERE c.pk = @pk AND c.i < @most"
        parameters = [{"name": "@pk", "value": "k7"}, {"name": "@most", "value": 40}]
        assert {7, 27} == {
            item["i"] for item in await it.rows(where, parameters=parameters, partition_key="k7")
        }
        assert {7, 27} == {item["i"] for item in await it.rows(where, parameters=parameters)}
        assert [60] == await it.rows("SELECT VALUE COUNT(1) FROM c")
        assert [59, 58, 57] == await it.rows("SELECT TOP 3 VALUE c.i FROM c ORDER BY c.i DESC")
        per_range = [len(await it.rows("SELECT * FROM c", feed_range=r)) for r in await it.ranges()]
        assert (4, 60) == (len(per_range), sum(per_range))
        assert 60 == len([item async for item in it.container.read_all_items(max_item_count=7)])
        found = await it.container.read_items([("d1", "k1"), ("d2", "k2"), ("d3", "wrong")])
        assert {"d1", "d2"} == {item["id"] for item in found}
        leases = "SELECT * FROM c WHERE STARTSWITH(c.id, 'd5') AND (c.i = 5 OR c.i >= 55) ORDER BY c.i"
        assert [5, 55, 56, 57, 58, 59] == [item["i"] for item in await it.rows(leases)]


async def test_a_query_resumes_from_its_continuation_in_another_client():
    async with running(partitions=2) as it:
        for i in range(25):
            await it.container.create_item({"id": f"d{i}", "pk": "k", "i": i})
        query = "SELECT VALUE c.i FROM c ORDER BY c.i DESC"
        of_key = {"partition_key": "k", "max_item_count": 10}
        pages = it.container.query_items(query, **of_key).by_page()
        first = [item async for item in await pages.__anext__()]
        token = pages.continuation_token
        await it.container.create_item({"id": "late", "pk": "k", "i": 24.5})
        async with CosmosClient(it.server.url, it.server.key) as other:
            container = other.get_database_client("d").get_container_client("c")
            rest = [
                i async for page in container.query_items(query, **of_key).by_page(token) async for i in page
            ]
        assert list(range(24, -1, -1)) == first + rest


async def test_a_malformed_query_is_a_bad_request():
    async with running() as it:
        with pytest.raises(CosmosHttpResponseError) as caught:
            await it.rows("SELEC * FRM c", partition_key="k")
        assert 400 == caught.value.status_code


# Change feed


async def test_each_range_is_read_in_order_and_resumed_where_it_stopped():
    async with running(partitions=4) as it:
        for i in range(80):
            await it.container.create_item({"id": f"d{i}", "pk": f"k{i % 30}", "i": i})
        seen, tokens = [], []
        for feed_range in await it.ranges():
            items, sizes, token = await drain(
                it.container, feed_range=feed_range, start_time="Beginning", max_item_count=5
            )
            assert sorted(item["_lsn"] for item in items) == [item["_lsn"] for item in items]
            assert all(size <= 5 for size in sizes)
            seen += [item["i"] for item in items]
            tokens.append(token)
        assert list(range(80)) == sorted(seen)
        for i in range(20):
            await it.container.upsert_item({"id": f"d{i}", "pk": f"k{i % 30}", "i": 1000 + i})
        later = [item["i"] for token in tokens for item in (await drain(it.container, continuation=token))[0]]
        assert list(range(1000, 1020)) == sorted(later)


async def test_a_feed_starts_from_now_from_a_time_and_for_one_key():
    async with running(partitions=2) as it:
        c = it.container
        await c.create_item({"id": "before", "pk": "k"})
        (feed_range,) = [
            r
            for r in await it.ranges()
            if await c.is_feed_range_subset(r, await c.feed_range_from_partition_key("k"))
        ]
        items, _, token = await drain(c, feed_range=feed_range, start_time="Now")
        assert [] == items
        await c.create_item({"id": "after", "pk": "k"})
        await c.create_item({"id": "elsewhere", "pk": "k2"})
        items, _, _ = await drain(c, continuation=token)
        assert "after" in [item["id"] for item in items]
        assert "before" not in [item["id"] for item in items]
        items, _, _ = await drain(c, partition_key="k", start_time="Beginning")
        assert ["before", "after"] == [item["id"] for item in items]
        hour_ago, in_an_hour = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))
        items, _, _ = await drain(c, start_time=hour_ago)
        assert 3 == len(items)
        items, _, _ = await drain(c, start_time=in_an_hour)
        assert [] == items


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


async def test_the_hook_shows_the_raw_etag_of_pages_and_of_empty_polls():
    async with running() as it:
        etags = []
        feed = it.container.query_items_change_feed(
            feed_range=(await it.ranges())[0],
            start_time="Beginning",
            response_hook=lambda headers, _: etags.append(headers["etag"]),
        )
        assert [] == [item async for item in feed]
        assert ['"1"'] == etags


async def test_all_versions_and_deletes_is_refused_as_on_an_account_where_it_was_not_switched_on():
    """
    By these words azure-cosmos' own tests know such an account (test_change_feed_all_versions), and are skipped on it.
    """
    async with running() as it:
        with pytest.raises(CosmosHttpResponseError) as refused:
            [item async for item in it.container.query_items_change_feed(mode="AllVersionsAndDeletes")]
    assert 400 == refused.value.status_code
    assert "All Versions and Deletes" in str(refused.value)
    assert "must be enabled" in str(refused.value)


# Splits and merges


async def test_a_split_gives_a_continuation_for_each_child_and_loses_nothing():
    async with running(partitions=2) as it:
        for i in range(60):
            await it.container.create_item({"id": f"d{i}", "pk": f"k{i}", "i": i})
        ranges = await it.ranges()
        first, _, token = await drain(
            it.container, feed_range=ranges[0], start_time="Beginning", max_item_count=7
        )
        it.inside.split("0")
        for i in range(60):
            await it.container.upsert_item({"id": f"d{i}", "pk": f"k{i}", "i": 100 + i})
        items, _, after = await drain(it.container, continuation=token, max_item_count=3)
        assert sorted(item["id"] for item in first) == sorted(item["id"] for item in items)
        assert 2 == len(continuation_entries(after))
        assert 3 == len(await it.ranges())
        assert [60] == await it.rows("SELECT VALUE COUNT(1) FROM c")


async def test_a_merge_keeps_the_parents_continuations_valid_for_their_ranges():
    async with running(partitions=2) as it:
        for i in range(40):
            await it.container.create_item({"id": f"d{i}", "pk": f"k{i}", "i": i})
        ranges = await it.ranges()
        parts = [await drain(it.container, feed_range=r, start_time="Beginning") for r in ranges]
        it.inside.merge("0", "1")
        changed = [0, 1, 2, 3, 4, 5]
        for i in changed:
            await it.container.upsert_item({"id": f"d{i}", "pk": f"k{i}", "i": 100 + i})
        assert 1 == len(await it.ranges())
        for r, (items, _, token) in zip(ranges, parts, strict=True):
            etag = continuation_entries(token)[0]["token"]
            later, _, _ = await drain(it.container, continuation=continuation_of(it.inside.rid, r, etag))
            mine = {item["id"] for item in items}
            assert {f"d{i}" for i in changed} & mine == {item["id"] for item in later}


async def test_load_goes_on_while_ranges_split_and_merge():
    async with running(partitions=2) as it:
        stopped = asyncio.Event()

        async def write(worker: int) -> int:
            written = 0
            while not stopped.is_set():
                await it.container.upsert_item({"id": f"{worker}-{written}", "pk": f"k{written % 17}"})
                written += 1
            return written

        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(write(worker)) for worker in range(4)]
            for _ in range(6):
                await it.container.upsert_item({"id": "mark", "pk": "mark"})
                await it.container.upsert_item({"id": "mark", "pk": "mark"})
                partitions = it.inside.partitions
                if len(partitions) > 4:
                    it.inside.merge(partitions[0].range_id, partitions[1].range_id)
                else:
                    it.inside.split(partitions[-1].range_id)
            stopped.set()
        total = sum(writer.result() for writer in writers)
        items = [
            item
            for r in await it.ranges()
            for item in (await drain(it.container, feed_range=r, start_time="Beginning"))[0]
        ]
        assert total + 1 == len(items) == len({item["id"] for item in items})


async def test_kedas_lag_query_gets_what_it_needs():
    """The scaler computes lag as session LSN - LSN of the first unread change + 1 from one raw response."""
    async with running() as it:
        for i in range(5):
            await it.container.create_item({"id": str(i), "pk": "k"})
        headers: list[dict[str, str]] = []
        token = continuation_of(it.inside.rid, (await it.ranges())[0], '"3"')
        feed = it.container.query_items_change_feed(
            continuation=token, max_item_count=1, response_hook=lambda h, _: headers.append(dict(h))
        )
        first = await anext(item async for item in await anext(feed.by_page()))
        session_lsn = int(headers[0]["x-ms-session-token"].split("#")[1])
        assert 3 == session_lsn - first["_lsn"] + 1
