"""
A consumer alone in the harness: what it is given without an outbox, what became of each delivery, and the operator's side.
"""

from __future__ import annotations

import pytest

from cosmos_outbox import PartitionKey, key_text
from cosmos_outbox.adapters.memory import MemoryContainer, MemorySubscription
from cosmos_outbox.consumer import Message
from cosmos_outbox.ports import Complete, DeadLetter
from cosmos_outbox_testing import OutboxHarness, Outcome, Stuck, Subscribed
from tests.support.shop import InvoiceIssued, OrderPaid, invoicing


def totals(container: MemoryContainer) -> list[int]:
    return [one["data"]["total"] for one in container.documents() if one["type"] == "invoice"]


async def test_each_delivery_tells_its_outcome_and_what_it_left():
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
async def test_the_key_of_an_event_is_any_partition_key(key: PartitionKey):
    harness, consumer = OutboxHarness(), invoicing(partition_key=lambda message: "o1")
    for total in (1, -1):
        harness.deliver(consumer, OrderPaid(order_id="o1", total=total), key=key)
    handled, failed = await harness.consume_all(consumer)

    assert ("handled", "parked") == (handled.outcome, failed.outcome)
    assert key_text(key) == handled.message.session_id
    assert (await harness.release(key, consumer, total=2)).handed_back


async def test_a_failure_parks_what_follows_is_held_and_a_release_frees_it():
    harness, consumer = OutboxHarness(), invoicing()
    for key, total in (("o1", -1), ("o1", 2)):
        harness.deliver(consumer, OrderPaid(order_id=key, total=total), key=key)
    failed, held = await harness.consume_all(consumer)
    harness.deliver(consumer, OrderPaid(order_id="o1", total=3), key="o1")
    harness.deliver(consumer, OrderPaid(order_id="o2", total=4), key="o2")
    also_held, other = await harness.consume_all(consumer)  # another process

    deliveries = (failed, held, also_held, other)
    assert ["parked", "held", "held", "handled"] == [one.outcome for one in deliveries]
    assert 5 == len(failed.errors)
    waiting = await harness.parked_messages(consumer)
    assert {"o1": [one.message.message_id for one in deliveries[:3]]} == {
        key: [message.message_id for message in messages] for key, messages in waiting.items()
    }
    assert {} == await harness.parked_messages()  # of the worker
    assert not (await harness.release("o1", consumer)).handed_back
    assert (await harness.release("o1", consumer, total=1)).handed_back
    assert {} == await harness.parked_messages(consumer)
    assert [4, 1, 2, 3] == totals(harness.container)


async def test_a_message_that_cannot_be_kept_in_order_is_dead_lettered():
    harness, consumer = OutboxHarness(), invoicing()
    harness.deliver(consumer, Message(message_id="", session_id="o1"))
    (refused,) = await harness.consume_all(consumer)

    assert Outcome.DEAD_LETTERED == refused.outcome
    assert isinstance(refused.settlement, DeadLetter)


async def test_a_message_waits_for_a_store_that_is_away_and_takes_effect_once_it_is_back():
    harness, consumer = OutboxHarness(), invoicing()
    harness.deliver(consumer, OrderPaid(order_id="o1"), key="o1")
    harness.fail("commit", "unavailable", times=None)
    with pytest.raises(Stuck):
        await harness.consume_all(consumer)
    harness.faults.clear()

    assert ["handled"] == [one.outcome for one in await harness.consume_all(consumer)]
    assert {"waiting"} == {one.outcome for one in harness.subscriptions[consumer.name].delivered[:-1]}


async def test_a_subscription_without_sessions_takes_messages_without_one():
    harness, consumer = OutboxHarness(), invoicing(partition_key=lambda message: "o1")
    harness.subscriptions[consumer.name] = Subscribed(MemorySubscription(sessions=False))
    paid = Message(
        message_id="m1", subject="OrderPaid", body=OrderPaid(order_id="o1").model_dump_json().encode()
    )
    harness.deliver(consumer, paid)
    harness.deliver(consumer, paid)

    assert {"handled", "repeated"} == {one.outcome for one in await harness.consume_all(consumer)}


async def test_messages_of_the_topic_and_of_the_test_reach_a_consumer_that_several_tests_share():
    consumer = invoicing()
    for total in (1, 2):
        harness = OutboxHarness()
        harness.deliver(consumer, OrderPaid(order_id="o1", total=total), key="o1")
        await harness.consume_all(consumer)
        assert [total] == totals(harness.container)
