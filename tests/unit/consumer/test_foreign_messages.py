"""
Messages of programs that use another library: ids of any form, and correlation ids in the message's own field.
"""

from __future__ import annotations

import pytest

from cosmos_outbox.correlation import correlated
from cosmos_outbox.partition_key import check_id
from tests.support.shop import OrderPaid, World, invoicing, message, ran


@pytest.mark.parametrize("message_id", ["orders/17", "a#b", "what?", "back\\slash", "x" * 2000])
async def test_a_message_is_parked_under_a_valid_document_id_whatever_its_message_id_is(
    message_id: str,
):
    world = await ran(
        invoicing(attempts=1),
        message(OrderPaid(order_id="o1", total=-1), message_id=message_id),
        message(OrderPaid(order_id="o1", total=2), message_id=f"{message_id}2"),
    )
    for document in world.parked.documents():
        check_id(document["id"])
    held = [event.event_id for event in (await world.keys.show("o1")).held]
    await world.keys.drop("o1", message_id, reason="no such order")
    await world.keys.release("o1")

    assert [message_id, f"{message_id}2"] == held
    assert [2] == [invoice["data"]["total"] for invoice in world.documents("invoice")]


async def test_events_that_a_handler_commits_have_the_correlation_id_of_its_message():
    world = World(invoicing())
    ours = {"correlation-id": "ours"}
    with correlated(correlation_id="of the program that started the consumer"):
        for fields in ({}, {"correlation_id": "c7"}, {"correlation_id": "c7", "properties": ours}):
            world.subscription.deliver(message(OrderPaid(order_id="o1"), **fields))
        await world.run()

    assert [None, "c7", "ours"] == [
        event["meta"].get("correlationId") for event in world.documents("domainEvent")
    ]
