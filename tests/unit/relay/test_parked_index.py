"""
The index of parked keys: what crashed parkings leave in it, what it costs, and that no clock decides about order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import ParkingFull, StoreUnavailable
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from cosmos_outbox.relay import ParkedKeys, Parking, Relay
from cosmos_outbox.relay.parked import INDEX_ID, KEY_ID
from cosmos_outbox.relay.parked_index import ParkedIndex
from cosmos_outbox.retries import RetryOptions
from tests.unit.relay.factories import batch, event
from tests.unit.relay.test_parking import Counted, World, parked

HOUR = 3600


class Clocked:
    """
    A parked store with a clock of its own, and a topic that takes nothing.
    """

    def __init__(self) -> None:
        self.now = 1_800_000_000
        self.store = MemoryParked(now=lambda: self.now)
        self.counted = Counted(self.store)
        self.index = ParkedIndex(self.store, RetryOptions())
        self.keys = ParkedKeys(self.counted, utcnow=self.utcnow)

    def utcnow(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    async def crash(self, *partition_keys: str) -> None:
        """
        Leave what parkings leave that die between index and key.
        """
        for partition_key in partition_keys:
            await self.index.add(partition_key, max_keys=100)

    async def hours_later(self, hours: float) -> None:
        # Every tenure of every lease asks for the keys, and what is in the index gets its age by that.
        await self.index.keys()
        self.now += int(hours * HOUR)
        await self.index.keys()

    async def park(self, partition_key: str, *, max_keys: int = 100) -> None:
        broker = MemoryBroker(rejects=lambda message: True)
        parking = Parking(self.store, max_keys=max_keys)
        await Relay(broker.publisher(), parking=parking, notify=lambda record: None)(
            batch(event(partition_key, 1))
        )


async def test_what_crashed_parkings_left_does_not_count_towards_the_limit_for_ever() -> None:
    world = Clocked()
    await world.crash("x", "y", "z")
    with pytest.raises(ParkingFull, match="3 partition keys"):
        await world.park("b", max_keys=3)
    await world.hours_later(1.1)
    assert () == await world.keys.list()
    await world.park("b", max_keys=3)
    assert ["b"] == [key.partition_key for key in await world.keys.list()]


async def test_what_may_belong_to_a_parking_that_is_under_way_stays() -> None:
    world = Clocked()
    await world.crash("x")
    await world.hours_later(0.9)
    assert () == await world.keys.list()
    assert {"x"} == await world.index.keys()


async def test_a_parked_key_stays_in_the_index_however_old_it_is() -> None:
    world = Clocked()
    await world.park("b")
    await world.crash("x")
    await world.hours_later(1000)
    await world.index.remove_abandoned(["b", "x"], now=world.utcnow())
    assert {"b"} == await world.index.keys()


async def test_only_what_somebody_saw_absent_is_looked_at_again() -> None:
    world = Clocked()
    await world.crash("x", "y")
    await world.hours_later(2)
    await world.index.remove_abandoned(["x"], now=world.utcnow())
    assert {"y"} == await world.index.keys()


async def test_the_age_of_an_entry_is_counted_from_when_it_was_first_seen_there() -> None:
    """
    Between two writes nobody knows when an entry came; the later moment is the safe one.
    """
    world = Clocked()
    await world.index.keys()
    world.now += 100 * HOUR
    await world.crash("x")
    await world.keys.list()
    assert {"x"} == await world.index.keys()


async def test_many_leftovers_are_removed_over_a_slow_line_too() -> None:
    world = Clocked()
    await world.crash(*(f"x{number}" for number in range(45)))
    await world.hours_later(2)
    world.counted.latency_seconds = 0.2
    await world.keys.list()
    assert frozenset() == await world.index.keys()


async def test_looking_at_what_is_not_old_yet_writes_the_index_once_an_hour() -> None:
    world = Clocked()
    await world.crash("x")
    writes = 0

    def count(operation: str, key: str) -> None:
        nonlocal writes
        writes += (operation, key) == ("commit", INDEX_ID)

    world.counted.before = count
    for _ in range(HOUR // 15):
        await world.keys.list()
        world.now += 15
    assert 0 == writes
    for _ in range(3):
        world.now += 15
        await world.keys.list()
    assert 2 == writes  # one tells how late it is, one removes it
    assert frozenset() == await world.index.keys()


async def test_the_own_entry_of_a_key_does_not_count_towards_the_limit() -> None:
    world = Clocked()
    await world.crash("b")
    await world.park("b", max_keys=1)
    assert ["b"] == [key.partition_key for key in await world.keys.list()]


async def test_a_list_of_parked_keys_only_reads() -> None:
    world = await parked()
    before = world.counted.commits
    assert ["b"] == [key.partition_key for key in await world.operator.list()]
    assert {"b"} == await world.operator.names()
    assert before == world.counted.commits


async def test_a_list_is_given_although_what_was_left_behind_cannot_be_removed() -> None:
    world = Clocked()
    await world.crash("x")
    await world.hours_later(2)
    world.counted.before = lambda operation, key: (
        StoreUnavailable() if (operation, key) == ("commit", INDEX_ID) else None
    )
    assert () == await world.keys.list()


async def test_leases_that_begin_together_do_not_get_in_each_others_way() -> None:
    counted = Counted(MemoryParked())
    counted.latency_seconds = 0.1
    parking = Parking(counted)
    await asyncio.gather(*(parking.keys() for _ in range(20)))
    assert 20 == counted.commits


async def test_a_relay_asks_once_whether_the_index_names_a_key_that_it_found_parked() -> None:
    world = await parked()
    successor = world.worker()
    await successor(batch(event("b", 5)))
    before = world.counted.commits
    await successor(batch(event("b", 6)))
    assert before + 1 == world.counted.commits
    assert ["b/2", "b/3", "b/4", "b/5", "b/6"] == await world.held("b")


async def test_a_key_whose_entry_was_removed_before_it_came_is_named_before_its_page_is_done() -> None:
    """
    Somebody's clock ran away, or this worker stood still for an hour in between.
    """
    world = World()
    world.reject("b/1")
    index = ParkedIndex(world.store, RetryOptions())

    class StoodStill(MemoryParked):
        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            if (writes[0].id, writes[0].kind) == (KEY_ID, WriteKind.CREATE):
                for epoch in (await world.store.read(INDEX_ID, INDEX_ID))["keys"]:
                    await index.remove(epoch)
            return await world.store.commit(partition_key, writes)

    store = StoodStill()
    store._container = world.store._container
    relay = Relay(world.broker.publisher(), parking=Parking(store), notify=world.told.append)
    await relay(batch(event("b", 1), event("b", 2)))
    await world.worker()(batch(event("b", 3)))
    assert [] == world.ids
    assert ["b/1", "b/2", "b/3"] == await world.held("b")


async def test_a_key_that_was_parked_anew_is_looked_for_in_the_index_anew() -> None:
    """
    The worker knows the key from an earlier parking, and its entry of then says nothing about this one.
    """
    world = await parked()
    world.reject()
    await world.operator.release("b")
    world.reject("b/5")
    await world.worker()(batch(event("b", 5)))
    index = ParkedIndex(world.store, RetryOptions())
    for epoch in (await world.store.read(INDEX_ID, INDEX_ID))["keys"]:
        await index.remove(epoch)
    await world.relay(batch(event("b", 6)))
    await world.worker()(batch(event("b", 7)))
    assert ["b/1", "b/2", "b/3", "b/4"] == world.ids
    assert ["b/5", "b/6", "b/7"] == await world.held("b")


async def test_a_key_that_is_found_parked_and_not_named_is_named_before_its_page_is_done() -> None:
    """
    Its entry was removed before it came, and the worker that parked it died before it looked again.
    """
    world = await parked()
    index = ParkedIndex(world.store, RetryOptions())
    for epoch in (await world.store.read(INDEX_ID, INDEX_ID))["keys"]:
        await index.remove(epoch)
    await world.worker()(batch(event("b", 2), event("b", 3), event("b", 4)))
    await world.worker()(batch(event("b", 5)))
    assert ["b/1"] == world.ids
    assert ["b/2", "b/3", "b/4", "b/5"] == await world.held("b")
