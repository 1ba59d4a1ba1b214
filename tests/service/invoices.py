"""A consumer like one of an application, which tests run as `tests.service.invoices:consumer`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from contextlib import suppress
from datetime import timedelta

from cosmos_outbox import DomainEvent, Entity, Outbox, UnitOfWork
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.retries import Backoff


class OrderPaid(DomainEvent):
    order_id: str
    total: int


class Invoice(Entity):
    order_id: str
    total: int

    @property
    def partition_key(self) -> str:
        return self.order_id


consumer = Consumer(
    "invoicing",
    attempts=2,
    backoff=Backoff(initial_seconds=0.01, maximum_seconds=0.01),
    handler_timeout=timedelta(minutes=5),
)


@consumer.on(OrderPaid)
async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
    if event.total < 0:
        raise ValueError(f"an order of {event.total} cannot be invoiced")
    uow.repository(Invoice).create(Invoice(order_id=event.order_id, total=event.total))
    if message.message_id == os.environ.get("STUCK_AT"):
        logging.getLogger("invoices").warning(
            "stuck on purpose; the garbage collector runs after %d new objects",
            gc.get_threshold()[0],
        )
        while os.environ.get("SWALLOWS"):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
        await asyncio.to_thread(time.sleep, 600)


def made(outbox: Outbox) -> Consumer:
    assert isinstance(outbox, Outbox)
    return consumer


def wrongly_made(outbox: Outbox) -> Outbox:
    return outbox


def session_of(message: Message) -> str | None:
    return message.session_id


async def awaited(outbox: Outbox) -> Consumer:
    return consumer


idle = Consumer("idle")
dropping = Consumer("dropping", on_failure="dead_letter")
dropping.on(OrderPaid)(invoice)
number = 3
