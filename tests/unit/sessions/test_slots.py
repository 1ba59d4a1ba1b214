"""
Slots: how a processor shares its slots among the sessions that it has accepted, and which session leaves for a waiting one.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.adapters.memory.subscription import MemorySession
from cosmos_outbox.errors import LockLost
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Retry, Settlement
from cosmos_outbox.records import SessionClosed
from cosmos_outbox.sessions import SessionOptions
from cosmos_outbox.sessions.slots import Slots
from tests.unit.sessions.test_processor import Counting, now
from tests.unit.sessions.world import Slow, Work, World, by_id, seconds, takes


def held(world: World) -> set[str | None]:
    """Return the sessions that the broker counts as locked."""
    return {name for name, queue in world.subscription._queues.items() if queue.holders}


@pytest.mark.parametrize("seconds_each", [0.1, 3.0, 10.0])
@pytest.mark.parametrize("opening_seconds", [0.0, 0.3])
@pytest.mark.parametrize(("slots", "busy"), [(1, 1), (1, 2), (2, 2), (2, 3), (8, 9), (8, 40)])
async def test_a_key_with_one_message_is_handled_soon_beside_busy_keys(
    slots: int, busy: int, opening_seconds: float, seconds_each: float
) -> None:
    chance, world = random.Random(slots * busy), World(subscription=(broker := Counting()))
    broker.opening_seconds = opening_seconds
    for key in range(busy):
        for number in range(int(100 / seconds_each) + 50):
            broker.deliver(Message(message_id=f"{key}.{number}", session_id=f"busy {key}"))

    async def work(message: Message) -> None:
        await asyncio.sleep(seconds_each * chance.uniform(0.8, 1.2))

    world.start(work=work, max_concurrent_sessions=slots)
    await asyncio.sleep(10)
    rounds = (busy + 1) / slots * max(1.0, seconds_each)  # in which each key has one turn
    for name in "abcd":
        world.deliver(f"{name}1")
        await world.until(lambda name=name: f"{name}1" in world.begun, seconds=5 + 4 * rounds)  # type: ignore[misc]
    await world.kill()


async def test_the_session_that_was_idle_longest_leaves_for_a_waiting_session() -> None:
    """No more sessions leave than wait for a slot."""
    world = World()
    world.start(max_concurrent_sessions=3, session_idle_timeout=seconds(100))
    for letter in "abc":
        world.deliver(f"{letter}1")
        await asyncio.sleep(1)
    world.deliver("d1")
    await asyncio.sleep(1)
    assert "d1" in world.begun
    assert ["a"] == [closed.session for closed in world.of(SessionClosed)]
    assert {"b", "c", "d"} == held(world)
    await world.stop()


async def test_a_session_with_a_next_message_keeps_its_slot() -> None:
    world = World(subscription=Slow(0.01))
    world.deliver(*(f"a{number}" for number in range(15)), "b1")
    world.start(work=takes(0.05), max_concurrent_sessions=1)
    await world.until_empty()
    assert [*(f"a{number}" for number in range(15)), "b1"] == world.begun
    await world.stop()


async def test_a_session_without_a_slot_is_released_to_other_processes() -> None:
    world = World(subscription=(broker := Counting()))
    world.start("busy", takes(100), max_concurrent_sessions=2)
    world.deliver("a1", "b1")
    await world.until(lambda: len(world.begun) == 2)
    await asyncio.sleep(30)
    world.deliver("c1")
    sent = now()
    await asyncio.sleep(0.5)
    assert {"a", "b", "c"} == held(world)  # accepted ahead
    await asyncio.sleep(2)
    assert {"a", "b"} == held(world)
    assert 0 == broker.waiting_calls
    world.start("free", max_concurrent_sessions=2)
    await world.until(lambda: "c1" in world.begun)
    assert now() < sent + 3
    assert 0 == world.subscription.waiting[0].delivery_count
    await world.kill("busy")
    await world.stop("free")


async def away(message: Message) -> Settlement:
    return Retry(after_seconds=60, counted=False)


@pytest.mark.parametrize(
    ("before", "lock_seconds", "within"),
    [
        (takes(5), 300, 2 + 5),
        (takes(100), 300, 2 + 10),  # a process that hoards a key for longer keeps it from others
        (takes(8), 12, 12 / 2),  # half of its lock
        (away, 300, 2),  # a back-off is no handling
    ],
)
async def test_a_session_waits_for_a_slot_about_as_long_as_the_last_message_took(
    before: Work, lock_seconds: float, within: float
) -> None:
    world = World(subscription=(broker := Counting(lock_seconds=lock_seconds)))
    world.deliver("z1")
    world.start("busy", by_id(z1=before, a1=takes(290)), max_concurrent_sessions=1)
    await asyncio.sleep(70)
    world.deliver("a1")
    await world.until(lambda: "a1" in world.begun)
    world.deliver("b1")
    sent = now()
    await asyncio.sleep(0.1)
    assert "b" in held(world)
    world.start("free", max_concurrent_sessions=8)
    await world.until(lambda: "b1" in world.begun)
    assert within - 0.5 < now() - sent < within + 1.5
    assert 0 == broker.waiting[-1].delivery_count
    await world.kill("busy")
    await world.stop("free")


async def test_a_processor_accepts_few_more_sessions_than_it_has_slots() -> None:
    """The number depends on how many slots become free while a session is opened."""
    world, most = World(subscription=(broker := Counting())), 0
    broker.opening_seconds = 0.5
    for number in range(400):
        broker.deliver(Message(message_id=f"{number}", session_id=f"{number}"))
    world.start(work=takes(0.9), max_concurrent_sessions=8)
    while broker.waiting:
        await asyncio.sleep(0.1)
        most = max(most, len(held(world)))
    assert 8 < most <= 8 + 16  # eight a second, for half a second, twice
    assert now() < 0.9 * 400 / 8 + 5
    assert {"idle"} == {closed.outcome for closed in world.of(SessionClosed)}
    await world.stop()


async def test_a_message_is_handled_once_although_its_lock_was_lost_while_it_waited() -> None:
    world = World()
    world.deliver("a1", "b1")
    world.start(work=takes(1.5), max_concurrent_sessions=1)
    await asyncio.sleep(0.5)
    assert {"a", "b"} == held(world)
    world.subscription.lose_lock("b")
    await world.until_empty()
    assert ["a1", "a1 done", "b1", "b1 done"] == world.diary
    await world.stop()


class LosesLocks(MemorySubscription):
    """
    A subscription that takes a second to close a session, and reports soon after the first message of session "a" that its lock is
    lost.
    """

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        session = await super().accept(wait_seconds)
        if session is not None:
            close, receive, received = session.close, session.receive, False

            async def closed() -> None:
                await asyncio.sleep(1)
                await close()

            async def once(wait_seconds: float) -> Message | None:
                nonlocal received
                if received and session.id == "a":
                    await asyncio.sleep(0.5)
                    raise LockLost
                received = True
                return await receive(wait_seconds)

            session.close, session.receive = closed, once  # type: ignore[method-assign]
        return session


async def test_a_session_that_is_closed_after_a_lost_lock_is_not_asked_to_leave() -> None:
    world = World(subscription=LosesLocks())
    world.deliver("a1")
    world.start(work=by_id(b1=takes(1)), max_concurrent_sessions=1)
    await world.until(lambda: "a1 done" in world.diary)
    await asyncio.sleep(0.6)
    world.deliver("b1", "c1")
    await world.until_empty()
    await world.stop()
    assert ["a1", "a1 done", "b1", "b1 done", "c1", "c1 done"] == world.diary


async def test_slots_are_given_to_waiting_calls_in_order() -> None:
    """A call that is cancelled as it gets a slot does not lose the slot."""
    slots, got = Slots(SessionOptions(max_concurrent_sessions=1), (), freed=lambda: None), []

    async def take(name: str, patience: float) -> None:
        if await slots.take(patience):
            got.append(name)

    await take("a", 1)
    calls = [asyncio.create_task(take(*one)) for one in (("b", 10), ("c", 1), ("d", 10), ("e", 10))]
    await asyncio.sleep(2)
    assert 3 == slots.waiting
    slots.give_back()
    calls[0].cancel()  # in the same moment
    await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert ["a", "d"] == got
    slots.give_back()
    slots.give_back()
    await asyncio.gather(*calls, return_exceptions=True)
    assert ["a", "d", "e"] == got
    assert 1 == slots.free
