"""
Containers may have any partition key: other paths, several levels, numbers and booleans. These tests go from the commit to the message.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from cosmos_outbox import DomainEvent, Entity, NotFound, Outbox, UsageError
from cosmos_outbox.adapters.cosmos import CosmosChangeFeed
from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import MixedPartitionKeys
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.parking.parked_documents import Scope
from cosmos_outbox.partition_key import KeyPart, PartitionKey, broker_id, key_text
from cosmos_outbox.ports import MAX_EVENT_BYTES, ChangeBatch, StartFrom, Write, WriteKind
from cosmos_outbox.records import EventDeletion, LeaseCheckpointed, Record
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.deletion import Deletion
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox_worker.cli.replay import Events, read_events
from tests.support.backends import BACKENDS, Container, opened
from tests.support.effort import LONG
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)


class ThingMade(DomainEvent):
    note: str = ""


class ThingMoved(DomainEvent):
    note: str = ""


class Thing(Entity):
    """An entity with any partition key: the field `at` has the value of each level."""

    at: list[KeyPart]
    note: str = ""

    @property
    def partition_key(self) -> PartitionKey:
        return self.at[0] if len(self.at) == 1 else tuple(self.at)

    def created_event(self) -> ThingMade:
        return ThingMade(note=self.note)

    def move(self, note: str) -> None:
        self.note = note
        self.record(ThingMoved(note=note))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """
    What a test needs to know of a container: its partition key paths, three partition keys, the key fields in a document of the first
    key, and the session ids in which messages of the three keys are sent.
    """

    paths: tuple[str, ...]
    keys: tuple[tuple[KeyPart, ...], ...]
    fields: dict[str, Any]
    sessions: tuple[str, ...]


SHAPES = {
    "the path of before": Shape(
        paths=("/partitionKey",),
        keys=(("a",), ("b é",), ("[5]",)),
        fields={"partitionKey": "a"},
        sessions=("a", "b é", "[5]"),
    ),
    "nested": Shape(
        paths=("/owner/id",),
        keys=(("a",), ("b",), ("c",)),
        fields={"owner": {"id": "a"}},
        sessions=("a", "b", "c"),
    ),
    "number": Shape(
        paths=("/tenantId",),
        keys=((5,), (-1.5,), (0,)),
        fields={"tenantId": 5},
        sessions=("[5]", "[-1.5]", "[0]"),
    ),
    "boolean": Shape(
        paths=("/open",),
        keys=((True,), (False,), (1,)),
        fields={"open": True},
        sessions=("[true]", "[false]", "[1]"),
    ),
    "two levels": Shape(
        paths=("/tenantId", "/userId"),
        keys=(("t1", "u1"), ("t1", "u2"), ("t2", "u1")),
        fields={"tenantId": "t1", "userId": "u1"},
        sessions=('["t1","u1"]', '["t1","u2"]', '["t2","u1"]'),
    ),
    "three levels": Shape(
        paths=("/tenantId", "/owner/id", "/year"),
        keys=(("t1", "u1", 2025), ("t1", "u1", 2026), ("t1", "u2", 2025)),
        fields={"tenantId": "t1", "owner": {"id": "u1"}, "year": 2025},
        sessions=('["t1","u1",2025]', '["t1","u1",2026]', '["t1","u2",2025]'),
    ),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param


@pytest.fixture(params=BACKENDS)
async def container(request: pytest.FixtureRequest, shape: Shape) -> AsyncIterator[Container]:
    async with opened(request.param, ranges=2, key_paths=shape.paths) as container:
        yield container


def key_of(parts: tuple[KeyPart, ...]) -> PartitionKey:
    return parts[0] if len(parts) == 1 else parts


async def made(container: Container, shape: Shape, **fields: Any) -> list[str]:
    """
    Create a `Thing` in each partition key, with the same id, and change it. Return the ids of the events, two for each key.
    """
    events = []
    for parts in shape.keys:
        async with Outbox(container.store).unit_of_work() as uow:
            thing = Thing(id="thing", at=[*parts], **fields)
            uow.repository(Thing).create(thing)
            thing.move("moved")
            events += [event.id for event in (await uow.commit()).events]
    return events


async def pages(container: Container) -> list[ChangeBatch]:
    """
    Read the whole change feed. Return it as the batches that a change feed processor passes to its handler.
    """
    described = await container.feed.describe()
    read = read_events(container.feed, start=StartFrom.BEGINNING)
    return [
        ChangeBatch(
            lease="l",
            documents=found.documents,
            page=number,
            container_rid=described.container_rid,
            key_paths=described.key_paths,
        )
        async for number, found in _counted(read)
        if found.documents
    ]


async def _counted(read: AsyncIterator[Events]) -> AsyncIterator[tuple[int, Events]]:
    number = 0
    async for found in read:
        number += 1
        yield number, found


async def test_a_key_s_range_of_the_change_feed_has_only_its_own_changes(container: Container, shape: Shape):
    if not isinstance(container.feed, CosmosChangeFeed):
        pytest.skip("a container in memory cannot read the range of a key")
    ids = await made(container, shape)
    for number, key in enumerate(map(key_of, shape.keys)):
        ranges = [await container.feed.range_of(key)]
        read = read_events(container.feed, start=StartFrom.BEGINNING, ranges=ranges)
        assert ids[2 * number :][:2] == [event.id async for found in read for event in found.events]


def sessions_of(broker: MemoryBroker) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in broker.accepted:
        found.setdefault(message.session_id, []).append(message.subject)
    return found


async def test_a_document_stores_its_key_in_exactly_the_fields_of_the_partition_key_paths(
    container: Container, shape: Shape
):
    event_ids = await made(container, shape)
    for document_id in ("thing", event_ids[0]):
        document = await container.store.read(document_id, key_of(shape.keys[0]))
        key = {
            name: document[name]
            for name in document.keys() & {"partitionKey", "tenantId", "owner", "open", "userId", "year"}
        }
        assert shape.fields == key
        assert "note" in document["data"]
        assert document["data"].keys().isdisjoint(shape.fields)


async def test_an_entity_is_read_changed_and_deleted_by_its_partition_key(container: Container, shape: Shape):
    await made(container, shape)
    outbox, first, second = Outbox(container.store), key_of(shape.keys[0]), key_of(shape.keys[1])
    for key in (first, second):
        async with outbox.unit_of_work() as uow:
            thing = await uow.repository(Thing).read("thing", partition_key=key)
            assert shape.keys[[first, second].index(key)] == tuple(thing.at)
            thing.move(f"again {key}")
            await uow.commit()
    async with outbox.unit_of_work() as uow:
        await uow.repository(Thing).delete("thing", partition_key=first)
        await uow.commit()
    async with outbox.unit_of_work() as uow:
        with pytest.raises(NotFound):
            await uow.repository(Thing).read("thing", partition_key=first)
        assert f"again {second}" == (await uow.repository(Thing).read("thing", partition_key=second)).note


async def test_a_commit_with_two_partition_keys_is_refused(container: Container, shape: Shape):
    one, other, _ = shape.keys
    async with Outbox(container.store).unit_of_work() as uow:
        for parts in (one, other):
            uow.repository(Thing).create(Thing(at=[*parts]))
        with pytest.raises(MixedPartitionKeys) as caught:
            await uow.commit()
        assert (key_of(one), key_of(other)) == (caught.value.first, caught.value.second)
        uow.rollback()
        uow.repository(Thing).create(Thing(at=[*one]))
        uow.repository(Thing).create(Thing.model_construct(id="x", at=[None]))
        with pytest.raises(UsageError, match="None cannot be the partition key of thing 'x'"):
            await uow.commit()


async def test_an_entity_whose_class_returns_another_partition_key_is_refused(
    container: Container, shape: Shape
):
    class Strange(Thing):
        entity_type = "thing"

        @property
        def partition_key(self) -> PartitionKey:
            return key_of(shape.keys[1])

    await made(container, shape)
    async with Outbox(container.store).unit_of_work() as uow:
        strange = await uow.repository(Strange).read("thing", partition_key=key_of(shape.keys[0]))
        strange.move("away")
        with pytest.raises(UsageError, match="Correct the partition key of this Strange"):
            await uow.commit()


async def test_the_pages_of_a_list_have_each_document_of_each_partition_key_once(
    container: Container, shape: Shape
):
    levels = len(shape.paths)
    values = [[1, -3, 2.5], [False, True], ["a", "ab", "b"]]
    each = 3 if levels == 1 else 2  # with several levels, two values for each level are enough
    keys = [parts for of in values for parts in itertools.product(of[:each], repeat=levels)]
    for parts in keys[::-1]:
        for document_id in ("p", "q"):
            body = {"id": document_id, "type": "thing", "data": {}, **container.store.key_paths.fields(parts)}
            await container.store.commit(
                key_of(parts), [Write(kind=WriteKind.CREATE, id=document_id, document=body)]
            )
    written = sorted((document_id, key_text(key_of(parts))) for document_id in "pq" for parts in keys)

    for page_size in (1, 2, 3, 5) if LONG else (1, 3) if levels == 1 else (3,):
        found = await _paged(container, page_size)
        places = [(one["id"], key_text(container.store.key_paths.key_of(one))) for one in found]
        assert written == sorted(places)


async def _paged(container: Container, page_size: int) -> list[dict[str, Any]]:
    found, continuation = [], None
    while True:
        page = await container.store.list(
            ("thing",),
            partition_key=None,
            page_size=page_size,
            continuation=continuation,
            include_deleted=True,
        )
        found += page.documents
        assert len(page.documents) <= page_size
        if (continuation := page.continuation) is None:
            return found


async def relayed(container: Container, broker: MemoryBroker) -> tuple[MemoryParked, Scope]:
    """Relay the whole change feed. Return the parked store, and the scope (processor and container) under which it holds keys."""
    parked = MemoryParked()
    relay = Relay(broker.publisher(), parking=Parking(parked), notify=lambda _: None)
    for batch in await pages(container):
        await relay(batch)
    return parked, Scope(container=(await container.feed.describe()).container_rid)


async def test_the_session_of_a_message_is_the_text_of_its_partition_key(container: Container, shape: Shape):
    await made(container, shape)
    await relayed(container, broker := MemoryBroker())
    assert {session: ["ThingMade", "ThingMoved"] for session in shape.sessions} == sessions_of(broker)
    assert [broker_id(key_text(key_of(parts))) for parts in shape.keys] == [*shape.sessions]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_parked_key_with_a_very_large_event_is_released_in_order(container: Container, shape: Shape):
    await made(container, shape)
    key, bad = key_of(shape.keys[0]), shape.sessions[0]
    large = {
        "id": "large",
        **container.store.key_paths.fields(key),
        "type": "domainEvent",
        "data": {"action": "ThingGrown", "note": "x" * MAX_EVENT_BYTES},
        "ttl": 600,
    }
    await container.store.commit(key, [Write(kind=WriteKind.CREATE, id="large", document=large)])
    broker = MemoryBroker(max_message_bytes=10**7)
    broker.rejects = lambda message: message.session_id == bad
    parked, scope = await relayed(container, broker)
    assert {session: ["ThingMade", "ThingMoved"] for session in shape.sessions[1:]} == sessions_of(broker)

    keys = ParkedKeys(parked, resending(broker.publisher(), events=container.store), scope=scope)
    assert [bad] == [key.partition_key for key in await keys.list()]
    assert [False, False, True] == [event.referenced for event in (await keys.show(bad)).held]
    broker.rejects = lambda message: False
    released = await keys.release(bad)
    assert (3, None) == (released.sent, released.failure)
    assert ["ThingMade", "ThingMoved", "ThingGrown"] == sessions_of(broker)[bad]


async def test_a_release_that_was_not_given_the_container_raises_a_usage_error(
    container: Container, shape: Shape
):
    if shape.paths == ("/partitionKey",):
        pytest.skip("/partitionKey is the default path, so the release finds the event")
    await made(container, shape)
    broker = MemoryBroker(rejects=lambda message: True)
    parked, scope = await relayed(container, broker)
    keys = ParkedKeys(parked, resending(broker.publisher()), scope=scope)
    with pytest.raises(UsageError, match="pass its own container to `resending`"):
        await keys.release(shape.sessions[0])


async def _deleted(container: Container, event_ids: list[str]) -> dict[str, int]:
    """
    Let the worker's deletion of sent events handle the whole change feed. Return the number of deleted events for each key.
    """
    deleted: dict[str, int] = {}
    complete = asyncio.Event()

    def hear(record: Record) -> None:
        if isinstance(record, EventDeletion) and record.partition_key is not None:
            deleted[record.partition_key] = deleted.get(record.partition_key, 0) + record.events
            if sum(deleted.values()) == len(event_ids):
                complete.set()

    async def alone() -> tuple[str, ...]:
        return ()

    async def handled(_: object) -> None:
        return

    async with Deletion(
        handled, container.store, delete={"*"}, others=alone, keep=timedelta(0), notify=hear
    ) as deletion:
        for batch in await pages(container):
            await deletion(batch)
        deletion.hear(LeaseCheckpointed(lease="l", pages=10_000))
        async with asyncio.timeout(HUNG_SECONDS):
            await complete.wait()
    return deleted


async def test_sent_events_are_deleted_from_each_partition_key(container: Container, shape: Shape):
    event_ids = await made(container, shape)
    assert dict.fromkeys(shape.sessions, 2) == await _deleted(container, event_ids)
    for number, parts in enumerate(shape.keys):
        for event_id in event_ids[2 * number : 2 * number + 2]:
            with pytest.raises(NotFound):
                await container.store.read(event_id, key_of(parts))
        assert await container.store.read("thing", key_of(parts))


MIXED = Shape(paths=("/tenantId",), keys=((5,), ("[5]",), ("5",)), fields={}, sessions=("[5]", "[5]", "5"))


@pytest.mark.parametrize("backend", BACKENDS)
async def test_two_partition_keys_with_the_same_session_lose_no_event(backend: str):
    async with opened(backend, ranges=2, key_paths=MIXED.paths) as container:
        event_ids = await made(container, MIXED)
        broker = MemoryBroker(rejects=lambda message: message.session_id == "[5]")
        parked, scope = await relayed(container, broker)
        assert {"5": ["ThingMade", "ThingMoved"]} == sessions_of(broker)

        keys = ParkedKeys(parked, resending(broker.publisher(), events=container.store), scope=scope)
        broker.rejects = lambda message: False
        assert 4 == (await keys.release("[5]")).sent
        sent = [message.message_id for message in broker.accepted if message.session_id == "[5]"]
        for of_one_key in (event_ids[:2], event_ids[2:4]):
            assert of_one_key == [event_id for event_id in sent if event_id in of_one_key]

        await _deleted(container, event_ids)
        for number, parts in enumerate(MIXED.keys):
            for event_id in event_ids[2 * number : 2 * number + 2]:
                with pytest.raises(NotFound):
                    await container.store.read(event_id, key_of(parts))
