"""Test orders and shipping with a process that dies before or after each call to Cosmos DB or Service Bus."""

from orders import OrderPaid, OrderPlaced, connect, pay_order, place_order
from shipping import shipping

from cosmos_outbox_testing import OutboxHarness, assert_messages, crash_points


async def an_order(harness: OutboxHarness) -> None:
    await place_order(harness.outbox, "o1", 5)


@crash_points(given=an_order)
async def test_a_paid_order_is_shipped_once_if_a_process_dies(harness: OutboxHarness) -> None:
    await pay_order(connect(harness.outbox), "o1")
    await harness.relay_all()
    await harness.consume_all(shipping)
    assert_messages(harness.broker.accepted, OrderPlaced(total=5), OrderPaid(order_id="o1", total=5))
    types = [document["type"] for document in harness.container.documents()]
    assert (1, 1) == (types.count("receipt"), types.count("shipment"))
