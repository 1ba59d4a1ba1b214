"""
The adapter of the lease container: how it translates the answers of Cosmos DB. It takes the time from Cosmos DB, not from the machine.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient

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
async def test_a_lease_request_that_is_refused_because_of_a_split_was_not_applied(
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


async def test_the_read_time_of_a_lease_list_is_from_the_clock_of_the_service():
    moment = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    async with (
        CosmosServer(Account(clock=moment.timestamp)) as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("db")
        leases = CosmosLeases(await database.create_container("leases", PartitionKey("/id")))

        assert moment == (await leases.list("p..")).read_at


@pytest.mark.parametrize("ttl", [None, -1, 3600])
async def test_a_lease_container_with_a_default_time_to_live_is_refused(
    client: CosmosClient, ttl: int | None
):
    """Cosmos DB would delete the leases after that time. The error says to set the time to live to -1."""
    database = await client.create_database("db")
    container = await database.create_container("leases", PartitionKey("/id"), default_ttl=ttl)
    leases = CosmosLeases(container)
    if ttl == 3600:
        with pytest.raises(ConfigurationError, match="time to live to -1"):
            await leases.partitioned_by_id()
    else:
        assert await leases.partitioned_by_id()


async def test_a_lease_document_without_a_partition_key_gets_its_id_as_the_key(
    client: CosmosClient,
):
    database = await client.create_database("db")
    leases = CosmosLeases(await database.create_container("leases", PartitionKey("/partitionKey")))
    named = [await leases.create({"id": "a"}), await leases.create({"id": "b", "partitionKey": "c"})]

    assert ["a", "c"] == [document["partitionKey"] for document in named]
    assert ["a", "b"] == [(await leases.read("a", "a"))["id"], (await leases.read("b", "c"))["id"]]


class Odd:
    """
    Wraps a container of the SDK and falsifies answers: a function in `next` changes the next answer of a method, or the next page or
    document of a query.
    """

    id = "leases"

    def __init__(self, container: ContainerProxy) -> None:
        self._container = container
        self.next: dict[str, Callable[[Any], Any]] = {}

    def __getattr__(self, name: str) -> Any:
        async def call(*args: object, **kwargs: object) -> Any:
            return self._made(name, await getattr(self._container, name)(*args, **kwargs))

        return call

    async def query_items(
        self, query: str, *, response_hook: Callable[..., None], **kwargs: Any
    ) -> AsyncIterator[Any]:
        def hook(headers: dict[str, str], body: object) -> None:
            response_hook(*self._made("page", (dict(headers), body)))

        async for document in self._container.query_items(query, response_hook=hook, **kwargs):
            yield self._made("document", document)

    def _made(self, of: str, answer: Any) -> Any:
        return self.next.pop(of, lambda found: found)(answer)


def raising(error: Exception) -> Callable[[Any], Any]:
    def make(_: Any) -> Any:
        raise error

    return make


def without(name: str) -> Callable[[Any], Any]:
    return lambda answer: {key: value for key, value in answer.items() if key != name}


RAISED = [
    raising(KeyError("Documents")),
    raising(IndexError()),
    raising(TypeError()),
    raising(AttributeError()),
    raising(json.JSONDecodeError("no JSON", "<html>", 0)),
]
NO_OBJECTS = [*RAISED, *(lambda _, odd=odd: odd for odd in (None, [], {}, "<html>", 7, [["id"]]))]
NO_DOCUMENTS = [
    *NO_OBJECTS,
    *map(without, ("id", "_etag", "_ts")),
    *(lambda answer, ts=ts: {**answer, "_ts": ts} for ts in ("soon", 1e300, 1 << 37, -1)),
    lambda answer: {**answer, "_etag": 7},
]
NO_PAGES = [
    *RAISED,
    lambda answer: (answer[0], None),
    lambda answer: (None, answer[1]),
    lambda answer: ({"date": "the day before"}, answer[1]),
]
NO_CONTAINERS = [
    *NO_OBJECTS,
    *(lambda _, odd=odd: odd for odd in ({"partitionKey": None}, {"partitionKey": {"paths": 7}})),
    lambda answer: {**answer, "defaultTtl": "never"},
]


@pytest.mark.parametrize(
    ("answered", "nonsense", "call"),
    [
        ("read", NO_CONTAINERS, lambda leases, _: leases.partitioned_by_id()),
        ("page", NO_PAGES, lambda leases, _: leases.list("a")),
        ("document", NO_DOCUMENTS, lambda leases, _: leases.list("a")),
        ("read_item", NO_DOCUMENTS, lambda leases, _: leases.read("a", "a")),
        ("create_item", NO_DOCUMENTS, lambda leases, _: leases.create({"id": str(uuid4())})),
        ("replace_item", NO_DOCUMENTS, lambda leases, a: leases.replace({"id": "a"}, etag=a["_etag"])),
        ("delete_item", RAISED, lambda leases, a: leases.delete("a", "a", etag=a["_etag"])),
    ],
)
async def test_a_malformed_answer_raises_store_unavailable(
    client: CosmosClient,
    answered: str,
    nonsense: list[Callable[[Any], Any]],
    call: Callable[[CosmosLeases, Any], Awaitable[object]],
):
    """The test also checks that the same call succeeds when the next answer is correct."""
    database = await client.create_database("db")
    real = await database.create_container("leases", PartitionKey("/id"))
    odd = Odd(real)
    for make in nonsense:
        leases = CosmosLeases(odd)  # type: ignore[arg-type] - it has every method
        stored = await real.upsert_item({"id": "a"})
        odd.next[answered] = make
        with pytest.raises(StoreUnavailable):
            await call(leases, stored)
        assert not odd.next, "it was answered"
        await call(leases, await real.upsert_item({"id": "a"}))
