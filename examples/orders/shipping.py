"""
Shipping: another service, which creates a shipment for each paid order. `announce` shows a subscriber that uses only azure-servicebus.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from orders import OrderPaid

from cosmos_outbox import Entity, UnitOfWork
from cosmos_outbox.consumer import Consumer, Message

shipping = Consumer("shipping")


class Shipment(Entity):
    key_fields = ("order_id",)

    order_id: str


@shipping.on(OrderPaid)
async def ship(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
    uow.repository(Shipment).create(Shipment(order_id=event.order_id))


def announce(message: Any, say: Callable[[str], None]) -> None:
    """Print the order of a message that azure-servicebus delivered."""
    order = message.application_properties[b"entity-id"].decode()
    total = json.loads(b"".join(message.body))["total"]
    say(f"{message.subject}: {order} over {total}")
