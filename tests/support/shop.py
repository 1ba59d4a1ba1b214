"""A consumer of orders that writes invoices, for the tests of consumers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cosmos_outbox import DomainEvent, Entity, Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer, MemoryParked, MemorySubscription
from cosmos_outbox.consumer import Consumer, Handling, Message
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.records import Record
from cosmos_outbox.retries import Backoff
from cosmos_outbox.sessions import SessionOptions, SessionProcessor

SOURCE = "orders/invoicing"


class OrderPaid(DomainEvent):
    order_id: str
    total: int = 1


class InvoiceIssued(DomainEvent):
    total: int


class Invoice(Entity):
    total: int
    order_id: str

    @property
    def partition_key(self) -> str:
        return self.order_id

    @classmethod
    def of(cls, event: OrderPaid) -> Invoice:
        invoice = cls(total=event.total, order_id=event.order_id)
        invoice.record(InvoiceIssued(total=event.total))
        return invoice


def invoicing(**options: Any) -> Consumer:
    consumer = Consumer("invoicing", **options)

    @consumer.on(OrderPaid)
    async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if event.total < 0:
            raise ValueError("a total below zero")
        uow.repository(Invoice).create(Invoice.of(event))

    return consumer


def message(event: DomainEvent, *, session: str = "o1", **fields: Any) -> Message:
    said = {"message_id": event.id, "session_id": session, "subject": event.action}
    return Message(**{**said, "body": json.dumps(event.payload()).encode(), **fields})


@dataclass
class World:
    """A consumer in memory with its container, its subscription and its parked store. `records` has all that it reported."""

    consumer: Consumer
    container: MemoryContainer = field(default_factory=lambda: MemoryContainer(ranges=1))
    subscription: MemorySubscription = field(default_factory=MemorySubscription)
    parked: MemoryParked = field(default_factory=MemoryParked)
    records: list[Record] = field(default_factory=list)
    sessions_at_once: int = 32

    def __post_init__(self) -> None:
        self.consumer.bind(Outbox(self.container))
        self.handling: Handling = self.consumer.handling(
            source=SOURCE,
            parking=Parking(self.parked, references=False),
            notify=self.records.append,
        )
        self.keys = ParkedKeys(self.parked, self.handling.release, scope=self.handling.scope)

    async def run(self, until: Callable[[], bool] | None = None, *, seconds: float = 600) -> None:
        """Run the consumer until no message waits, or until the condition `until` holds. Fail after `seconds` of virtual time."""
        processor = SessionProcessor(
            self.subscription,
            self.handling,
            SessionOptions(max_concurrent_sessions=self.sessions_at_once, backoff=Backoff(maximum_seconds=1)),
            hooks=[self.records.append],
        )
        running = asyncio.create_task(processor.run())
        try:
            async with asyncio.timeout(seconds):
                while not (until() if until else not self.subscription.waiting) and not running.done():  # noqa: ASYNC110 - any fact
                    await asyncio.sleep(0.1)
        finally:
            processor.stop()
            await running

    def documents(self, kind: str) -> list[dict[str, Any]]:
        return [document for document in self.container.documents() if document.get("type") == kind]

    def of(self, kind: type[Record], outcome: str = "") -> list[Any]:
        found = [record for record in self.records if isinstance(record, kind)]
        return [record for record in found if not outcome or getattr(record, "outcome", "") == outcome]


async def ran(consumer: Consumer, *messages: Message, **parts: Any) -> World:
    """Deliver messages to a consumer in memory, run it until no message waits, and return its world."""
    world = World(consumer, **parts)
    for one in messages:
        world.subscription.deliver(one)
    await world.run()
    return world
