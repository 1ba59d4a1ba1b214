"""
What every ParkedStore promises, and that parking works on it.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.parked import open_parked
from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import ConfigurationError, Conflict, KeyNotParked, NotFound, PreconditionFailed
from cosmos_outbox.parking import ParkedKeys, Parking, Scope
from cosmos_outbox.parking.documents import NO_ETAG
from cosmos_outbox.ports import ParkedStore, Write, WriteKind
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.resend import resending
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.contracts.backends import AZURE_VARIABLE, BACKENDS
from tests.unit.relay.factories import batch, event

pytestmark = pytest.mark.looptime(False)


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ParkedStore]:
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


def create(document_id: str, key: str = "k", **fields: Any) -> Write:
    return Write(
        kind=WriteKind.CREATE,
        id=document_id,
        document={"id": document_id, "partitionKey": key, **fields},
    )


def replace(document_id: str, etag: str | None, key: str = "k", **fields: Any) -> Write:
    return Write(
        kind=WriteKind.REPLACE,
        id=document_id,
        document={"id": document_id, "partitionKey": key, **fields},
        etag=etag,
    )


def delete(document_id: str, etag: str | None = None) -> Write:
    return Write(kind=WriteKind.DELETE, id=document_id, etag=etag)


async def everything(store: ParkedStore, key: str = "k") -> list[dict[str, Any]]:
    """
    Return all documents of a partition key, page by page.
    """
    found: list[dict[str, Any]] = []
    while page := await store.page(key, after=found[-1]["id"] if found else ""):
        found += page
    return found


async def etag_of(store: ParkedStore, document_id: str, key: str = "k") -> str:
    return str((await store.read(document_id, key))["_etag"])


async def test_a_document_is_read_and_listed_as_it_was_written(store: ParkedStore) -> None:
    await store.commit("k", [create("a", nested={"x": [1, None]})])
    read = await store.read("a", "k")
    assert {"x": [1, None]} == read["nested"]
    assert [read["_etag"]] == [document["_etag"] for document in await everything(store)]


async def test_the_pages_hold_all_documents_of_one_partition_key_by_id_and_no_other(
    store: ParkedStore,
) -> None:
    for start in range(0, 250, 50):
        await store.commit("k", [create(f"{number:03d}") for number in range(start, start + 50)])
    await store.commit("l", [create("other", "l")])
    assert [f"{number:03d}" for number in range(250)] == [
        document["id"] for document in await everything(store)
    ]
    assert ["003", "004"] == [document["id"] for document in await store.page("k", after="002", limit=2)]


async def test_a_queue_is_read_by_position_from_any_place_and_knows_one_epoch(store: ParkedStore) -> None:
    await store.commit("k", [create(f"e{9 - place}", epoch="now", position=place) for place in range(10)])
    await store.commit("k", [create("earlier", epoch="before", position=3), create("key", epoch="now")])
    assert [3, 4, 5] == [
        document["position"] for document in await store.queue("k", epoch="now", first=3, limit=3)
    ]
    assert () == await store.queue("k", epoch="now", first=10, limit=3)
    assert () == await store.queue("l", epoch="now", first=0, limit=3)


async def test_a_store_tells_which_of_some_documents_are_there(store: ParkedStore) -> None:
    await store.commit("k", [create("a"), create("b"), create('odd "c" \' d')])
    assert {"a", 'odd "c" \' d'} == await store.present("k", ["a", "x", 'odd "c" \' d'])
    assert frozenset() == await store.present("l", ["a"])
    assert frozenset() == await store.present("k", [])


async def test_a_store_lists_the_keys_of_one_processor_of_one_container_and_those_of_none(
    store: ParkedStore,
) -> None:
    for name, fields in {
        "ours": {"key": "k", "processor": "p", "container": "c"},
        "another's": {"key": "k", "processor": "q", "container": "c"},
        "of another container": {"key": "k", "processor": "p", "container": "d"},
        "old": {},
    }.items():
        for document_id, kind in (("outbox.key", "parkedKey"), ("event", "parkedEvent")):
            document = {"id": document_id, "partitionKey": name, "type": kind, **fields}
            await store.commit(name, [Write(kind=WriteKind.CREATE, id=document_id, document=document)])
    found = await store.keys(processor="p", container="c")
    assert {"ours", "old"} == {document["partitionKey"] for document in found}
    assert all(document["_etag"] for document in found)


async def test_a_partition_key_without_documents_has_no_page(store: ParkedStore) -> None:
    assert () == await store.page("nobody")


async def test_a_batch_with_one_refused_write_changes_nothing(store: ParkedStore) -> None:
    await store.commit("k", [create("key", n=1), create("taken")])
    etag = await etag_of(store, "key")
    with pytest.raises(Conflict) as refused:
        await store.commit("k", [replace("key", etag, n=2), create("new"), create("taken")])
    assert "taken" == refused.value.document_id
    assert 1 == (await store.read("key", "k"))["n"]
    assert {"key", "taken"} == {document["id"] for document in await everything(store)}


async def test_a_batch_names_its_first_document_where_that_is_taken(store: ParkedStore) -> None:
    await store.commit("k", [create("key"), create("event")])
    with pytest.raises(Conflict) as refused:
        await store.commit("k", [create("key"), create("event")])
    assert "key" == refused.value.document_id


async def test_of_an_append_and_a_hand_back_exactly_one_succeeds(store: ParkedStore) -> None:
    for number in range(10):
        await store.commit("k", [create("key")])
        etag = await etag_of(store, "key")
        outcomes = await asyncio.gather(
            store.commit("k", [replace("key", etag, n=1), create(f"event-{number}")]),
            store.commit("k", [delete("key", etag)]),
            return_exceptions=True,
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert [True] == [isinstance(error, PreconditionFailed | NotFound) for error in refused]
        if isinstance(outcomes[1], Exception):
            await store.commit("k", [delete("key")])


@pytest.mark.parametrize("writes", [[replace("key", '"1"')], [replace("key", '"1"'), create("event")]])
async def test_an_append_to_a_key_that_was_handed_back_says_that_there_is_none(
    store: ParkedStore, writes: Sequence[Write]
) -> None:
    with pytest.raises(NotFound):
        await store.commit("k", writes)
    assert [] == await everything(store)


async def test_a_deletion_that_matches_nothing_tells_whether_there_is_a_document(store: ParkedStore) -> None:
    with pytest.raises(NotFound):
        await store.commit("k", [delete("key", NO_ETAG)])
    await store.commit("k", [create("key")])
    with pytest.raises(PreconditionFailed):
        await store.commit("k", [delete("key", NO_ETAG)])
    assert await etag_of(store, "key")


async def test_a_batch_deletes_and_replaces_at_once(store: ParkedStore) -> None:
    await store.commit("k", [create("key", n=1), create("a"), create("b")])
    etag = await etag_of(store, "key")
    await store.commit("k", [replace("key", etag, n=2), delete("a"), replace("b", None, status="sent")])
    assert {("key", 2, None), ("b", None, "sent")} == {
        (document["id"], document.get("n"), document.get("status")) for document in await everything(store)
    }


async def test_a_key_is_parked_released_and_handed_back_while_its_events_go_on(store: ParkedStore) -> None:
    broker = MemoryBroker(rejects=lambda message: message.message_id == "b.2")
    relay = Relay(broker.publisher(), parking=Parking(store), notify=lambda record: None)
    operator = ParkedKeys(store, resending(broker.publisher()))

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
        document["id"] for document in await everything(store, Scope().partition_of("b"))
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
        with pytest.raises(ConfigurationError, match="database 'nowhere' does not exist"):
            await open_parked(client, "nowhere", "parked")


async def test_a_container_without_or_with_an_idle_time_to_live_is_taken() -> None:
    async with CosmosServer() as server, _database(server.connection_string) as (client, name):
        assert await _created(client, name, default_ttl=-1)
