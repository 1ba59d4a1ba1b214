"""Orders: the entities and events, the use cases, and a handler that writes a receipt in the commit that pays an order."""

from __future__ import annotations

from cosmos_outbox import DomainEvent, Entity, Outbox, UnitOfWork


class OrderPlaced(DomainEvent):
    total: int


class OrderPaid(DomainEvent):
    order_id: str
    total: int


class Order(Entity):
    total: int = 0
    paid: bool = False

    def place(self, total: int) -> None:
        self.total = total
        self.record(OrderPlaced(total=total))

    def pay(self) -> None:
        if not self.paid:
            self.paid = True
            self.record(OrderPaid(order_id=self.id, total=self.total))


class Receipt(Entity):
    key_fields = ("order_id",)

    order_id: str
    total: int


def write_receipt(event: OrderPaid, uow: UnitOfWork) -> None:
    uow.repository(Receipt).create(
        Receipt(id=f"receipt-{event.order_id}", order_id=event.order_id, total=event.total)
    )


def connect(outbox: Outbox) -> Outbox:
    """Register the event handlers of this application at an outbox, and return the outbox."""
    outbox.on(OrderPaid, write_receipt)
    return outbox


async def place_order(outbox: Outbox, order_id: str, total: int) -> None:
    async with outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id=order_id)).place(total)
        await uow.commit()


async def pay_order(outbox: Outbox, order_id: str) -> None:
    async def pay(uow: UnitOfWork) -> None:
        order = await uow.repository(Order).read(order_id)
        order.pay()

    await outbox.run(pay)
