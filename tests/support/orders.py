"""A small domain for tests of the test kit: orders that are placed and paid."""

from __future__ import annotations

from cosmos_outbox import DomainEvent, Entity, Outbox


class OrderPlaced(DomainEvent):
    total: int


class OrderPaid(DomainEvent):
    pass


class Order(Entity):
    def place(self, total: int) -> Order:
        self.record(OrderPlaced(total=total))
        return self

    def pay(self) -> None:
        self.record(OrderPaid())


async def place(outbox: Outbox, order_id: str, total: int = 5) -> None:
    async with outbox.unit_of_work() as uow:
        uow.repository(Order).create(Order(id=order_id)).place(total).pay()
        await uow.commit()
