"""Handlers of a consumer: what they do to their unit of work, how they end, and what they raise."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cosmos_outbox import Outbox, UnitOfWork
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.consumer.routes import Routes
from cosmos_outbox.errors import frames_of
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import Complete
from cosmos_outbox.records import ConsumingDelayed, MessageGivenUp, MessageHandled
from tests.support.shop import Invoice, InvoiceIssued, OrderPaid, World, message, ran

Handle = Callable[[OrderPaid, UnitOfWork], Awaitable[None] | None]


def consumer_of(handle: Handle, **options: Any) -> Consumer:
    consumer = Consumer("invoicing", **options)

    @consumer.on(OrderPaid)
    async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if (answer := handle(event, uow)) is not None:
            await answer

    return consumer


def create(event: OrderPaid, uow: UnitOfWork) -> None:
    uow.repository(Invoice).create(Invoice.of(event))


def with_event_handler(
    react: Callable[[InvoiceIssued, UnitOfWork], Awaitable[None] | None], **options: Any
) -> World:
    container = MemoryContainer(ranges=1)
    outbox = Outbox(container)
    outbox.on(InvoiceIssued, react)
    return World(consumer_of(create, outbox=outbox, **options), container=container)


async def test_a_message_takes_effect_once_although_its_handler_rolls_back_in_between():
    def second_thoughts(event: OrderPaid, uow: UnitOfWork) -> None:
        create(event, uow)
        uow.rollback()
        create(event, uow)

    world = World(consumer_of(second_thoughts))
    for number in range(3):
        world.subscription.deliver(message(OrderPaid(id="m1", order_id="o1"), delivery_count=number))
    await world.run()

    assert 1 == len(world.documents("invoice"))
    assert 1 == len(world.of(MessageHandled, "handled"))


@pytest.mark.parametrize("forget", [UnitOfWork.rollback, UnitOfWork.close])
async def test_an_event_handler_that_rolls_back_or_closes_the_unit_of_work_parks_the_message(
    forget: Callable[[UnitOfWork], None],
):
    world = with_event_handler(lambda event, uow: forget(uow))
    world.subscription.deliver(message(OrderPaid(order_id="o1")))
    await world.run()

    assert ["UsageError"] == [parked.reason for parked in world.of(MessageGivenUp, "parked")]
    assert [] == world.documents("invoice") == world.of(MessageHandled, "handled")


async def test_the_error_of_a_handler_that_writes_a_second_key_advises_to_use_an_event():
    def elsewhere(event: OrderPaid, uow: UnitOfWork) -> None:
        uow.save({"id": "x", "partitionKey": "another"})

    world = await ran(consumer_of(elsewhere), message(OrderPaid(order_id="o1")))

    (parked,) = world.of(MessageGivenUp, "parked")
    assert "it holds 'o1' and 'another'; a handler of 'invoicing'" in str(parked.error)
    assert "have a consumer of that event write the other key" in str(parked.error)


class Panic(BaseException):
    """
    A BaseException that is no Exception. Extensions written in Rust raise such an error when they panic.
    """


@pytest.mark.parametrize("end", [Panic, SystemExit])
@pytest.mark.parametrize("inside", ["handler", "event handler"])
async def test_a_handler_that_raises_systemexit_parks_its_message(end: type[BaseException], inside: str):
    """The process goes on and handles other keys. Any other BaseException has the same effect."""

    def failing(event: OrderPaid, uow: UnitOfWork) -> None:
        if event.total < 0:
            sys.exit("no config") if end is SystemExit else None
            raise end("no config")
        create(event, uow)

    def reacting(event: InvoiceIssued, uow: UnitOfWork) -> None:
        if event.total < 0:
            raise end("no config")

    world = (
        World(consumer_of(failing, attempts=2))
        if inside == "handler"
        else with_event_handler(reacting, attempts=2)
    )
    for number, total in enumerate((-1, 2)):
        event = OrderPaid(order_id=f"o{number}", total=total)
        world.subscription.deliver(message(event, session=event.order_id))
    await world.run()

    (parked,) = world.of(MessageGivenUp, "parked")
    assert 2 == parked.attempts
    assert f"{end.__name__}, which would have ended the process: no config" in str(parked.error)
    assert __file__ in "".join(frames_of(parked.error))  # the record names the line that failed
    assert [2] == [document["data"]["total"] for document in world.documents("invoice")]


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("on_failure", ["park", "dead_letter"])
@pytest.mark.parametrize("error", [ValueError("\ud800"), Silent()], ids=["half a surrogate pair", "no text"])
async def test_an_error_whose_text_cannot_be_stored_still_parks_its_message(
    error: Exception, on_failure: str
):
    def failing(event: OrderPaid, uow: UnitOfWork) -> None:
        raise error

    world = await ran(
        consumer_of(failing, attempts=1, on_failure=on_failure), message(OrderPaid(order_id="o1"))
    )

    name = type(error).__name__
    if on_failure == "dead_letter":
        assert [name] == [reason for _, reason, _ in world.subscription.dead_letters]
        return
    assert [name] == [parked.reason for parked in world.of(MessageGivenUp, "parked")]
    (key,) = await world.keys.list()
    assert key.failure is not None
    assert key.failure.error.encode()


async def refused(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
    raise KeyError("no")


@pytest.mark.parametrize("permanent", [KeyError, (KeyError,), LookupError])
async def test_the_argument_permanent_takes_a_single_error_class(permanent: Any):
    consumer = Consumer("invoicing")
    consumer.on(OrderPaid, permanent=permanent)(refused)
    world = await ran(consumer, message(OrderPaid(order_id="o1")))

    assert [("KeyError", 1)] == [(one.reason, one.attempts) for one in world.of(MessageGivenUp, "parked")]


class Broken(Exception):
    retry_after = "soon"


@pytest.mark.parametrize("where", ["the policy", "the store of parked keys"])
async def test_an_error_outside_of_the_handler_does_not_count_as_a_delivery(where: str, monkeypatch: Any):
    def fails(*_: object) -> Any:
        raise Broken

    world = World(consumer_of(lambda event, uow: fails(), attempts=2))
    with monkeypatch.context() as patched:
        patched.setattr(*((Routes, "permanent") if where == "the policy" else (Parking, "hold")), fails)
        world.subscription.deliver(message(OrderPaid(order_id="o1")))
        await world.run(lambda: bool(world.of(MessageGivenUp, "parked") or world.of(ConsumingDelayed)))
    await world.run()

    assert 1 == len(world.of(MessageGivenUp, "parked"))
    assert [Complete()] == [settlement for _, settlement in world.subscription.settled]
