"""
The consumer of a chaos run: it books each deposit in a ledger, and records an event for each message that it handles.
"""

from __future__ import annotations

from cosmos_outbox import DomainEvent, Entity, NotFound, UnitOfWork
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox_testing.verify.load import Deposited


class Booked(DomainEvent):
    amount: int


class Ledger(Entity):
    """The sum of the deposits into one account."""

    booked: int = 0

    def book(self, amount: int) -> None:
        self.booked += amount
        self.record(Booked(amount=amount))


consumer = Consumer("ledger")


@consumer.on(Deposited)
async def book(event: Deposited, message: Message, uow: UnitOfWork) -> None:
    ledgers, account = uow.repository(Ledger), message.session_id or ""
    try:
        ledger = await ledgers.read(account)
    except NotFound:
        ledger = ledgers.create(Ledger(id=account))
    ledger.book(event.amount)
