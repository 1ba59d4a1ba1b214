"""
Two owners of a lease at once: what one of them learns of a parking that the other made meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.documents import Document
from cosmos_outbox.errors import StoreUnavailable
from cosmos_outbox.instrumentation import KeyParked, Record
from cosmos_outbox.ports import CommitResult, ParkedStore, Write, WriteKind
from cosmos_outbox.relay import Parking, Relay
from cosmos_outbox.relay.parked import INDEX_ID, KEY_ID
from cosmos_outbox.relay.parked_index import ParkedIndex
from cosmos_outbox.retries import RetryOptions
from tests.unit.relay.factories import batch, event
from tests.unit.relay.test_parking import World


class Shared(MemoryParked):
    """
    The documents of another store, by a connection of its own.
    """

    def __init__(self, store: MemoryParked) -> None:
        self._container = store._container


class ListsLate(Shared):
    """
    What a worker has whose list of held events takes longer than all that another worker does.
    """

    async def list(self, partition_key: str) -> tuple[Document, ...]:
        await asyncio.sleep(0.3)
        return await super().list(partition_key)


class ParkedUnnamed(Shared):
    """
    What a worker has that stood still until its entry was removed, parks the key all the same, and dies.
    """

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        result = await super().commit(partition_key, writes)
        if (writes[0].id, writes[0].kind) == (KEY_ID, WriteKind.CREATE):
            await forget_entries(self)  # as if before: nobody looked in between
            await asyncio.Event().wait()
        return result


async def forget_entries(store: MemoryParked) -> None:
    index = ParkedIndex(store, RetryOptions())
    for epoch in (await store.read(INDEX_ID, INDEX_ID))["keys"]:
        await index.remove(epoch)


def owner(world: World, store: ParkedStore, told: list[Record]) -> Relay:
    return Relay(world.broker.publisher(), parking=Parking(store), notify=told.append)


async def a_page_that_comes_again() -> World:
    """
    Its owner parked "b" at b/3 and died; an operator dropped b/3 and released the key. Now b/6 is rejected as well.
    """
    world = World()
    world.reject("b/3")
    await world.worker()(batch(event("b", 3), event("b", 4)))
    await world.operator.drop("b", "b/3", reason="of no use")
    await world.operator.release("b")
    world.reject("b/3", "b/6")
    return world


PAGE = tuple(event("b", number) for number in (3, 4, 5, 6))


async def test_an_owner_that_finds_its_events_held_by_another_knows_from_then_on_that_the_key_is_parked() -> (
    None
):
    world = await a_page_that_comes_again()
    told: list[Record] = []
    late = owner(world, ListsLate(world.store), told)
    await asyncio.gather(late(batch(*PAGE, tenure=2)), owner(world, world.store, [])(batch(*PAGE, tenure=3)))
    await late(batch(event("b", 7), tenure=2))
    assert ["b/4", "b/5"] == world.ids
    assert ["b/6", "b/7"] == await world.held("b")
    assert ["b"] == [record.partition_key for record in told if isinstance(record, KeyParked)]


async def test_events_that_another_owner_holds_count_as_held_only_once_the_index_names_their_key() -> None:
    world = await a_page_that_comes_again()
    late = asyncio.ensure_future(owner(world, ListsLate(world.store), [])(batch(*PAGE, tenure=2)))
    dies = asyncio.ensure_future(owner(world, ParkedUnnamed(world.store), [])(batch(*PAGE, tenure=3)))
    await late
    dies.cancel()
    assert {"b"} == await world.operator.names()
    await world.worker()(batch(event("b", 7), tenure=4))
    assert ["b/4", "b/5"] == world.ids
    assert ["b/6", "b/7"] == await world.held("b")


async def test_a_confirmation_that_failed_is_made_before_the_page_is_done() -> None:
    class NotConfirmedAtFirst(Shared):
        fails_until = 0.0

        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            loop = asyncio.get_running_loop()
            if partition_key == INDEX_ID and loop.time() < self.fails_until:
                raise StoreUnavailable(applied=False)
            result = await super().commit(partition_key, writes)
            if (writes[0].id, writes[0].kind) == (KEY_ID, WriteKind.CREATE):
                await forget_entries(self)
                self.fails_until = loop.time() + 12
            return result

    world = World()
    world.reject("b/1")
    relay = owner(world, NotConfirmedAtFirst(world.store), [])
    page = batch(event("b", 1), event("b", 2))
    with pytest.raises(StoreUnavailable):
        await relay(page)
    await asyncio.sleep(5)
    await relay(page)
    assert {"b"} == await world.operator.names()


async def test_an_event_that_was_given_back_to_be_sent_is_not_done_while_it_is_neither_sent_nor_held() -> (
    None
):
    """
    The page comes again; b/3 needs nothing more, b/6 is rejected in its turn, and the store fails at that.
    """
    world = await a_page_that_comes_again()
    listed = False

    def note_lists(operation: str, key: str) -> None:
        nonlocal listed
        listed = listed or operation == "list"

    def refuse(operation: str, key: str) -> StoreUnavailable | None:
        return StoreUnavailable(applied=False) if listed and key == INDEX_ID else None

    world.counted.after, world.counted.before = note_lists, refuse
    relay = world.worker()
    page = batch(event("b", 3), event("b", 6))
    with pytest.raises(StoreUnavailable):
        await relay(page)
    world.counted.before = lambda operation, key: None
    await relay(page)
    assert ["b/6"] == await world.held("b")
