"""What the SDK does on each failure: the table of attempts that the library's own retries are built on."""

from __future__ import annotations

import asyncio

import pytest
from azure.cosmos.exceptions import (
    CosmosBatchOperationError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
)

from tests.emulators.cosmos.sdk import drain, running

pytestmark = pytest.mark.looptime(False)

BATCH = [("create", ({"id": "b", "pk": "k"},))]


def perform(it, operation):
    match operation:
        case "read":
            return it.container.read_item("a", "k")
        case "create":
            return it.container.create_item({"id": "b", "pk": "k"})
        case "upsert":
            return it.container.upsert_item({"id": "a", "pk": "k", "n": 2})
        case "batch":
            return it.container.execute_item_batch(BATCH, "k")
        case "query":
            return it.rows("SELECT * FROM c", partition_key="k")
        case "changefeed":
            return drain(it.container, start_time="Beginning")


async def attempts(it, operation, **fault):
    """
    Perform an operation while every request for it fails; return the status raised and the number of requests.
    """
    await it.container.upsert_item({"id": "a", "pk": "k", "n": 1})
    await it.ranges()
    before = it.requests(operation)
    it.server.faults.add({"operation": operation, **fault})
    with pytest.raises(CosmosHttpResponseError) as caught:
        await perform(it, operation)
    it.server.faults.clear()
    await perform(it, operation)  # the connection and the client are still good
    return caught.value.status_code, caught.value.sub_status or 0, it.requests(operation) - before - 1


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("read", 10), ("create", 10), ("upsert", 10), ("batch", 10), ("query", 100)],
)
async def test_throttling_is_retried(operation, expected):
    async with running() as it:
        outcome = await attempts(it, operation, status=429, substatus=3200, retry_after_ms=1)
        assert (429, 3200, expected) == outcome


@pytest.mark.parametrize("operation", ["read", "create", "upsert", "batch", "query"])
async def test_retry_with_is_not_retried(operation):
    async with running() as it:
        assert (449, 0, 1) == await attempts(it, operation, status=449)


@pytest.mark.parametrize(
    ("operation", "status", "expected"),
    [
        ("read", 503, 2),
        ("batch", 503, 2),
        ("create", 500, 1),
        ("batch", 408, 1),
        ("batch", 500, 1),
        ("read", 500, 2),
    ],
)
async def test_server_errors_are_retried_for_reads_and_when_unavailable(operation, status, expected):
    async with running() as it:
        assert (status, 0, expected) == await attempts(it, operation, status=status)


async def test_a_batch_sees_a_gone_range_once():
    async with running() as it:
        assert (410, 1002, 1) == await attempts(it, "batch", status=410, substatus=1002)


async def test_a_feed_survives_a_hundred_answers_of_a_completing_split():
    async with running() as it:
        await it.container.create_item({"id": "a", "pk": "k"})
        it.server.faults.add({"operation": "changefeed", "status": 410, "substatus": 1007, "count": 100})
        items, _, _ = await drain(it.container, start_time="Beginning")
        assert ["a"] == [item["id"] for item in items]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_dropped_connection_is_retried_and_a_lost_answer_becomes_a_false_conflict(when):
    async with running() as it:
        before = it.requests("create")
        it.server.faults.add({"operation": "create", "drop": True, "when": when, "count": 1})
        if when == "before":
            await it.container.create_item({"id": "a", "pk": "k"})
        else:
            with pytest.raises(CosmosResourceExistsError):
                await it.container.create_item({"id": "a", "pk": "k"})
        assert 2 == it.requests("create") - before
        assert ["a"] == await it.rows("SELECT VALUE c.id FROM c", partition_key="k")


async def test_one_throttled_operation_of_a_batch_undoes_the_whole_and_is_not_retried():
    async with running() as it:
        fault = {
            "operation": "batch",
            "op_index": 1,
            "status": 429,
            "substatus": 3200,
            "retry_after_ms": 7,
            "count": 1,
        }
        it.server.faults.add(fault)
        operations = [("upsert", ({"id": str(i), "pk": "k"},)) for i in range(3)]
        with pytest.raises(CosmosBatchOperationError) as caught:
            await it.container.execute_item_batch(operations, "k")
        assert (429, 1) == (caught.value.status_code, caught.value.error_index)
        assert [424, 429, 424] == [result["statusCode"] for result in caught.value.operation_responses]
        assert 7 == caught.value.operation_responses[1]["retryAfterMilliseconds"]
        assert 1 == it.requests("batch")
        assert [] == await it.rows("SELECT * FROM c", partition_key="k")


async def test_a_fault_of_one_container_leaves_the_others_alone():
    async with running() as it:
        it.server.faults.add({"container": "other", "status": 503})
        await it.container.create_item({"id": "a", "pk": "k"})


async def test_a_delayed_request_is_executed_though_the_client_gave_up():
    async with running() as it:
        it.server.faults.add({"operation": "create", "delay_s": 0.3, "when": "after", "count": 1})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await it.container.create_item({"id": "a", "pk": "k"})
        assert ["a"] == await it.rows("SELECT VALUE c.id FROM c", partition_key="k")


async def test_a_hot_partition_refuses_its_own_keys_and_its_own_feed_and_no_other():
    async with running(partitions=2, retry_total=0, retry_throttle_total=0) as it:
        first, second = await it.ranges()
        hot = it.inside.partitions[0].range_id
        it.server.faults.add({"container": "c", "partition": hot, "status": 429})

        statuses: dict[str, set[int]] = {}
        for number in range(20):
            home = it.inside.partition_of(it.inside.key_from_header(f'["{number}"]').epk).range_id
            try:
                await it.container.execute_item_batch(
                    [("create", ({"id": "b", "pk": f"{number}"},))], f"{number}"
                )
            except CosmosHttpResponseError as error:
                status = error.status_code
            else:
                status = 200
            statuses.setdefault(home, set()).add(status)
        assert {hot: {429}, it.inside.partitions[1].range_id: {200}} == statuses

        with pytest.raises(CosmosHttpResponseError):
            await drain(it.container, start_time="Beginning", feed_range=first)
        items, *_ = await drain(it.container, start_time="Beginning", feed_range=second)
        assert items


async def test_latency_is_added_to_every_reply():
    async with running() as it:
        it.server.latency_s = 0.05
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await it.container.create_item({"id": "a", "pk": "k"})
        await it.container.upsert_item({"id": "a", "pk": "k"})
        assert loop.time() - begun >= 0.1
