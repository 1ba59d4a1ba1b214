"""Test how shipping handles the messages of orders."""

from orders import OrderPlaced, connect, pay_order, place_order
from shipping import announce, shipping

from cosmos_outbox_testing import OutboxHarness, received_message


async def test_a_paid_order_is_shipped_once_if_answers_are_lost(outbox_harness: OutboxHarness) -> None:
    outbox = connect(outbox_harness.outbox)
    await place_order(outbox, "o1", 5)
    await pay_order(outbox, "o1")
    await outbox_harness.relay_all()
    outbox_harness.fail("commit", "lost_answer")
    outbox_harness.fail("settle", "lock_lost")
    await outbox_harness.consume_all(shipping)
    shipped = [one for one in outbox_harness.container.documents() if one["type"] == "shipment"]
    assert ["o1"] == [one["data"]["orderId"] for one in shipped]


def test_a_subscriber_with_the_service_bus_sdk_reads_the_test_kits_message() -> None:
    said: list[str] = []
    announce(received_message(OrderPlaced(total=5), key="o1"), said.append)
    assert ["OrderPlaced: o1 over 5"] == said
