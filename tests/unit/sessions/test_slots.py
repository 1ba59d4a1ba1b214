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
    rounds = (busy + 1) / slots * max(1.0, seconds_each)  # in this many seconds, each key gets a slot once
    for name in "abcd":
        world.deliver(f"{name}1")
        await world.until(lambda name=name: f"{name}1" in world.begun, seconds=5 + 4 * rounds)  # type: ignore[misc]
    await world.kill()


async def test_the_session_that_was_idle_longest_gives_its_slot_to_a_waiting_session() -> None:
    """Only as many idle sessions leave as other sessions wait for a slot."""
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


async def test_a_session_whose_next_message_is_at_hand_keeps_its_slot() -> None:
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
    # How the last message was handled, how many seconds a lock lasts, and how many seconds a session then waits for a slot: 2 s longer than
    # the last message took.
    [
        (takes(5), 300, 2 + 5),
        # Of the 100 s, only 10 s count for the wait, so that another process gets the key soon.
        (takes(100), 300, 2 + 10),
        (takes(8), 12, 12 / 2),  # a session waits for no longer than half of its lock's 12 s
        (away, 300, 2),  # the pause before a message is tried again does not count as time of its handling
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
    """How many more it accepts depends on how many slots become free while a session is opened."""
    world, most = World(subscription=(broker := Counting())), 0
    broker.opening_seconds = 0.5
    for number in range(400):
        broker.deliver(Message(message_id=f"{number}", session_id=f"{number}"))
    world.start(work=takes(0.9), max_concurrent_sessions=8)
    while broker.waiting:
        await asyncio.sleep(0.1)
        most = max(most, len(held(world)))
    assert 8 < most <= 8 + 16  # at most two additional sessions for each slot
    assert now() < 0.9 * 400 / 8 + 5  # 400 messages of 0.9 s share 8 slots, and may take 5 s longer
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


async def test_a_session_that_lost_its_lock_is_not_asked_to_leave_its_slot() -> None:
    world = World(subscription=LosesLocks())
    world.deliver("a1")
    world.start(work=by_id(b1=takes(1)), max_concurrent_sessions=1)
    await world.until(lambda: "a1 done" in world.diary)
    await asyncio.sleep(0.6)
    world.deliver("b1", "c1")
    await world.until_empty()
    await world.stop()
    assert ["a1", "a1 done", "b1", "b1 done", "c1", "c1 done"] == world.diary


async def test_slots_are_given_to_waiting_sessions_in_order() -> None:
    """The test also checks a waiting call that is cancelled as it gets a slot: the slot goes to the next call."""
    slots, got = Slots(SessionOptions(max_concurrent_sessions=1), (), freed=lambda: None), []

    async def take(name: str, patience: float) -> None:
        if await slots.take(patience):
            got.append(name)

    await take("a", 1)
    calls = [asyncio.create_task(take(*one)) for one in (("b", 10), ("c", 1), ("d", 10), ("e", 10))]
    await asyncio.sleep(2)
    assert 3 == slots.waiting
    slots.give_back()
    calls[0].cancel()  # the call of "b", at the moment in which it gets the slot
    await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert ["a", "d"] == got
    slots.give_back()
    slots.give_back()
    await asyncio.gather(*calls, return_exceptions=True)
    assert ["a", "d", "e"] == got
    assert 1 == slots.free
