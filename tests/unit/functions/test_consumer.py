"""
A consumer in Azure Functions: one effect for each message, order kept through failures, and what is returned to the Functions host.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cosmos_outbox import Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer, MemoryParked
from cosmos_outbox.consumer import Consumer, Handling, Message
from cosmos_outbox.errors import MessageError, StoreUnavailable
from cosmos_outbox.parking import ParkedKeys, Parking
from cosmos_outbox.records import MessageHandled, Record
from tests.support.functions_host import NOW, received
from tests.support.shop import SOURCE, Invoice, OrderPaid, message
from triggers import consume, message_from


class Shop:
    """The containers of a consumer. `process` starts the consumer in a simulated new process."""

    def __init__(self, **options: Any) -> None:
        self.container, self.parked = MemoryContainer(), MemoryParked()
        self.options, self.records = options, list[Record]()

    def process(self) -> Handling:
        consumer = Consumer("invoicing", Outbox(self.container), **self.options)

        @consumer.on(OrderPaid)
        async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
            if event.total < 0:
                raise ValueError("a total below zero")
            uow.repository(Invoice).create(Invoice.of(event))

        parking = Parking(self.parked, references=False)
        return consumer.handling(source=SOURCE, parking=parking, notify=self.records.append)

    @property
    def keys(self) -> ParkedKeys:
        handling = self.process()
        return ParkedKeys(self.parked, handling.release, scope=handling.scope)

    @property
    def invoiced(self) -> list[int]:
        invoices = [document for document in self.container.documents() if document.get("type") == "invoice"]
        return [invoice["data"]["total"] for invoice in invoices]

    def of(self, kind: type[Record], outcome: str) -> int:
        return sum(
            isinstance(record, kind) and getattr(record, "outcome", "") == outcome for record in self.records
        )


def paid(total: int, **fields: Any) -> Message:
    return message(OrderPaid(order_id=fields.get("session", "o1"), total=total), **fields)


@pytest.mark.parametrize("kind", ["bytes", "string", "json"])
def test_a_message_from_the_functions_host_is_converted(kind: str):
    sent = Message(
        message_id="m1",
        session_id="o1",
        subject="OrderPaid",
        body='{"name":"Ä"}'.encode(),
        correlation_id="c1",
        properties={"entity-version": 7, "entity-id": "o1"},
        sequence_number=2**40,
        delivery_count=2,
        enqueued_at=NOW.replace(microsecond=123456),
    )

    assert sent == message_from(received(sent, deliveries=3, kind=kind))


async def test_a_message_takes_effect_once_although_several_processes_receive_it():
    shop, sent = Shop(), paid(5)
    for deliveries in (1, 2, 3):
        await consume(received(sent, deliveries=deliveries), shop.process())

    assert [5] == shop.invoiced
    assert (1, 2) == (shop.of(MessageHandled, "handled"), shop.of(MessageHandled, "repeated"))


async def test_a_failed_message_parks_its_key_and_ends_the_invocation_without_an_error():
    shop = Shop(attempts=2)
    for sent in (paid(-1), paid(2), paid(3, session="o2")):
        await consume(received(sent), shop.process())

    (key,) = await shop.keys.list()
    assert ("o1", 2) == (key.partition_key, key.held)  # type: ignore[union-attr]
    assert 1 == shop.of(MessageHandled, "handled")


async def test_a_process_notices_at_the_next_message_that_another_process_parked_the_key():
    """Two processes may work on one session if a lock was lost while a function ran."""
    shop = Shop(attempts=1)
    one, other = shop.process(), shop.process()
    await consume(received(paid(1)), one)
    await consume(received(paid(-1)), other)
    await consume(received(paid(2)), one)

    assert (1, 1) == (shop.of(MessageHandled, "handled"), shop.of(MessageHandled, "held"))


class Away(MemoryContainer):
    """A container that is unavailable until the time `back_at` on the event loop's clock."""

    back_at = 0.0

    async def commit(self, *arguments: Any, **options: Any) -> Any:
        if asyncio.get_running_loop().time() < self.back_at:
            raise StoreUnavailable(applied=False)
        return await super().commit(*arguments, **options)


async def test_a_function_gives_up_a_message_before_the_timeout_of_the_host():
    shop, clock = Shop(), asyncio.get_running_loop().time
    shop.container = away = Away()
    away.back_at, began = clock() + 1e6, clock()
    with pytest.raises(MessageError, match=r"could not handle OrderPaid .* for 0:02:00"):
        await consume(received(paid(1)), shop.process())

    assert 60 < clock() - began < 180
    assert () == await shop.keys.list()


@pytest.mark.parametrize(
    ("options", "sent", "reason"),
    [
        ({}, Message(message_id="", session_id="o1", subject="OrderPaid"), "MessageUnreadable"),
        ({"unknown": "dead_letter"}, paid(1, subject="OrderLost"), "UnknownSubject"),
        ({"on_failure": "dead_letter", "attempts": 1}, paid(-1), "ValueError: a total below zero"),
    ],
)
async def test_a_function_raises_an_error_for_a_message_that_it_would_dead_letter(
    options: dict[str, Any], sent: Message, reason: str
):
    """A function cannot dead-letter a message by itself, so its error leaves that to the Functions host."""
    shop = Shop(**options)
    with pytest.raises(MessageError, match=f"neither handle nor dead-letter.*{reason}"):
        await consume(received(sent), shop.process())

    assert () == shop.container.documents()
