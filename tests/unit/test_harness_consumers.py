"""
Tests of a harness that has a consumer and no outbox: a test delivers messages, checks each delivery's outcome, and acts as an operator.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from cosmos_outbox import Outbox, PartitionKey, UnitOfWork, key_text
from cosmos_outbox.adapters.memory import MemoryContainer, MemorySubscription
from cosmos_outbox.consumer import Consumer, Message, TryLater
from cosmos_outbox.errors import MessageRejected
from cosmos_outbox.ports import Complete, DeadLetter, Retry
from cosmos_outbox_testing import Call, MessagesFailed, OutboxHarness, Outcome, Stuck, Subscribed, running
from cosmos_outbox_testing.clock import NOON, Clock
from tests.support.orders import place
from tests.support.shop import Invoice, InvoiceIssued, OrderPaid, invoicing


def totals(container: MemoryContainer) -> list[int]:
    return [one["data"]["total"] for one in container.documents() if one["type"] == "invoice"]


async def test_each_delivery_in_the_harness_has_an_outcome():
    harness, consumer = OutboxHarness(), invoicing()
    once = harness.deliver(consumer, OrderPaid(order_id="o1", total=5), key="o1")
    harness.deliver(consumer, once, delivery_count=3)
    harness.deliver(consumer, InvoiceIssued(total=1), key="o1")
    handled, repeated, ignored = await harness.consume_all(consumer)

    assert ["handled", "repeated", "ignored"] == [handled.outcome, repeated.outcome, ignored.outcome]
    assert Complete() == handled.settlement
    assert (once, 3) == (handled.message, repeated.message.delivery_count)
    assert [5] == totals(harness.container)
    assert ["InvoiceIssued"] == [message.subject for message in await harness.relay_all()]


@pytest.mark.parametrize("key", [("t1", "ada"), 5, True, "o1"])
async def test_harness_deliver_takes_any_partition_key(key: PartitionKey):
    harness, consumer = OutboxHarness(), invoicing(partition_key=lambda message: "o1")
    for total in (1, -1):
        harness.deliver(consumer, OrderPaid(order_id="o1", total=total), key=key)
    handled, failed = await harness.consume_all(consumer, allow_failures=True)

    assert ("handled", "parked") == (handled.outcome, failed.outcome)
    assert key_text(key) == handled.message.session_id
    assert (await harness.release(key, consumer, total=2)).handed_back


async def test_a_failed_message_holds_its_key_in_the_harness_until_a_release():
    harness, consumer = OutboxHarness(), invoicing()
    for key, total in (("o1", -1), ("o1", 2)):
        harness.deliver(consumer, OrderPaid(order_id=key, total=total), key=key)
    failed, held = await harness.consume_all(consumer, allow_failures=True)
    harness.deliver(consumer, OrderPaid(order_id="o1", total=3), key="o1")
    harness.deliver(consumer, OrderPaid(order_id="o2", total=4), key="o2")
    also_held, other = await harness.consume_all(consumer, allow_failures=True)  # another process

    deliveries = (failed, held, also_held, other)
    assert ["parked", "held", "held", "handled"] == [one.outcome for one in deliveries]
    assert 5 == len(failed.errors)
    waiting = await harness.parked_messages(consumer)
    assert {"o1": [one.message.message_id for one in deliveries[:3]]} == {
        key: [message.message_id for message in messages] for key, messages in waiting.items()
    }
    assert {} == await harness.parked_messages()  # the worker itself parked nothing
    assert not (await harness.release("o1", consumer)).handed_back
    assert (await harness.release("o1", consumer, total=1)).handed_back
    assert {} == await harness.parked_messages(consumer)
    assert [4, 1, 2, 3] == totals(harness.container)


async def test_consume_all_raises_the_error_of_a_failed_handler():
    """A test that expects failures can pass `allow_failures=True`."""
    harness, consumer = OutboxHarness(), invoicing()
    for total in (-1, 2):
        harness.deliver(consumer, OrderPaid(order_id="o1", total=total), key="o1")
    with pytest.raises(MessagesFailed, match=r"OrderPaid .* ended parked: ValueError: a total below") as told:
        await harness.consume_all(consumer)
    assert "ended held." in str(told.value)
    assert "tests/support/shop.py" in "".join(traceback.format_exception(told.value))


async def test_relay_all_raises_the_reason_of_a_refused_message():
    """`relay_all` raises nothing if the test itself asked for the refusal with `harness.fail`."""
    harness = OutboxHarness()
    refusing = True

    async def refuse(call: Call, proceed: Callable[[], Awaitable[Any]]) -> Any:
        if refusing and call.port == "publisher":
            raise MessageRejected
        return await proceed()

    harness.around.append(refuse)
    await place(harness.outbox, "o1")
    with pytest.raises(
        MessagesFailed, match=r"ended parked: MessageRejected: .*\n1 more of partition key 'o1'"
    ) as told:
        await harness.relay_all()
    assert isinstance(told.value.__cause__, MessageRejected)
    assert [] == await harness.relay_all()  # each refusal is raised only once

    await place(harness.outbox, "o3")
    harness.fail("send", "lost_answer")  # no refusal
    with pytest.raises(MessagesFailed, match="ended parked: MessageRejected"):
        await harness.relay_all()

    refusing = False
    await place(harness.outbox, "o2")
    harness.fail("send", "too_large", key="o2")
    assert [] == await harness.relay_all()
    async with harness.outbox.unit_of_work() as uow:
        uow.record(OrderPaid(order_id="o2", total=1), about=uow.save({"id": "d", "partitionKey": "o2"}))
        await uow.commit()
    assert [] == await harness.relay_all()  # the event is held behind the refused event of its key


@pytest.mark.parametrize("named", [True, False], ids=["of the harness", "of the consumer"])
async def test_faults_also_strike_in_a_container_of_the_consumer(*, named: bool):
    own = MemoryContainer(key_paths="/orderId")
    harness = OutboxHarness(containers={"invoicing": own} if named else {})
    consumer = invoicing(outbox=None if named else Outbox(own))
    harness.deliver(consumer, OrderPaid(order_id="o1"), key="o1")
    harness.fail("commit", "lost_answer")
    await harness.consume_all(consumer)
    harness.faults.require_struck()
    assert ([1], []) == (totals(own), totals(harness.container))


async def test_a_message_without_an_id_is_dead_lettered_in_the_harness():
    harness, consumer = OutboxHarness(), invoicing()
    harness.deliver(consumer, Message(message_id="", session_id="o1"))
    (refused,) = await harness.consume_all(consumer, allow_failures=True)

    assert Outcome.DEAD_LETTERED == refused.outcome
    assert isinstance(refused.settlement, DeadLetter)


async def test_a_consumer_handles_or_parks_a_cloud_event_without_a_message_id():
    harness, consumer = OutboxHarness(), invoicing()
    for total in (5, -1):
        data = OrderPaid(order_id="o1", total=total).payload()
        event = {"specversion": "1.0", "id": str(total), "source": "/s", "type": "OrderPaid", "data": data}
        harness.deliver(consumer, Message(message_id="", session_id="o1", body=json.dumps(event).encode()))
    with pytest.raises(MessagesFailed, match="ended parked: ValueError: a total below"):
        await harness.consume_all(consumer)
    assert [5] == totals(harness.container)
    assert (
        await harness.release("o1", consumer, total=1)
    ).handed_back  # `total` is a field of the event, and not of its CloudEvents envelope
    assert [5, 1] == totals(harness.container)


async def test_a_message_waits_in_the_harness_while_the_store_is_unavailable():
    harness, consumer = OutboxHarness(), invoicing()
    harness.deliver(consumer, OrderPaid(order_id="o1"), key="o1")
    harness.fail("commit", "unavailable", times=None)
    with pytest.raises(Stuck):
        await harness.consume_all(consumer)
    harness.faults.clear()

    assert ["handled"] == [one.outcome for one in await harness.consume_all(consumer)]
    assert {"waiting"} == {one.outcome for one in harness.subscriptions[consumer.name].delivered[:-1]}


@pytest.mark.looptime(False)
async def test_the_stuck_error_names_a_handler_that_blocks_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
):
    async def block(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        time.sleep(1.0)  # noqa: ASYNC251 - the mistake

    monkeypatch.setattr(running, "_PATIENCE_SECONDS", 0.4)
    harness, consumer = OutboxHarness(), Consumer("blocking")
    consumer.on(OrderPaid)(block)
    harness.deliver(consumer, OrderPaid(order_id="o1"), key="o1")
    with pytest.raises(
        Stuck, match=r"test_harness_consumers\.py:\d+ in block blocks the event loop; await there"
    ):
        await harness.consume_all(consumer)


@pytest.mark.parametrize("sessions", [True, False])
async def test_a_message_to_be_tried_later_waits_for_the_clock_of_the_harness(
    sessions: bool,
):
    """The test also checks that the message is parked after `longest_wait`."""
    # This clock does not move by itself. With the system's clock, a busy machine could reach the time of the next attempt.
    harness, away = OutboxHarness(clock=Clock(NOON)), [True]
    consumer = Consumer("charges", waits_for=TimeoutError, longest_wait=timedelta(hours=1), attempts=1)
    harness.subscriptions[consumer.name] = Subscribed(MemorySubscription(sessions=sessions))

    @consumer.on(OrderPaid)
    async def charge(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if event.total < 0:
            raise TryLater("the bank is closed", after=timedelta(minutes=20))
        if away:
            raise TimeoutError
        uow.repository(Invoice).create(Invoice.of(event))

    for key, total in (("o1", -1), ("o2", 2), ("o3", 3)):
        harness.deliver(consumer, OrderPaid(order_id=key, total=total), key=key)
    waiting = await harness.consume_all(consumer)
    assert [] == await harness.consume_all(consumer), "nothing is due"
    away.clear()
    harness.clock.advance(60)
    handled = await harness.consume_all(consumer)
    for _ in range(3):
        harness.clock.advance(timedelta(minutes=20))
        waiting += await harness.consume_all(consumer, allow_failures=True)

    assert ["waiting"] * 5 + ["parked"] == [one.outcome for one in waiting]
    assert ["TryLater", "TimeoutError", "TimeoutError"] == [
        type(one.errors[0]).__name__ for one in waiting[:3]
    ]
    assert Retry(after_seconds=20 * 60, counted=False) == waiting[0].settlement
    assert ["handled", "handled"] == [one.outcome for one in handled]
    assert ["o1"] == list(await harness.parked_messages(consumer))


async def test_a_handler_that_advances_the_clock_is_called_once_for_each_waiting_key():
    harness, consumer, called = OutboxHarness(), Consumer("charges"), list[str | None]()

    @consumer.on(OrderPaid)
    async def charge(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        called.append(message.session_id)
        harness.clock.advance(3)
        raise TryLater("the bank is away", after=timedelta(seconds=2))

    keys = [f"o{number}" for number in range(50)]
    for key in keys:
        harness.deliver(consumer, OrderPaid(order_id=key), key=key)
    for _ in range(3):
        called.clear()
        assert len(keys) == len(await harness.consume_all(consumer))
        harness.clock.advance(60)

    assert sorted(keys) == sorted(map(str, called))


async def test_a_subscription_without_sessions_takes_messages_without_a_session():
    harness, consumer = OutboxHarness(), invoicing(partition_key=lambda message: "o1")
    harness.subscriptions[consumer.name] = Subscribed(MemorySubscription(sessions=False))
    paid = Message(
        message_id="m1", subject="OrderPaid", body=OrderPaid(order_id="o1").model_dump_json().encode()
    )
    harness.deliver(consumer, paid)
    harness.deliver(consumer, paid)

    assert {"handled", "repeated"} == {one.outcome for one in await harness.consume_all(consumer)}


async def test_several_tests_can_share_one_consumer():
    consumer = invoicing()
    for total in (1, 2):
        harness = OutboxHarness()
        harness.deliver(consumer, OrderPaid(order_id="o1", total=total), key="o1")
        await harness.consume_all(consumer)
        assert [total] == totals(harness.container)
