"""
How a consumer handles messages: one effect for each message, order kept through failures, and which settings and messages it refuses.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from cosmos_outbox import DomainEvent, Outbox, UnitOfWork, errors
from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.consumer.parked_messages import message_of
from cosmos_outbox.errors import ConfigurationError, StoreUnavailable, UsageError
from cosmos_outbox.parking import ParkedKey
from cosmos_outbox.ports import Complete
from cosmos_outbox.records import (
    AttemptFailed,
    ConsumerHalted,
    MessageGivenUp,
    MessageHandled,
    SessionClosed,
    SubjectIgnored,
)
from cosmos_outbox.retries import Backoff
from tests.support.shop import Invoice, InvoiceIssued, OrderPaid, World, invoicing, message, ran


async def test_a_message_becomes_documents_an_event_and_an_inbox_record_in_one_commit():
    world = await ran(invoicing(), message(paid := OrderPaid(order_id="o1", total=5)))

    (event,) = world.documents("domainEvent")
    (record,) = world.documents("inboxRecord")
    (invoice,) = world.documents("invoice")
    assert 5 == invoice["data"]["total"]
    assert paid.id == event["meta"]["causationId"] == record["messageId"]
    assert 30 * 86400 == record["ttl"]
    assert event["_lsn"] == record["_lsn"] == invoice["_lsn"]
    assert [Complete()] == [settlement for _, settlement in world.subscription.settled]


async def test_a_repeated_message_has_no_second_effect():
    world = World(invoicing())
    once = message(OrderPaid(order_id="o1"))
    for _ in range(3):
        world.subscription.deliver(once)
    await world.run()

    assert 1 == len(world.documents("invoice")) == len(world.of(MessageHandled, "handled"))
    assert 2 == len(world.of(MessageHandled, "repeated"))


async def test_a_failed_message_parks_its_key():
    """Later messages of the key are held behind it. Other keys go on."""
    world = World(invoicing(attempts=2))
    bad = message(OrderPaid(order_id="o1", total=-1))
    later = message(OrderPaid(order_id="o1", total=2))
    other = message(OrderPaid(order_id="o2", total=3), session="o2")
    for one in (bad, later, other):
        world.subscription.deliver(one)
    await world.run()

    assert [3] == [invoice["data"]["total"] for invoice in world.documents("invoice")]
    (parked,) = world.of(MessageGivenUp, "parked")
    assert ("o1", "ValueError", 2) == (parked.key, parked.reason, parked.attempts)
    (held,) = world.of(MessageHandled, "held")
    assert later.message_id == held.message_id
    (key,) = await world.keys.list()
    assert isinstance(key, ParkedKey)
    assert 2 == key.held


async def test_a_failure_record_names_the_file_and_line_of_the_handler():
    world = await ran(invoicing(attempts=1), message(OrderPaid(order_id="o1", total=-1)))

    (failed,) = world.of(AttemptFailed)
    assert "shop.py:" in failed.handler
    assert failed.handler.endswith(" in invoice")
    (key,) = await world.keys.list()
    assert isinstance(key, ParkedKey)
    assert (failed.handler,) == getattr(key.failure, "frames", ())


@pytest.mark.parametrize("failures", [2, 5])
async def test_a_release_retries_a_handler_as_often_as_the_consumer_does(
    failures: int,
):
    backoff, calls = Backoff(initial_seconds=8, maximum_seconds=8), list[float]()
    consumer = Consumer("c", attempts=3, backoff=backoff)

    @consumer.on(OrderPaid)
    async def flaky(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) <= failures:
            raise OSError("a random 502")

    world = World(consumer)
    await world.keys.park("o1", reason="by hand")
    world.subscription.deliver(message(OrderPaid(order_id="o1")))
    await world.run()
    released = await world.keys.release("o1")

    assert 3 == len(calls)
    assert calls[2] > calls[0]
    assert [1, 2, 3][:failures] == [failed.attempt for failed in world.of(AttemptFailed)]
    assert (failures == 2) == released.handed_back
    assert released.failure is None or (3, "OSError") == (released.failure.attempts, released.failure.reason)


async def test_a_release_handles_held_messages_in_order():
    """After the release, new messages of the key are handled at once again."""
    world = World(invoicing(attempts=1))
    bad = OrderPaid(order_id="o1", total=-1)
    for event in (bad, OrderPaid(order_id="o1", total=2)):
        world.subscription.deliver(message(event))
    await world.run()
    released = await world.keys.release("o1", edited={**bad.payload(), "total": 7}, event_id=bad.id)
    world.subscription.deliver(message(OrderPaid(order_id="o1", total=9)))
    await world.run()

    assert released.handed_back
    assert [7, 2, 9] == [invoice["data"]["total"] for invoice in world.documents("invoice")]
    assert [] == list(await world.keys.list())


async def test_a_consumer_that_dead_letters_a_failed_message_handles_the_next_one():
    world = World(invoicing(attempts=1, on_failure="dead_letter"))
    for total in (-1, 2):
        world.subscription.deliver(message(OrderPaid(order_id="o1", total=total)))
    await world.run()

    assert [2] == [invoice["data"]["total"] for invoice in world.documents("invoice")]
    ((_, reason, description),) = world.subscription.dead_letters
    assert ("ValueError", "a total below zero") == (reason, description)


async def test_a_handler_cannot_commit_a_unit_of_work_of_its_own():
    consumer = Consumer("invoicing")
    outbox: list[Outbox] = []

    @consumer.on(OrderPaid)
    async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        async with outbox[0].unit_of_work() as own:
            own.repository(Invoice).create(Invoice.of(event))
            await own.commit()

    world = World(consumer)
    outbox.append(Outbox(world.container))
    world.subscription.deliver(message(OrderPaid(order_id="o1")))
    await world.run()

    assert [] == world.documents("invoice")
    assert isinstance(world.of(MessageGivenUp, "parked")[0].error, UsageError)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_the_message_of_a_handler_that_never_returns_is_parked(stubborn: bool):
    consumer, enough = Consumer("invoicing", attempts=2), asyncio.Event()

    @consumer.on(OrderPaid)
    async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    world = await ran(consumer, message(OrderPaid(order_id="o1")))
    enough.set()

    (parked,) = world.of(MessageGivenUp, "parked")
    assert (("HandlerStuck", 1) if stubborn else ("HandlerTimeout", 2)) == (parked.reason, parked.attempts)


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"total":"many"}', b"\xff\xfe"])
async def test_an_unreadable_body_is_parked_at_the_first_attempt(body: bytes):
    world = await ran(invoicing(), Message(message_id="m1", session_id="o1", subject="OrderPaid", body=body))

    (parked,) = world.of(MessageGivenUp, "parked")
    assert ("MessageUnreadable", 1) == (parked.reason, parked.attempts)
    (kept,) = [document for document in world.parked.documents() if document["type"] == "parkedEvent"]
    assert body == message_of(kept["event"], edited=False).body


async def test_subjects_without_a_handler_are_ignored_and_reported_once():
    world = World(invoicing())
    for _ in range(3):
        world.subscription.deliver(message(InvoiceIssued(total=1)))
    await world.run()

    assert 1 == len(world.of(SubjectIgnored))
    assert (3, ()) == (len(world.subscription.settled), world.container.documents())


async def test_subjects_without_a_handler_may_be_dead_lettered():
    world = await ran(invoicing(unknown="dead_letter"), message(InvoiceIssued(total=1)))

    assert ["UnknownSubject"] == [reason for _, reason, _ in world.subscription.dead_letters]


async def test_a_consumer_halts_after_five_keys_were_parked_without_a_success():
    """While the consumer is halted, messages of other keys wait. It goes on after the first message that succeeds."""
    world = World(invoicing(attempts=1))
    for number in range(20):
        one = message(OrderPaid(order_id=f"o{number}", total=-1), session=f"o{number}")
        world.subscription.deliver(one)
    await world.run(lambda: bool(world.of(ConsumerHalted)))
    assert 5 == len(world.of(MessageGivenUp, "parked"))
    assert world.handling.halted
    world.subscription.deliver(message(OrderPaid(order_id="good"), session="good"))
    await world.run(lambda: 10 == len(world.of(MessageGivenUp, "parked")))

    assert ["good"] == [invoice["data"]["orderId"] for invoice in world.documents("invoice")]
    assert [] == world.subscription.dead_letters
    assert {0} == {waiting.delivery_count for waiting in world.subscription.waiting}


async def test_messages_of_a_key_that_an_operator_parks_are_held_after_the_next_poll():
    world = World(invoicing())
    world.subscription.deliver(message(OrderPaid(order_id="o1")))
    running = asyncio.create_task(world.run(lambda: bool(world.of(MessageHandled, "held"))))
    while not world.documents("invoice"):  # noqa: ASYNC110 - any fact
        await asyncio.sleep(0.1)
    await world.keys.park("o1", reason="wait")
    world.handling.seen_parked = {"o1"}
    world.subscription.deliver(message(OrderPaid(order_id="o1", total=2)))
    await running

    assert 1 == len(world.of(SessionClosed))
    assert 1 == len(world.documents("invoice"))


def losing(world: World) -> Consumer:
    """
    Return a consumer whose handler loses the session lock at an order with a negative total, as if it had blocked the event loop.
    """
    consumer = Consumer("invoicing")

    @consumer.on(OrderPaid)
    async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        uow.repository(Invoice).create(Invoice.of(event))
        if event.total < 0:
            world.subscription.lose_lock("o1")
            await asyncio.Event().wait()

    return consumer


async def test_a_message_that_no_process_finishes_is_parked_before_its_last_delivery():
    """
    After its last delivery, the broker would dead-letter the message, and later messages would overtake it.
    """
    world = World(invoicing())
    world.consumer = losing(world)
    world.__post_init__()
    for total in (-1, 2):
        world.subscription.deliver(message(OrderPaid(order_id="o1", total=total)))
    world.subscription.deliver(message(OrderPaid(order_id="o2", total=3), session="o2"))
    await world.run()

    assert [] == world.subscription.dead_letters
    (parked,) = world.of(MessageGivenUp, "parked")
    assert ("DeliveredTooOften", 8) == (parked.reason, parked.attempts)
    assert [3] == [invoice["data"]["total"] for invoice in world.documents("invoice")]
    assert ["o1"] == [held.key for held in world.of(MessageHandled, "held")]


async def test_a_message_that_was_delivered_too_often_is_parked_while_the_consumer_is_halted():
    world = World(invoicing(attempts=1))
    for number in range(5):
        failing = message(OrderPaid(order_id=f"k{number}", total=-1), session=f"k{number}")
        world.subscription.deliver(failing)
    await world.run(lambda: world.handling.halted)
    world.subscription.deliver(replace(message(OrderPaid(order_id="o1")), delivery_count=8))
    await world.run(seconds=60)

    assert "DeliveredTooOften" == world.of(MessageGivenUp, "parked")[-1].reason


async def test_only_the_first_message_of_a_session_is_parked_for_its_delivery_count():
    world = World(invoicing(on_failure="dead_letter"))
    for number in range(3):
        ahead = message(OrderPaid(order_id="o1", total=number))
        world.subscription.deliver(replace(ahead, delivery_count=8))
    await world.run()

    assert ["DeliveredTooOften"] == [reason for _, reason, _ in world.subscription.dead_letters]
    assert [1, 2] == sorted(invoice["data"]["total"] for invoice in world.documents("invoice"))


@pytest.mark.parametrize("sessions", [False, True])
async def test_without_sessions_a_high_delivery_count_does_not_park_a_message(sessions: bool):
    """
    Without sessions, each retry during an outage of the store adds a delivery, so the count shows no fault.
    """
    world = await ran(
        invoicing(),
        replace(message(OrderPaid(order_id="o1")), delivery_count=50),
        replace(message(InvoiceIssued(total=1), session="o2"), delivery_count=50),
        subscription=MemorySubscription(sessions=sessions, max_deliveries=100),
    )

    assert (int(sessions), not sessions) == (
        len(world.of(MessageGivenUp, "parked")),
        bool(world.documents("invoice")),
    )


@pytest.mark.parametrize(
    "error", [StoreUnavailable(applied=False), ConfigurationError("The container does not exist.")]
)
async def test_messages_wait_while_the_store_is_unavailable(error: Exception):
    """No message is parked, and the wait does not count as a delivery."""

    async def away(*_: Any) -> Any:
        raise error

    world = World(invoicing())
    commit = world.container.commit
    world.container.commit = away  # type: ignore[method-assign]
    world.subscription.deliver(message(OrderPaid(order_id="o1")))
    with pytest.raises(TimeoutError):
        await world.run(seconds=1800)
    assert [0] == [waiting.delivery_count for waiting in world.subscription.waiting]
    world.container.commit = commit  # type: ignore[method-assign]
    await world.run()

    assert 1 == len(world.documents("invoice"))
    assert [] == world.of(MessageGivenUp, "parked")


async def test_a_message_waits_while_the_function_that_chooses_its_outbox_fails():
    outages = [StoreUnavailable("The list of tenants is away.", applied=False)]

    def outbox_of(_: Message) -> Outbox:
        if outages:
            raise outages.pop()
        return Outbox(world.container)

    world = World(
        invoicing(outbox_of=outbox_of, partition_key=lambda message: "o1"),
        subscription=MemorySubscription(sessions=False),
    )
    world.subscription.deliver(message(OrderPaid(order_id="o1"), session_id=None))
    await world.run()

    assert [] == world.subscription.dead_letters
    assert 1 == len(world.documents("invoice"))


async def test_a_message_without_an_id_is_dead_lettered_with_the_reason():
    world = await ran(invoicing(), Message(message_id="", session_id="o1", subject="OrderPaid"))

    assert ["MessageUnreadable"] == [reason for _, reason, _ in world.subscription.dead_letters]
    assert 1 == len(world.of(MessageGivenUp, "dead-lettered"))


async def test_the_idempotency_key_of_a_message_is_the_same_at_each_attempt():
    """The key also contains the name of the consumer, so two consumers have different keys for the same message."""
    seen = []
    for name in ("invoicing", "shipping"):
        consumer = Consumer(name, attempts=2, backoff=Backoff(maximum_seconds=0.1))

        @consumer.on(OrderPaid)
        async def handler(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
            seen.append(message.idempotency_key)
            if len(seen) % 2:
                raise ValueError

        world = World(consumer)
        world.subscription.deliver(message(OrderPaid(order_id="o1", id="m1")))
        await world.run()
        assert 1 == len(world.of(AttemptFailed))

    assert ["invoicing:m1", "invoicing:m1", "shipping:m1", "shipping:m1"] == seen


def test_a_consumer_refuses_invalid_handlers_and_settings():
    consumer = invoicing()
    with pytest.raises(TypeError, match=r"already takes the subject .*version 1"):
        consumer.on(OrderPaid)(_handler)
    with pytest.raises(TypeError, match="`async def`"):
        consumer.on(InvoiceIssued)(lambda event, message, uow: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="three arguments"):
        consumer.on(InvoiceIssued)(_two)  # type: ignore[arg-type]
    for uncalled in (_handler, "OrderPaid"):
        with pytest.raises(TypeError, match="`on` takes the class of an event"):
            consumer.on(uncalled)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="without dots"):
        Consumer("a.b")
    with pytest.raises(ConfigurationError, match="'maybe'"):
        Consumer("a", unknown="maybe")
    with pytest.raises(ConfigurationError, match="has no handler"):
        Consumer("a").handling(source="t/s")
    with pytest.raises(ConfigurationError, match="has no parked store"):
        World(consumer).consumer.handling(source="t/s")
    with pytest.raises(UsageError, match="has no outbox"):
        invoicing().handling(source="t/s")


class _Unit(UnitOfWork): ...


async def _swapped(uow: UnitOfWork, event: OrderPaid, message: Message) -> None: ...
async def _swapped_behind(event: OrderPaid, uow: UnitOfWork, message: Message) -> None: ...
async def _of_another_event(event: InvoiceIssued, message: Message, uow: UnitOfWork) -> None: ...
async def _of_another_unit(event: OrderPaid, message: Message, uow: _Unit) -> None: ...
async def _of_bases(event: DomainEvent, message: Any, uow: UnitOfWork) -> None: ...
async def _unresolved(event: Elsewhere, message: errors.Message, uow: UnitOfWork | None) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (_swapped, "`uow: UnitOfWork`"),
        (_swapped_behind, "`uow: UnitOfWork`"),
        (_of_another_event, "`event: InvoiceIssued`"),
        (_of_another_unit, "`uow: _Unit`"),
        (_of_bases, None),
        (_unresolved, None),
    ],
)
def test_a_handler_with_wrong_annotations_is_refused(handler: Any, said: str | None):
    with pytest.raises(TypeError, match=said) if said else nullcontext():
        Consumer("a").on(OrderPaid)(handler)


def test_annotations_with_a_class_that_is_local_to_a_function_are_accepted():
    class OrderPaid(DomainEvent): ...

    async def handle(event: OrderPaid, message: Message, uow: UnitOfWork) -> None: ...

    Consumer("a").on(OrderPaid)(handle)


async def _handler(event: OrderPaid, message: Message, uow: UnitOfWork) -> None: ...


async def _two(event: OrderPaid, message: Message) -> None: ...
