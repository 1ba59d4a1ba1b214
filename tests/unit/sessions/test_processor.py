"""
Session processors: how many sessions they ask for and hold, what they do while the broker fails, and how they stop.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.adapters.memory.subscription import MemorySession
from cosmos_outbox.errors import ConfigurationError, SubscriptionUnavailable
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Settlement
from cosmos_outbox.records import (
    ReceivingFailed,
    SessionClosed,
)
from cosmos_outbox.retries import Backoff
from cosmos_outbox.sessions import SessionOptions
from tests.unit.sessions.world import World, by_id, seconds, takes

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def now() -> float:
    return asyncio.get_running_loop().time()


class Counting(MemorySubscription):
    """A subscription that counts the waiting calls of `accept`, and can take time to open a session."""

    waiting_calls = most_calls = calls = 0
    opening_seconds = 0.0

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        self.calls += 1
        self.waiting_calls += 1
        self.most_calls = max(self.most_calls, self.waiting_calls)
        try:
            await asyncio.sleep(self.opening_seconds)
            return await super().accept(wait_seconds)
        finally:
            self.waiting_calls -= 1


async def test_a_processor_handles_up_to_its_maximum_of_sessions_in_parallel() -> None:
    world, at_once, most = World(), 0, 0

    async def work(message: Message) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(1)
        at_once -= 1

    world.deliver(*(f"{letter}{number}" for letter in LETTERS for number in range(2)))
    processor = world.start(work=work, max_concurrent_sessions=5)
    await world.until(lambda: most == 5)
    assert 5 == len(processor.status())
    await world.until_empty()
    await world.stop()
    assert 5 == most
    for letter in LETTERS:
        assert [f"{letter}0", f"{letter}1"] == [name for name in world.begun if name[0] == letter]


async def test_the_status_shows_how_long_each_session_handles_its_message() -> None:
    world = World()
    world.deliver("a1", "a2", "b1")
    processor = world.start(work=by_id(a2=takes(10)))
    await world.until(lambda: "a2" in world.begun)
    await asyncio.sleep(3)
    sessions = {status.session: status for status in processor.status()}
    assert (1, 1) == (sessions["a"].messages, sessions["b"].messages)
    assert sessions["b"].handling_seconds is None
    assert sessions["a"].handling_seconds == pytest.approx(3, abs=0.1)
    await world.stop()
    assert () == processor.status()


async def test_only_one_accept_call_waits_while_no_messages_come() -> None:
    world = World(subscription=(broker := Counting()))
    world.start()
    await asyncio.sleep(2)
    broker.calls = broker.most_calls = 0
    await asyncio.sleep(300)
    assert (1, 1) == (broker.waiting_calls, broker.most_calls)
    assert broker.calls <= 16
    await world.stop()


async def test_a_starting_processor_asks_for_as_many_sessions_as_it_has_slots() -> None:
    world = World(subscription=(broker := Counting()))
    broker.opening_seconds = 0.5
    world.deliver(*(f"{letter}1" for letter in LETTERS))
    world.start(work=takes(100), max_concurrent_sessions=20)
    await asyncio.sleep(0.6)
    assert (20, 20) == (len(world.begun), broker.most_calls)
    await world.kill()


async def test_the_number_of_accept_calls_follows_the_number_of_available_sessions() -> None:
    world = World(subscription=(broker := Counting()))
    broker.opening_seconds = 0.5
    world.start(work=takes(100))
    await asyncio.sleep(60)
    broker.most_calls, began = 0, now()
    world.deliver(*(f"{letter}1" for letter in LETTERS))
    await world.until(lambda: len(world.begun) == 26)
    assert now() < began + 5  # opening the sessions one after another would take 13 s
    assert 8 <= broker.most_calls <= 32
    await asyncio.sleep(60)
    assert 1 == broker.waiting_calls
    await world.stop()


async def test_accepting_a_session_again_cancels_its_earlier_handler_in_the_process() -> None:
    world = World()
    world.deliver("a1", "a2")
    world.start(work=takes(10))
    await world.until(lambda: world.begun)
    world.subscription.lose_lock("a")
    await world.until(lambda: len(world.begun) == 2)
    assert ["a1", "a1 cancelled", "a1"] == world.diary
    await world.until_empty()
    await world.stop()
    assert ["lost", "stopped"] == [closed.outcome for closed in world.of(SessionClosed)]


async def test_an_unavailable_broker_is_retried_with_a_back_off() -> None:
    world = World(subscription=(broker := Counting()))
    broker.down = True
    processor = world.start(backoff=Backoff(initial_seconds=0.1, maximum_seconds=10))
    await asyncio.sleep(200)
    failures = world.of(ReceivingFailed)
    assert list(range(1, len(failures) + 1)) == [failure.attempt for failure in failures]
    assert 20 <= len(failures) <= 100
    assert max(failure.delay_seconds for failure in failures) <= 10
    assert not processor.receiving
    broker.down = False
    world.deliver("a1")
    await world.until_empty()
    assert processor.receiving
    await world.stop()


async def test_accept_calls_that_fail_together_count_as_one_failure() -> None:
    world = World(subscription=(broker := Counting()))
    broker.opening_seconds = 0.5
    world.deliver(*(f"{letter}1" for letter in LETTERS))
    world.start(backoff=Backoff(initial_seconds=60, maximum_seconds=60))
    await world.until(lambda: broker.waiting_calls > 4)
    broker.down = True
    broker.changed.set()
    await asyncio.sleep(0.6)
    assert [1] == [failure.attempt for failure in world.of(ReceivingFailed)]
    await world.stop()


async def test_a_processor_asks_the_broker_again_only_after_its_retry_delay() -> None:
    class Busy(Counting):
        async def accept(self, wait_seconds: float) -> MemorySession | None:
            self.calls += 1
            raise SubscriptionUnavailable("busy", retry_after=7)

    world = World(subscription=(broker := Busy()))
    world.start(max_concurrent_sessions=4)
    await asyncio.sleep(69)
    assert 4 + 9 == broker.calls  # four calls at the start, and one call every 7 s
    await world.stop()


class Refusing(Counting):
    """A subscription that gives sessions, and refuses every settlement."""

    refusal: SubscriptionUnavailable | None = SubscriptionUnavailable("busy")

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        session = await super().accept(wait_seconds)
        if session is None:
            return None
        settle = session.settle

        async def settled(message: Message, settlement: Settlement) -> None:
            if self.refusal is not None:
                raise self.refusal
            await settle(message, settlement)

        session.settle = settled  # type: ignore[method-assign]
        return session


async def test_a_processor_accepts_sessions_with_a_back_off_while_settlements_are_refused() -> None:
    world = World(subscription=(broker := Refusing()))
    world.deliver("a1", "b1")
    processor = world.start(
        backoff=Backoff(initial_seconds=0.1, maximum_seconds=10), max_concurrent_sessions=4
    )
    await world.until(lambda: world.begun)
    for _ in range(200):
        await asyncio.sleep(1)
        # An accepted session does not show that the broker works, because the settlements of its messages are refused.
        assert not processor.receiving
    assert 10 <= len(world.begun) <= 100
    lasting = [failure.lasting_seconds for failure in world.of(ReceivingFailed)]
    assert lasting == sorted(lasting)
    assert lasting[-1] > 180
    broker.refusal = None
    await world.until_empty()
    assert processor.receiving
    await world.stop()


async def test_the_first_accept_calls_of_a_processor_wait_only_briefly() -> None:
    """The end of an accept call shows that the broker can be reached, so the processor knows this soon after its start."""
    world = World(subscription=(broker := Counting()))
    world.start(max_concurrent_sessions=4)
    await asyncio.sleep(2)
    assert (4 + 1, 1) == (broker.calls, broker.waiting_calls)
    await world.stop()


class Silent(Counting):
    """A subscription that stops answering when `silent` is set. Its callers notice this after 30 s."""

    silent = False

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        session = await super().accept(wait_seconds)
        if self.silent:
            await asyncio.sleep(30)
            raise SubscriptionUnavailable("silent")
        if session is not None:
            session.renew = self.renew  # type: ignore[method-assign]
        return session

    async def renew(self) -> None:
        await asyncio.sleep(30)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "all sessions busy"])
async def test_the_outage_of_a_silent_broker_counts_from_its_last_answer(busy: bool) -> None:
    world = World(subscription=(broker := Silent(lock_seconds=20)))
    if busy:
        world.deliver("a1")
    world.start(work=takes(300), max_concurrent_sessions=1)
    await asyncio.sleep(2)
    broker.silent = True
    await world.until(lambda: world.of(ReceivingFailed))
    (failed,) = world.of(ReceivingFailed)
    assert failed.lasting_seconds == pytest.approx(now() - 1.0, abs=0.2)
    assert ("does not answer" if busy else "silent") in str(failed.error)
    await world.kill()


async def test_a_stop_waits_for_running_handlers() -> None:
    """When they have ended, the processor gives all its sessions back to the broker."""
    world = World(subscription=(broker := Counting()))
    world.deliver("a1", "a2", "b1")
    processor = world.start(work=by_id(a1=takes(5)), grace_period=seconds(10))
    await world.until(lambda: len(world.begun) == 2)
    processor.stop()
    await asyncio.sleep(1)
    assert 0 == broker.waiting_calls  # a process that stops asks for no session
    await world.stop()
    assert 5.0 <= now() < 5.2
    assert ["a1", "b1"] == sorted(message.message_id for message, _ in broker.settled)
    assert "a2" not in world.begun
    assert {"stopped"} == {closed.outcome for closed in world.of(SessionClosed)}
    assert not any(queue.holders for queue in broker._queues.values())
    assert 0 == broker.waiting_calls


async def test_handlers_are_cancelled_after_the_grace_period_of_a_stop() -> None:
    """The messages of the cancelled handlers are not settled, so the broker delivers them again."""
    world = World()
    world.deliver("a1", "b1")
    world.start(work=takes(100), grace_period=seconds(10))
    await world.until(lambda: len(world.begun) == 2)
    await world.stop()
    assert 10.0 <= now() < 12
    assert ["a1 cancelled", "b1 cancelled"] == sorted(line for line in world.diary if " " in line)
    assert [] == world.subscription.settled
    assert [0, 0] == [message.delivery_count for message in world.subscription.waiting]
    assert not any(queue.holders for queue in world.subscription._queues.values())


@pytest.mark.parametrize("call", ["accept", "receive", "renew", "settle", "close"])
async def test_an_unexpected_error_in_one_session_ends_no_other_session(call: str) -> None:
    """The processor tries the failed call again."""

    class Broken(MemorySubscription):
        faults = 0

        async def accept(self, wait_seconds: float) -> MemorySession | None:
            session = await super().accept(wait_seconds)
            if session is not None and session.id == "b" and self.faults < 2:
                if call == "accept":
                    await session.close()
                    await self.fail()
                setattr(session, call, self.fail)
            return session

        async def fail(self, *_: object) -> None:
            self.faults += 1
            raise KeyError("unforeseen")

    world = World(subscription=(broker := Broken(lock_seconds=10)))
    world.deliver("a1", "b1")
    world.start(work=takes(8))
    await world.until(lambda: broker.faults, seconds=30)
    world.deliver("c1")
    await world.until_empty()
    assert {"a1 done", "b1 done", "c1 done"} <= set(world.diary)
    assert 1 == world.diary.count("a1")
    failed = world.of(ReceivingFailed)
    assert {KeyError} == {type(record.error) for record in failed}
    await world.stop()


async def test_a_renewal_that_raises_an_unexpected_error_is_repeated() -> None:
    class Broken(MemorySubscription):
        async def accept(self, wait_seconds: float) -> MemorySession | None:
            session = await super().accept(wait_seconds)
            if session is not None:
                renew = session.renew

                async def once() -> None:
                    session.renew = renew  # type: ignore[method-assign]
                    raise KeyError("unforeseen")

                session.renew = once  # type: ignore[method-assign]
            return session

    world = World(subscription=Broken(lock_seconds=10))
    world.deliver("a1")
    world.start(work=takes(30))
    await world.until_empty()
    assert ["a1", "a1 done"] == world.diary
    await world.stop()


async def test_an_error_while_a_session_is_closed_does_not_end_the_processor() -> None:
    class Broken(MemorySubscription):
        async def accept(self, wait_seconds: float) -> MemorySession | None:
            session = await super().accept(wait_seconds)
            if session is not None and session.id == "b":
                session.close = self.fail  # type: ignore[method-assign]
            return session

        async def fail(self) -> None:
            raise KeyError("unforeseen")

    world = World(subscription=Broken(lock_seconds=20))
    world.deliver("a1")
    world.start(work=takes(10), max_concurrent_sessions=1)
    await world.until(lambda: "a1" in world.begun)
    world.deliver("b1")
    await asyncio.sleep(5)
    assert world.subscription._queues["b"].holders  # session b is still locked, because closing it failed
    await world.until_empty()
    assert ["a1", "a1 done", "b1", "b1 done"] == world.diary
    await world.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrent_sessions": 0},
        {"max_waiting_sessions": 0},
        {"max_waiting_sessions": -1},
        {"session_idle_timeout": timedelta(0)},
        {"max_handling": timedelta(seconds=-1)},
        {"grace_period": timedelta(seconds=-1)},
    ],
    ids=str,
)
def test_invalid_session_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        SessionOptions(**options)
