"""
Scopes: to which processor and container a parked key belongs, which parked keys a lease names, and keys that an operator parks by hand.
"""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.errors import NotFound, StoreUnavailable
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.partition_key import ON_PARTITION_KEY
from cosmos_outbox.ports import Notes
from cosmos_outbox.relay import Relay
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.stored_documents import Document
from tests.support.event_documents import batch, event
from tests.unit.parking.test_parking import World, parked

names = st.text(max_size=40)
scopes = st.builds(Scope, processor=names, container=names)


@given(st.tuples(scopes, names), st.tuples(scopes, names))
def test_two_parked_keys_share_a_partition_only_if_processor_container_and_key_are_equal(
    one: tuple[Scope, str], other: tuple[Scope, str]
) -> None:
    assert (one == other) == (one[0].partition_of(one[1]) == other[0].partition_of(other[1]))


def test_the_partition_of_the_longest_key_fits_the_limit_of_cosmos_db() -> None:
    longest = Scope(processor="p" * 200, container="c" * 20).partition_of("ж" * 1000)
    assert 2000 > len(longest.encode())
    assert longest != Scope(processor="p" * 200, container="c" * 20).partition_of("ж" * 999 + "x")


async def test_a_worker_holds_the_events_of_a_parked_key_that_its_lease_does_not_name() -> None:
    """
    The notes of a lease name the parked keys of its range. A lease that was lost is created again without them, so its owner reads
    the parked keys from the parked store.
    """
    world = await parked(later=0)
    world.notes = Notes()
    await world.worker()(world.page(event("b", 3), event("a", 1), tenure=2))
    assert ["b/1", "a/1"] == world.ids
    assert ["b/2", "b/3"] == await world.held("b")


async def test_a_parked_key_with_a_long_value_takes_little_space_in_the_lease() -> None:
    world = World()
    key = "ж" * 900
    world.broker.rejects = lambda message: b'"number":1' in message.body
    await world.relay(world.page(event(key, 1)))
    assert 100 > len(world.notes.text or "")
    await world.worker()(world.page(event(key, 2), tenure=2))
    assert 2 == len((await world.operator.show(key)).held)


async def test_released_keys_disappear_from_the_lease_without_further_events() -> None:
    world = World()
    for number in range(4):
        world.reject(f"k{number}/1")
        await world.relay(world.page(event(f"k{number}")))
        world.reject()
        await world.operator.release(f"k{number}")
    world.reject("b/1")
    await world.relay(world.page(event("b")))
    await asyncio.sleep(20)
    await world.relay(world.page(event("c")))
    assert ["b"] == json.loads(world.notes.text or "")


# Tests of keys that an operator parks by hand, which no lease names


async def test_a_key_that_an_operator_parked_by_hand_is_held() -> None:
    """
    The relay notices the key at its next poll of the parked keys. A release sends the held events in order.
    """
    world = World()
    await world.relay(world.page(event("b", 1)))
    await world.operator.park("b", reason="its consumer is broken")
    await asyncio.sleep(20)
    await world.relay(world.page(event("b", 2), event("a", 1)))
    await world.worker()(world.page(event("b", 3), tenure=2))
    assert ["b/2", "b/3"] == await world.held("b")
    await world.operator.release("b")
    await world.relay(world.page(event("b", 4)))
    assert ["b/1", "a/1", "b/2", "b/3", "b/4"] == world.ids


async def test_parking_a_parked_key_by_hand_changes_nothing() -> None:
    world = await parked()
    (before,) = await world.operator.list()
    assert before == await world.operator.park("b", reason="to be sure")


async def test_an_owner_whose_lease_names_the_parked_keys_sends_without_asking_the_parked_store() -> None:
    world = World()
    await world.relay(world.page(event("a", 1)))
    world.counted.before = lambda operation, key: StoreUnavailable()
    await world.worker()(world.page(event("a", 2), tenure=2))
    assert ["a/1", "a/2"] == world.ids


# Tests of events that are too large to be copied into the parked store


async def test_an_event_that_is_too_large_to_copy_is_parked_as_a_reference() -> None:
    """A release reads the event from the container in which it was committed."""
    world = World()
    large = event("b", 2, size=2_050_000)
    world.reject("b/2")
    await world.relay(world.page(event("b", 1), large, event("b", 3), event("a", 1)))
    (reference, later) = (await world.operator.show("b")).held
    assert (True, {}, False) == (reference.referenced, reference.data, later.referenced)
    assert large["_etag"] == reference.event["_etag"]
    assert {"a/1", "b/1"} == set(world.ids)
    world.reject()

    class Events:
        key_paths = ON_PARTITION_KEY

        async def read(self, document_id: str, partition_key: str) -> Document:
            assert ("b/2", "b") == (document_id, partition_key)
            return {name: value for name, value in large.items() if name != "_lsn"}

    world.broker._max_bytes = 10_000_000
    events = Events()
    operator = ParkedKeys(world.store, resending(world.broker.publisher(), events=events))  # type: ignore[arg-type]
    assert 2 == (await operator.release("b")).sent
    direct = MemoryBroker(max_message_bytes=10_000_000)
    await Relay(direct.publisher())(batch(large))
    assert direct.accepted == [message for message in world.broker.accepted if message.message_id == "b/2"]
    assert "b/3" == world.ids[-1]


async def test_a_release_stops_at_a_reference_to_a_deleted_event() -> None:
    """After the operator dropped the event, the next release sends the later events."""
    world = World()
    world.reject("b/2")
    await world.relay(world.page(event("b", 1), event("b", 2, size=2_050_000), event("b", 3)))
    world.reject()
    operator = ParkedKeys(world.store, resending(world.broker.publisher(), events=Nothing()))  # type: ignore[arg-type]
    released = await operator.release("b")
    assert "has deleted it since" in str(released.failure and released.failure.error)
    assert ["b/1"] == world.ids
    await operator.drop("b", "b/2", reason="too late")
    await operator.release("b")
    assert ["b/1", "b/3"] == world.ids


async def test_a_release_sends_a_reference_with_an_edited_payload() -> None:
    world = World()
    world.reject("b/2")
    await world.relay(world.page(event("b", 2, size=2_050_000)))
    assert (await world.operator.release("b", edited={"state": "mended"}, event_id="b/2")).handed_back
    assert b'{"state":"mended"}' == world.broker.accepted[-1].body
    (record,) = await world.operator.records("b")
    assert "b/2" == record.event_id


class Nothing:
    """A container from which all events were deleted."""

    key_paths = ON_PARTITION_KEY

    async def read(self, document_id: str, partition_key: str) -> Document:
        raise NotFound(document_id=document_id)
