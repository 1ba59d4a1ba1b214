"""
Tests of held sessions, which a process has locked: they handle one message at a time, renew the lock while the handler works, and settle
nothing after the lock is lost.
"""

from __future__ import annotations

import asyncio

import pytest

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.adapters.memory.subscription import MemorySession
from cosmos_outbox.errors import LockLost, SubscriptionUnavailable
from cosmos_outbox.message_format import Message
from cosmos_outbox.ports import Complete, DeadLetter, Defer, Retry, Settlement
from cosmos_outbox.records import (
    MessageFailed,
    MessageSettled,
    SessionClosed,
)
from tests.unit.sessions.world import World, answers, by_id, seconds, takes


def now() -> float:
    return asyncio.get_running_loop().time()


class Flaky(MemorySubscription):
    """A subscription that counts renewals of session locks and can make them fail or hang."""

    renewals = 0
    refuses: type[Exception] | None = None
    hangs = False

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        session = await super().accept(wait_seconds)
        if session is not None:
            renew = session.renew

            async def renewed() -> None:
                self.renewals += 1
                if self.hangs:
                    await asyncio.sleep(10_000)
                if self.refuses:
                    raise self.refuses
                await renew()

            session.renew = renewed  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, "complete"),
        (Complete(), "complete"),
        (Retry(), "retry"),
        (Retry(counted=False), "retry"),
        (DeadLetter(reason="r", description="d"), "dead-letter"),
        (Defer(), "defer"),
    ],
    ids=str,
)
async def test_the_answer_of_a_handler_settles_its_message(answer: Settlement | None, outcome: str) -> None:
    world = World()
    await world.play("a1", "a2", work=answers(answer))
    assert outcome == world.of(MessageSettled)[0].outcome
    again = isinstance(answer, Retry)
    assert (["a1", "a1", "a2"] if again else ["a1", "a2"]) == world.begun
    assert (["a1"] if outcome == "dead-letter" else []) == [
        dead.message_id for dead, *_ in world.subscription.dead_letters
    ]
    assert (1 if outcome == "defer" else 0) == len(world.subscription.deferred)


@pytest.mark.parametrize(("counted", "deliveries"), [(True, [0, 1, 2]), (False, [0, 0, 0])])
async def test_a_delayed_retry_counts_as_a_delivery_only_if_the_handler_says_so(
    counted: bool, deliveries: list[int]
) -> None:
    world, counts = World(), list[int]()
    answer = answers(*[Retry(after_seconds=2, counted=counted)] * 2)

    async def work(message: Message) -> Settlement | None:
        counts.append(message.delivery_count)
        return await answer(message)

    await world.play("a1", work=work)
    assert deliveries == counts
    assert ["retry", "retry"] == [closed.outcome for closed in world.of(SessionClosed)][:2]
    assert 4.0 <= now() < 6.0


async def test_the_session_lock_is_renewed_while_a_message_waits_for_its_retry() -> None:
    world = World(subscription=Flaky(lock_seconds=10))
    await world.play("a1", work=answers(Retry(after_seconds=100)), max_handling=seconds(20))
    assert ["a1", "a1"] == world.begun
    assert now() > 100
    assert 19 <= world.subscription.renewals  # type: ignore[attr-defined]


async def test_a_failed_message_is_retried_until_the_broker_dead_letters_it() -> None:
    world = World(subscription=MemorySubscription(max_deliveries=3))
    await world.play("a1", "a2", work=answers(*[ValueError("no")] * 3))
    assert ["a1", "a1", "a1", "a2"] == world.begun
    assert [0, 1, 2] == [failed.delivery_count for failed in world.of(MessageFailed)]
    ((dead, reason, _),) = world.subscription.dead_letters
    assert ("a1", "MaxDeliveryCountExceeded") == (dead.message_id, reason)


async def test_a_handler_that_awaits_a_cancelled_task_counts_as_failed() -> None:
    async def work(message: Message) -> None:
        if message.delivery_count == 0:
            other = asyncio.create_task(asyncio.sleep(10))
            other.cancel()
            await other

    world = World()
    await world.play("a1", work=work)
    (failed,) = world.of(MessageFailed)
    assert isinstance(failed.error, asyncio.CancelledError)
    assert ["a1", "a1 cancelled", "a1", "a1 done"] == world.diary


