"""Test which events orders record, what is committed, and which messages other services receive."""

from datetime import UTC, datetime

import pytest
from orders import Order, OrderPaid, OrderPlaced, Receipt, connect, pay_order, place_order

from cosmos_outbox import Outbox
from cosmos_outbox.errors import RequestTooLarge
from cosmos_outbox_testing import Clock, OutboxHarness, assert_messages, assert_recorded


@pytest.fixture
def outbox(outbox: Outbox) -> Outbox:
    return connect(outbox)


def test_an_order_is_paid_once() -> None:
    order = Order(id="o1")
    order.place(5)
    order.pay()
    order.pay()
    assert_recorded(order, OrderPlaced(total=5), OrderPaid(order_id="o1", total=5))


async def test_the_messages_of_an_order_arrive_in_order(
    outbox: Outbox, outbox_harness: OutboxHarness
) -> None:
    await place_order(outbox, "o1", 5)
    await pay_order(outbox, "o1")
    assert_messages(await outbox_harness.relay_all(), OrderPlaced(total=5), OrderPaid(order_id="o1", total=5))
    assert_messages(await outbox_harness.relay_all())


async def test_a_commit_that_conflicts_is_tried_again_with_a_new_read(
    outbox: Outbox, outbox_harness: OutboxHarness
) -> None:
    await place_order(outbox, "o1", 5)
    outbox_harness.fail("commit", "conflict")
    await pay_order(outbox, "o1")
    assert_messages(await outbox_harness.relay_all(), OrderPlaced(total=5), OrderPaid(order_id="o1", total=5))


@pytest.mark.parametrize("operation", ["commit", "send", "lease"])
async def test_a_call_whose_answer_is_lost_is_not_carried_out_twice(
    outbox: Outbox, outbox_harness: OutboxHarness, operation: str
) -> None:
    outbox_harness.fail(operation, "lost_answer")
    await place_order(outbox, "o1", 5)
    assert_messages(await outbox_harness.relay_all(), OrderPlaced(total=5))


async def test_a_commit_that_is_refused_changes_nothing(
    outbox: Outbox, outbox_harness: OutboxHarness
) -> None:
    await place_order(outbox, "o1", 5)
    outbox_harness.fail("commit", "too_large")
    with pytest.raises(RequestTooLarge):
        await pay_order(outbox, "o1")
    async with outbox.unit_of_work() as uow:
        assert not (await uow.repository(Order).read("o1")).paid
        assert () == (await uow.repository(Receipt).page_of_key("o1")).entities
    assert_messages(await outbox_harness.relay_all(), OrderPlaced(total=5))


async def test_a_message_that_is_too_large_parks_only_its_own_order(
    outbox: Outbox, outbox_harness: OutboxHarness
) -> None:
    for order_id in ("o1", "o2"):
        await place_order(outbox, order_id, 5)
    outbox_harness.fail("send", "too_large", key="o2")
    assert ["o1"] == [message.session_id for message in await outbox_harness.relay_all(allow_failures=True)]
    assert ["o2"] == list(await outbox_harness.parked_messages())
    await outbox_harness.release("o2")
    assert ["o1", "o2"] == [message.session_id for message in outbox_harness.broker.accepted]


async def test_events_have_the_time_of_the_test_clock_and_expire(
    outbox_clock: Clock, outbox: Outbox, outbox_harness: OutboxHarness
) -> None:
    await place_order(outbox, "o1", 5)
    assert datetime(2026, 1, 1, 12, tzinfo=UTC) == outbox_clock.now()
    assert b'"createdAt":"2026-01-01T12:00:00Z"' in (await outbox_harness.relay_all())[0].body
    outbox_clock.advance(11 * 24 * 3600)
    assert ["order"] == [document["type"] for document in outbox_harness.container.documents()]
