"""
Sessions whose message waits for another attempt (the glossary's "in trouble"): they wait without a slot, so that other sessions are
handled.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Retry, Settlement
from cosmos_outbox.records import SessionClosed
from tests.unit.sessions.test_processor import Counting, now
from tests.unit.sessions.test_slots import held
from tests.unit.sessions.world import Slow, World, seconds, takes

RESTING = 3 * 4  # sessions that may wait without a slot: three for each of the four slots


async def away(message: Message) -> Settlement | None:
    """Retry messages of the sessions "w…" after 30 s, as if their store were unavailable. Complete all others."""
    return Retry(after_seconds=30, counted=False) if str(message.session_id).startswith("w") else None


def waiting(world: World, number: int) -> None:
    for one in range(number):
        world.subscription.deliver(Message(message_id=f"w{one}", session_id=f"w{one}"))


async def handled_after(world: World, name: str) -> float:
    sent = now()
    world.deliver(name)
    await world.until(lambda: f"{name} done" in world.diary)
    return now() - sent


async def test_a_new_key_is_handled_within_two_seconds_beside_a_thousand_waiting_keys() -> None:
    world = World()
    waiting(world, 1000)
    world.start(work=away, max_concurrent_sessions=8, max_waiting_sessions=1000)
    await asyncio.sleep(20)
    for letter in "abcd":
        assert await handled_after(world, f"{letter}1") < 2
        await asyncio.sleep(9)
    assert {0} == {message.delivery_count for message in world.subscription.waiting}
    await world.kill()


async def test_waiting_sessions_beyond_the_limit_take_turns() -> None:
    """A new session is handled within 22 s, although ten times as many sessions wait as the process may keep."""
    world = World(subscription=(broker := Counting()))
    waiting(world, 10 * RESTING)
    world.start(work=away, max_concurrent_sessions=4)
    await asyncio.sleep(100)
    calls, began = broker.calls, now()
    # The sessions are ten times as many as the process may keep. So it keeps a tenth of them for two seconds, then the next tenth.
    for letter in "abcdefgh":
        assert await handled_after(world, f"{letter}1") <= 10 * 2 + 2
        assert len(held(world)) <= RESTING + 2 * 4
        await asyncio.sleep(9)
    # In two seconds, the process tries at most RESTING waiting sessions again, with two calls for each.
    assert broker.calls - calls <= 2 * (now() - began) * RESTING / 2
    attempts = [line for line in world.begun if line[0] == "w"]
    # Each of the 10 * RESTING sessions waits for at least 30 s between two attempts.
    assert len(attempts) <= 10 * RESTING * (now() / 30 + 1)
    assert {0} == {message.delivery_count for message in world.subscription.waiting}
    await world.kill()


@pytest.mark.parametrize("lasting", [20, 200])
async def test_retried_keys_with_long_attempts_leave_half_of_the_slots_to_others(
    lasting: int,
) -> None:
    async def slow(message: Message) -> Settlement | None:
        if message.message_id[0] == "w":
            await asyncio.sleep(lasting)
            return Retry(after_seconds=1, counted=False)
        return await takes(0.5)(message)

    world = World()
    waiting(world, RESTING)
    world.start(work=slow, max_concurrent_sessions=4)
    await asyncio.sleep(4 * lasting)  # until each waiting session was tried once
    tried, letters = len(world.begun), "abcdefgh"
    for number in range(lasting):
        sent = now()
        world.deliver(*(f"{letter}{number}" for letter in letters))
        await world.until(lambda last=f"{letters[-1]}{number} done": last in world.diary, seconds=6)
        await asyncio.sleep(max(0.0, 4 - (now() - sent)))
    again = [line for line in world.begun[tried:] if line[0] == "w"]
    # Two of the four slots are for waiting sessions. The loop above takes 4 * `lasting` seconds and an attempt takes `lasting` seconds, so
    # each of the two slots has room for at least three attempts.
    assert len(again) >= 2 * 3
    assert len(set(again)) == len(again)  # no session was tried twice while others had to wait
    await world.kill()


async def test_keys_that_recover_together_are_all_handled_before_an_idle_timeout_passes() -> None:
    async def until_it_is_back(message: Message) -> Settlement | None:
        return Retry(after_seconds=1, counted=False) if now() < 40 else None

    world = World()
    waiting(world, RESTING)
    world.start(work=until_it_is_back, max_concurrent_sessions=4, session_idle_timeout=seconds(10))
    await asyncio.sleep(40)
    await world.until(lambda: not world.subscription.waiting, seconds=10)
    await world.kill()


async def test_a_handler_gives_its_slot_to_others_during_a_pause() -> None:
    at_once = most = 0

    async def fails(message: Message) -> None:
        nonlocal at_once, most
        for _ in range(3 if message.message_id[0] == "w" else 1):
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1)
            at_once -= 1
            if message.message_id[0] == "w":
                await world.held[message.session_id].pause(20)

    world = World()
    waiting(world, 6)
    world.start(work=fails, max_concurrent_sessions=4)
    await asyncio.sleep(2.5)
    assert await handled_after(world, "a1") < 2
    world.deliver("b1", "c1", "d1", "e1", "f1")
    await world.until_empty()
    assert 4 >= most
    assert now() < 3 * 21 + 20
    assert {closed.outcome for closed in world.of(SessionClosed)} <= {"idle", "turn"}
    await world.stop()


async def test_a_pause_does_not_count_towards_the_time_limit_of_a_handler() -> None:
    async def fails(message: Message) -> None:
        await world.held[message.session_id].pause(500)
        await asyncio.sleep(6)

    world = World()
    waiting(world, 1)
    world.start(work=fails, max_handling=seconds(10))
    await world.until_empty()
    assert ["w0", "w0 done"] == world.diary
    await world.stop()


async def test_a_handler_that_ignores_its_cancellation_keeps_no_slot() -> None:
    async def stubborn(message: Message) -> None:
        if message.session_id == "a":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
            with suppress(asyncio.CancelledError):
                await world.held["a"].pause(2)

    world = World()
    world.deliver("a1")
    processor = world.start(work=stubborn, max_concurrent_sessions=1, max_handling=seconds(5))
    await asyncio.sleep(5.5)
    world.subscription.lose_lock("a")
    for letter in "bcdefgh":
        assert await handled_after(world, f"{letter}1") < 20
    await world.kill()
    assert 1 == processor._slots.free


async def test_a_stop_gives_waiting_sessions_back_at_once() -> None:
    async def slow(message: Message) -> Settlement | None:
        await asyncio.sleep(5)
        return Retry(after_seconds=1, counted=False)

    world = World()
    waiting(world, RESTING)
    processor = world.start(work=slow, max_concurrent_sessions=2)
    await asyncio.sleep(62)
    await world.until(lambda: [one for one in processor.status() if one.handling_seconds is not None])
    processor.stop()
    await asyncio.sleep(0.1)
    handled = {status.session for status in processor.status() if status.handling_seconds is not None}
    assert handled
    assert handled == held(world)
    await world.stop()


@pytest.mark.parametrize("sessions", [True, False])
async def test_a_waiting_message_is_not_reported_as_handled(
    sessions: bool,
) -> None:
    world = World(subscription=MemorySubscription(sessions=sessions))
    waiting(world, 1)
    processor = world.start(work=away)
    await world.until(lambda: len(world.begun) == 3)
    await asyncio.sleep(5)
    assert [None] == [status.handling_seconds for status in processor.status()]
    assert [0] == [message.delivery_count for message in world.subscription.waiting]
    assert (2 if sessions else 0) == len(world.of(SessionClosed))
    await world.stop()


async def test_a_session_is_not_given_back_before_its_first_message_arrives() -> None:
    world = World(subscription=Slow(0.1))
    waiting(world, 30)
    world.start(max_concurrent_sessions=1)
    await world.until_empty()
    assert now() < 30
    await world.stop()