async def test_the_lock_is_renewed_while_a_handler_works() -> None:
    world = World(subscription=Flaky(lock_seconds=10))
    await world.play("a1", "a2", work=takes(100))
    assert ["a1", "a1 done", "a2", "a2 done"] == world.diary
    assert 40 <= world.subscription.renewals <= 42  # type: ignore[attr-defined]


async def test_a_session_with_a_steady_flow_of_messages_renews_its_lock_in_time() -> None:
    """The session always has a message to handle, which must not delay the renewal of its lock."""
    world = World(subscription=Flaky(lock_seconds=10))
    world.deliver(*(f"a{number}" for number in range(100)))
    world.start(work=takes(0.9))
    longest, session_lock = 0.0, world.subscription
    while session_lock.waiting:
        for queue in session_lock._queues.values():
            longest = max([longest, *(now() - holder._locked_at for holder in queue.holders)])
        await asyncio.sleep(0.1)
    await world.stop()
    assert 100 == len(world.begun)
    assert longest < 6.5


async def test_the_message_of_a_handler_that_takes_too_long_is_retried() -> None:
    world = World()
    world.deliver("a1")
    world.start(work=by_id(a1=takes(1000)), max_handling=seconds(50))
    await world.until(lambda: len(world.begun) == 2)
    assert ["a1", "a1 cancelled", "a1"] == world.diary
    assert 50 <= now() < 52
    (failed,) = world.of(MessageFailed)
    assert isinstance(failed.error, TimeoutError)
    assert 1 == world.subscription.waiting[0].delivery_count
    await world.kill()


@pytest.mark.parametrize("how", ["taken", "refused", "unavailable", "silent"])
async def test_a_handler_is_cancelled_when_its_session_lock_may_be_lost(how: str) -> None:
    """The handler's message is not settled, because another process may already handle it."""
    world = World(subscription=(broker := Flaky(lock_seconds=10)))
    world.deliver("a1", "a2")
    world.start(work=takes(60))
    await world.until(lambda: world.begun)
    match how:
        case "taken":
            broker.lose_lock("a")
        case "refused":
            broker.refuses = LockLost
        case "unavailable":
            broker.refuses = SubscriptionUnavailable
        case _:
            broker.hangs = True
    await world.until(lambda: world.of(SessionClosed))
    assert "a1 cancelled" == world.diary[1]
    # If the renewal is refused, the handler is cancelled at the first renewal, within 6 s. Otherwise it is cancelled before the lock
    # of 10 s ends.
    assert now() < (6 if how == "refused" else 10)
    assert [] == broker.settled
    assert ("lost", 0) == (world.of(SessionClosed)[0].outcome, world.of(SessionClosed)[0].messages)
    assert world.of(SessionClosed)[0].error is not None
    await world.kill()


async def test_failed_renewals_are_repeated_until_the_lock_may_be_lost() -> None:
    world = World(subscription=(broker := Flaky(lock_seconds=20)))
    world.deliver("a1")
    world.start(work=takes(30))
    await asyncio.sleep(9)
    broker.refuses = SubscriptionUnavailable
    await asyncio.sleep(5)
    broker.refuses = None
    await world.until_empty()
    await world.stop()
    assert ["a1", "a1 done"] == world.diary
    assert ["complete"] == [settled.outcome for settled in world.of(MessageSettled)]


async def test_a_handler_that_blocks_the_event_loop_beyond_the_lock_settles_nothing() -> None:
    world = World(subscription=(broker := MemorySubscription(lock_seconds=60, trust_seconds=10)))
    loop = asyncio.get_running_loop()
    behind = 0.0
    loops_time = loop.time

    async def work(message: Message) -> None:
        nonlocal behind
        if message.delivery_count == 0:
            behind = 11.0  # as if the handler had blocked the loop for 11 s

    loop.time = lambda: loops_time() + behind  # type: ignore[method-assign]
    await world.play("a1", work=work)
    loop.time = loops_time  # type: ignore[method-assign]
    assert ["a1", "a1 done", "a1", "a1 done"] == world.diary
    assert "lost" == world.of(SessionClosed)[0].outcome
    assert 1 == len(broker.settled)


