"""
Orders, their invoices, and the consumer that issues these.
"""

from __future__ import annotations

from cosmos_outbox import DomainEvent, Entity, Outbox, UnitOfWork
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.messages import Message


class OrderPlaced(DomainEvent):
    """
    A customer ordered for so much.
    """

    total: int


class OrderPaid(DomainEvent):
    """
    The order is paid.
    """

    total: int


class Order(Entity):
    """
    What a customer ordered.
    """

    total: int
    paid: bool = False

    def pay(self) -> None:
        """
        Pay, unless it is paid.
        """
        if not self.paid:
            self.paid = True
            self.record(OrderPaid(total=self.total))


class InvoiceIssued(DomainEvent):
    """
    An invoice was issued.
    """

    total: int


class Invoice(Entity):
    """
    The invoice of an order.
    """

    order_id: str
    total: int

    @property
    def partition_key(self) -> str:
        return self.order_id


async def place(outbox: Outbox, order_id: str, total: int) -> None:
    """
    Place an order.
    """
    async with outbox.unit_of_work() as uow:
        order = uow.repository(Order).create(Order(id=order_id, total=total))
        order.record(OrderPlaced(total=total))
        await uow.commit()


async def pay(outbox: Outbox, order_id: str) -> None:
    """
    Pay an order; to pay again changes nothing.
    """
    async with outbox.unit_of_work() as uow:
        (await uow.repository(Order).read(order_id)).pay()
        await uow.commit()


def invoice_of(event: OrderPaid, message: Message) -> Invoice:
    """
    Return the invoice of an order that was paid.
    """
    invoice = Invoice(order_id=str(message.session_id), total=event.total)
    invoice.record(InvoiceIssued(total=event.total))
    return invoice


def invoicing() -> Consumer:
    """
    Return the consumer that issues an invoice for each order that was paid.
    """
    consumer = Consumer("invoicing")

    @consumer.on(OrderPaid)
    async def issue(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if event.total < 0:
            raise ValueError("An invoice has no negative total.")
        uow.repository(Invoice).create(invoice_of(event, message))

    return consumer
