"""Two owners of a lease at once: what one of them learns of a parking that the other made meanwhile."""

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
    """The documents of another store, by a connection of its own."""

    def __init__(self, store: MemoryParked) -> None:
        vars(self).update(vars(store))


class LooksLate(Shared):
    """
    What a worker has whose look for events that are held takes longer than all that another worker does.
    """

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        await asyncio.sleep(0.3)
        return await super().present(partition_key, document_ids)


def owner(world: World, store: ParkedStore, told: list[Record]) -> Relay:
    return Relay(world.broker.publisher(), parking=Parking(store), notify=told.append)


async def a_page_that_comes_again() -> World:
    """
    Its owner parked "b" at b/3 and died; an operator dropped b/3 and released the key. Now b/6 is rejected as well.
    """
    world = World()
    world.reject("b/3")
    await world.worker()(world.page(event("b", 3), event("b", 4)))
    await world.operator.drop("b", "b/3", reason="of no use")
    await world.operator.release("b")
    world.reject("b/3", "b/6")
    return world


PAGE = tuple(event("b", number) for number in (3, 4, 5, 6))


async def test_an_owner_learns_that_a_key_is_parked_from_events_that_another_owner_parked() -> None:
    world = await a_page_that_comes_again()
    told: list[Record] = []
    late = owner(world, LooksLate(world.store), told)
    await asyncio.gather(late(batch(*PAGE, tenure=2)), owner(world, world.store, [])(batch(*PAGE, tenure=3)))
    await late(batch(event("b", 7), tenure=2))
    assert ["b/4", "b/5"] == world.ids
    assert ["b/6", "b/7"] == await world.held("b")
    assert ["b"] == [record.partition_key for record in told if isinstance(record, KeyParked)]


async def test_an_event_that_is_neither_sent_nor_parked_is_not_done() -> None:
    """
    The page comes again; b/3 needs nothing more, b/6 is rejected in its turn, and the store fails at that.
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