class Refusing(MemorySubscription):
    """A subscription that takes a session away just before the first settlement of each message."""

    refused = 0

    async def accept(self, wait_seconds: float) -> MemorySession | None:
        session = await super().accept(wait_seconds)
        if session is not None:
            settle = session.settle

            async def settled(message: Message, settlement: Settlement) -> None:
                if not message.delivery_count:
                    self.refused += 1
                    self.lose_lock(message.session_id or "")
                await settle(message, settlement)

            session.settle = settled  # type: ignore[method-assign]
        return session


async def test_a_refused_settlement_ends_the_session() -> None:
    world = World(subscription=(broker := Refusing()))
    await world.play("a1")
    assert ["a1", "a1 done", "a1", "a1 done"] == world.diary
    assert 1 == broker.refused
    assert ["lost", "stopped"] == [closed.outcome for closed in world.of(SessionClosed)]
    assert 1 == len(world.of(MessageSettled)) == len(broker.settled)


async def test_a_handler_that_ignores_its_cancellation_settles_nothing() -> None:
    """The lock is lost while the handler runs. The handler goes on, but its slot is free for another session."""

    async def deaf(message: Message) -> None:
        if message.delivery_count:
            return
        ends_at = now() + 200
        while now() < ends_at:
            try:
                await asyncio.sleep(ends_at - now())
            except asyncio.CancelledError:
                continue

    world = World(subscription=(broker := Flaky(lock_seconds=10)))
    world.deliver("a1", "b1")
    world.start(work=by_id(a1=deaf), max_concurrent_sessions=1)
    await world.until(lambda: world.begun)
    broker.lose_lock("a")
    await world.until(lambda: len(world.begun) == 3, seconds=20)
    assert {"a1", "b1"} == set(world.begun)
    (ignored,) = world.of(MessageFailed)
    assert ("a", "a1", "left behind") == (ignored.session, ignored.message_id, ignored.outcome)
    await world.until_empty()
    await asyncio.sleep(300)
    assert ["a1", "b1"] == sorted(message.message_id for message, _ in broker.settled)
    await world.stop()


async def test_an_idle_session_gives_its_slot_to_a_waiting_session_at_once() -> None:
    """If no session waits, the idle session keeps its slot until the idle timeout."""
    world = World()
    world.deliver("a1", "b1", "c1")
    world.start(session_idle_timeout=seconds(5), max_concurrent_sessions=1)
    await world.until(lambda: len(world.begun) == 3)
    assert now() < 0.2
    await world.until(lambda: len(world.of(SessionClosed)) == 3)
    assert {"idle"} == {closed.outcome for closed in world.of(SessionClosed)}
    assert 5.0 <= now() < 5.2
    await world.stop()


async def test_without_sessions_messages_are_handled_in_parallel() -> None:
    """Each message has a lock of its own, so no message waits for another. The lock is renewed while the handler works."""
    world = World(subscription=(broker := Flaky(sessions=False, lock_seconds=10)))
    world.deliver("a1", "a2", "b1")
    world.start(work=takes(30))
    await world.until(lambda: len(world.begun) == 3)
    assert now() < 1
    await world.until_empty()
    assert now() < 32
    await asyncio.sleep(30)  # without messages, there is no lock to renew or to lose
    renewals = broker.renewals
    await asyncio.sleep(30)
    assert renewals == broker.renewals
    await world.stop()
    assert {"idle"} == {closed.outcome for closed in world.of(SessionClosed)}


async def test_a_stop_does_not_wait_for_the_retry_delay_of_a_message() -> None:
    world = World()
    world.deliver("a1")
    world.start(work=answers(Retry(after_seconds=100)))
    await world.until(lambda: "a1 done" in world.diary)
    before = now()
    await world.stop()
    assert now() < before + 2
    assert 1 == world.subscription.waiting[0].delivery_count
