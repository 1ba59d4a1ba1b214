"""The harness for tests of applications: an outbox, its worker, a topic and consumers, all in memory."""

from __future__ import annotations

import asyncio

import pytest

from cosmos_outbox import Entity, UnitOfWork
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.ports import Complete
from cosmos_outbox_testing import Call, OutboxHarness, Stuck
from tests.support.orders import OrderPlaced, place


@pytest.mark.looptime(False)  # as in a project whose tests have no virtual time
async def test_relay_all_returns_the_messages_that_it_relayed():
    harness = OutboxHarness()
    assert [] == await harness.relay_all()
    await place(harness.outbox, "o1")
    first = await harness.relay_all()
    await place(harness.outbox, "o2")
    second = await harness.relay_all()

    assert [("o1", "OrderPlaced"), ("o1", "OrderPaid")] == [(m.session_id, m.subject) for m in first]
    assert ["o2", "o2"] == [message.session_id for message in second]
    assert [] == await harness.relay_all()


async def test_a_refused_event_parks_its_key_in_the_harness_until_a_release():
    harness = OutboxHarness()
    harness.broker.rejects = lambda message: b'"total":13}' in message.body
    await place(harness.outbox, "bad", total=13)
    await place(harness.outbox, "good")

    assert {"good"} == {message.session_id for message in await harness.relay_all(allow_failures=True)}
    waiting = await harness.parked_messages()
    assert ["OrderPlaced", "OrderPaid"] == [message.subject for message in waiting["bad"]]

    await harness.release("bad", total=14)
    assert {} == await harness.parked_messages()
    released = [message for message in harness.broker.accepted if message.session_id == "bad"]
    assert ["OrderPlaced", "OrderPaid"] == [message.subject for message in released]
    assert b'"total":14}' in released[0].body


async def test_relay_all_raises_stuck_while_the_topic_is_down():
    harness = OutboxHarness()
    await place(harness.outbox, "o1")
    harness.broker.down = True
    with pytest.raises(Stuck):
        await harness.relay_all()
    harness.broker.down = False
    assert 2 == len(await harness.relay_all())


async def test_a_restarted_harness_continues_from_the_stored_state():
    killed = OutboxHarness()

    async def dies(call: Call, proceed):
        answer = await proceed()
        if call.method == "publish":
            raise RuntimeError("killed after the send")
        return answer

    killed.around.append(dies)
    await place(killed.outbox, "o1")
    with pytest.raises(Stuck):
        await killed.relay_all()
    again = killed.restarted()
    assert [] == await again.relay_all()
    assert 2 == len(again.broker.accepted) < len(again.broker.arrivals)


class Invoice(Entity):
    order_id: str
    total: int

    @property
    def partition_key(self) -> str:
        return self.order_id


def invoicing() -> Consumer:
    consumer = Consumer("invoicing")

    @consumer.on(OrderPlaced)
    async def invoice(event: OrderPlaced, message: Message, uow: UnitOfWork) -> None:
        if event.total < 0:
            raise ValueError("negative")
        uow.repository(Invoice).create(Invoice(order_id=str(message.session_id), total=event.total))

    return consumer


async def test_a_consumer_in_the_harness_handles_each_message_once():
    """The test also checks that a message whose handler always fails is parked, without pauses between the attempts."""
    harness, consumer = OutboxHarness(), invoicing()
    await place(harness.outbox, "o1")
    await place(harness.outbox, "o2", total=-1)
    await harness.relay_all()
    began = asyncio.get_running_loop().time()
    assert {Complete()} == {
        one.settlement for one in await harness.consume_all(consumer, allow_failures=True)
    }
    assert asyncio.get_running_loop().time() - began < 0.1  # the harness skips the pauses between attempts
    invoices = [one["data"]["orderId"] for one in harness.container.documents() if one["type"] == "invoice"]
    assert ["o1"] == invoices
    assert 2 == sum(document["type"] == "parkedEvent" for document in harness.parked.documents())
    assert [] == await harness.consume_all(consumer)


async def test_a_consumer_that_was_killed_before_a_settlement_continues_after_a_restart():
    killed, consumer = OutboxHarness(), invoicing()
    await place(killed.outbox, "o1")
    await killed.relay_all()

    async def dies(call: Call, proceed):
        if (call.port, call.method) == ("subscription", "settle"):
            await asyncio.Event().wait()
        return await proceed()

    killed.around.append(dies)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await killed.consume_all(consumer)
    await killed.subscriptions["invoicing"].subscription.accept(1)  # leaves a locked session, as a crash does
    began = asyncio.get_running_loop().time()
    settled = await killed.restarted().consume_all(consumer)
    assert asyncio.get_running_loop().time() - began < 1
    assert ["OrderPlaced", "OrderPaid"] == [one.message.subject for one in settled]
