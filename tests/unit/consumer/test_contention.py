"""
Handlers that write the same document at the same time: no message is given up for such a conflict. A message whose handler fails each
time is given up, whatever error the handler raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cosmos_outbox import Conflict, Entity, NotFound, PreconditionFailed, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.errors import ReleaseTakenOver
from cosmos_outbox.records import AttemptFailed, ConsumerHalted, MessageGivenUp
from tests.support.shop import OrderPaid, World, message, ran


class Total(Entity):
    orders: int = 0

    @property
    def partition_key(self) -> str:
        return "all"


class Slow(MemoryContainer):
    """
    A container whose requests take a moment, so that handlers of many sessions read the same document before one of them writes it.
    """

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.01)
        return await super().read(*args, **kwargs)

    async def commit(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.01)
        return await super().commit(*args, **kwargs)


@pytest.mark.parametrize("keys", [4, 32])
async def test_handlers_of_many_keys_that_change_one_document_park_no_message(
    keys: int,
):
    """Each message is counted in the document exactly once."""
    consumer = Consumer("totals", partition_key=lambda message: "all", attempts=2)

    @consumer.on(OrderPaid)
    async def count(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        totals = uow.repository(Total)
        try:
            total = await totals.read("total", partition_key="all")
        except NotFound:
            total = totals.create(Total(id="total"))
        total.orders += 1

    world = World(consumer, container=Slow(ranges=1))
    for number in range(10):
        for key in range(keys):
            world.subscription.deliver(
                message(OrderPaid(order_id=f"o{key}", total=number), session=f"o{key}")
            )
    await world.run(seconds=3600)

    assert [] == world.of(MessageGivenUp)
    assert world.of(AttemptFailed), "they did meet"
    assert [10 * keys] == [total["data"]["orders"] for total in world.documents("total")]


@pytest.mark.parametrize("named", [True, False])
async def test_a_message_is_given_up_if_its_handler_raises_the_same_conflict_each_time(
    named: bool,
):
    consumer, calls = Consumer("c", attempts=3), list[str]()

    @consumer.on(OrderPaid)
    async def refuse(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        calls.append(event.order_id)
        raise PreconditionFailed(expected="1", actual="2", document_id="d" if named else None)

    world = await ran(consumer, message(OrderPaid(order_id="o1")))

    assert ["PreconditionFailed"] == [parked.reason for parked in world.of(MessageGivenUp, "parked")]
    assert 4 == len(calls), "three that count, and the first, which another writer may have spoilt"


async def test_a_message_is_given_up_if_each_attempt_conflicts_with_another_document():
    consumer, calls = Consumer("c", attempts=3), list[str]()

    @consumer.on(OrderPaid)
    async def refuse(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        calls.append(event.order_id)
        raise Conflict(document_id=f"new-{len(calls)}")

    world = await ran(consumer, message(OrderPaid(order_id="o1")))

    assert ["Conflict"] == [parked.reason for parked in world.of(MessageGivenUp, "parked")]
    assert 4 == len(calls)


async def test_a_handler_that_fails_on_every_message_halts_the_consumer():
    """
    Only five messages are dead-lettered before the consumer halts. The others wait until the handler works.
    """
    consumer, broken = Consumer("c", attempts=1, on_failure="dead_letter"), [True]

    @consumer.on(OrderPaid)
    async def pay(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if broken[0]:
            raise RuntimeError("a bad deployment")

    world = World(consumer)
    for key in range(40):
        world.subscription.deliver(message(OrderPaid(order_id=f"o{key}"), session=f"o{key}"))
    await world.run(lambda: len(world.of(ConsumerHalted)) > 40)
    assert (5, 35) == (len(world.of(MessageGivenUp, "dead-lettered")), len(world.subscription.waiting))

    broken[0] = False
    await world.run(seconds=3600)
    assert (5, 0) == (len(world.of(MessageGivenUp)), len(world.subscription.waiting))


async def spoilt_by(writer: Callable[[list[int]], str | None]) -> tuple[World, list[int]]:
    """
    Return a world whose key o1 is parked, and a list to which the handler adds the total of each message that it gets.

    The handler of a released message calls `writer`. If that returns a version, another program wrote this version of the document, so
    the handler fails with PreconditionFailed.
    """
    consumer, calls = Consumer("c", attempts=1), list[int]()

    @consumer.on(OrderPaid)
    async def pay(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        calls.append(event.total)
        if len(calls) == 1:
            raise ValueError("not yet")
        if (version := writer(calls)) is not None:
            raise PreconditionFailed(expected="1", actual=version, document_id="total")
        uow.save({"id": event.id, "partitionKey": event.order_id, "type": "paid"})

    world = World(consumer)
    for total in (1, 2):
        world.subscription.deliver(message(OrderPaid(order_id="o1", total=total)))
    await world.run()
    return world, calls


def each_time(writers: int) -> Callable[[list[int]], str | None]:
    """
    Return a function for `spoilt_by`, which plays another program. During a release, this program writes the handler's document at each
    of the first `writers` calls of the handler, so these calls conflict.
    """
    return lambda calls: str(len(calls)) if len(calls) <= 1 + writers else None


async def test_a_release_tries_a_message_again_after_another_program_wrote_its_document():
    world, calls = await spoilt_by(each_time(9))
    released = await world.keys.release("o1")

    assert (2, True) == (released.sent, released.handed_back)
    assert [1] * 11 + [2] == calls
    assert 2 == len(world.documents("paid"))
    first, *again = world.of(AttemptFailed)
    assert (1, None) == (first.attempt, first.delay_seconds), "which parked the key"
    assert [*range(1, 10)] == [failed.attempt for failed in again]
    assert all(failed.delay_seconds is not None for failed in again)


async def test_a_release_tries_each_message_again_after_a_conflict():
    def once_each(calls: list[int]) -> str | None:
        return "2" if calls.count(calls[-1]) == (2 if calls[-1] == 1 else 1) else None

    world, calls = await spoilt_by(once_each)

    assert 2 == (await world.keys.release("o1")).sent
    assert [1, 1, 1, 2, 2] == calls


async def test_a_release_ends_after_a_hundred_conflicts_of_one_message():
    world, calls = await spoilt_by(each_time(1000))
    released = await world.keys.release("o1")

    assert released.failure is not None
    assert ("PreconditionFailed", 0) == (released.failure.reason, released.sent)
    assert 1 + 101 == len(calls)
    assert 2 == len((await world.keys.show("o1")).held)


async def test_a_release_does_not_retry_a_permanent_error():
    consumer, calls = Consumer("c", attempts=1), list[str]()

    @consumer.on(OrderPaid, permanent=PreconditionFailed)
    async def refuse(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        calls.append(event.order_id)
        raise PreconditionFailed(expected="1", actual=str(len(calls)), document_id="d")

    world = await ran(consumer, message(OrderPaid(order_id="o1")))
    await world.keys.release("o1")

    assert 2 == len(calls)


async def test_a_release_stops_its_retries_after_an_operator_dropped_an_event():
    world, calls = await spoilt_by(each_time(1000))
    released = asyncio.create_task(world.keys.release("o1"))
    await asyncio.sleep(1)
    first, _ = (await world.keys.show("o1")).held
    await world.keys.drop("o1", first.event_id, reason="of no use")
    before = len(calls)
    with pytest.raises(ReleaseTakenOver):
        await released

    assert len(calls) - before <= 1, "the attempt that was under way"
