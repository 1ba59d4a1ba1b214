"""
Tests of two workers that work on one lease at the same time: each learns which keys the other worker has parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import StoreUnavailable
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import ParkedStore
from cosmos_outbox.records import KeyParked, Record
from cosmos_outbox.relay import Relay
from tests.support.event_documents import batch, event
from tests.unit.parking.test_parking import World


class Shared(MemoryParked):
    """A parked store on the documents of a given store, so that two workers share these documents."""

    def __init__(self, store: MemoryParked) -> None:
        vars(self).update(vars(store))


class LooksLate(Shared):
    """A parked store whose answer to `present` comes so late that another worker finishes its page first."""

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        await asyncio.sleep(0.3)
        return await super().present(partition_key, document_ids)


def owner(world: World, store: ParkedStore, told: list[Record]) -> Relay:
    return Relay(world.broker.publisher(), parking=Parking(store), notify=told.append)


async def a_page_that_comes_again() -> World:
    """
    Return a world in which a page with the events 3 to 6 of key "b" is about to be handled again.

    The first owner parked the key at event b/3 and died. An operator dropped b/3 and released the key. Now the topic rejects b/6 too.
    """
    world = World()
    world.reject("b/3")
    await world.worker()(world.page(event("b", 3), event("b", 4)))
    await world.operator.drop("b", "b/3", reason="of no use")
    await world.operator.release("b")
    world.reject("b/3", "b/6")
    return world


PAGE = tuple(event("b", number) for number in (3, 4, 5, 6))


async def test_an_owner_notices_a_key_that_another_owner_parked_meanwhile() -> None:
    world = await a_page_that_comes_again()
    told: list[Record] = []
    late = owner(world, LooksLate(world.store), told)
    await asyncio.gather(late(batch(*PAGE, tenure=2)), owner(world, world.store, [])(batch(*PAGE, tenure=3)))
    await late(batch(event("b", 7), tenure=2))
    assert ["b/4", "b/5"] == world.ids
    assert ["b/6", "b/7"] == await world.held("b")
    assert ["b"] == [record.partition_key for record in told if isinstance(record, KeyParked)]


async def test_a_page_fails_while_one_of_its_events_is_neither_sent_nor_parked() -> None:
    """
    The event b/3 was dropped, and the topic rejects b/6. At first, the parked store refuses to park b/6, so the page fails.
    """
    world = await a_page_that_comes_again()
    looked = False

    def note_looks(operation: str, key: str) -> None:
        nonlocal looked
        looked = looked or operation == "present"

    def refuse(operation: str, key: str) -> StoreUnavailable | None:
        return StoreUnavailable(applied=False) if looked and operation == "commit" else None

    world.counted.after, world.counted.before = note_looks, refuse
    relay = world.worker()
    page = world.page(event("b", 3), event("b", 6))
    with pytest.raises(StoreUnavailable):
        await relay(page)
    world.counted.before = lambda operation, key: None
    await relay(page)
    assert ["b/6"] == await world.held("b")
