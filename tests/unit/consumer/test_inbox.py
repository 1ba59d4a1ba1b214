"""
The inbox, which makes a message take effect once: when a read is stale, when another process was first, and when an inbox record has
expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field

from cosmos_outbox import Entity, UnitOfWork, key_of_text, key_text
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.domain.events import utc_now
from cosmos_outbox.errors import NotFound
from cosmos_outbox.parking import ParkedEvent, ParkedKeys, SendResult
from cosmos_outbox.parking.parked_documents import parked_id
from cosmos_outbox.ports import Complete, Write, WriteKind
from cosmos_outbox.records import (
    AttemptFailed,
    ConsumingDelayed,
    MessageGivenUp,
    MessageHandled,
)
from tests.support.shop import Invoice, OrderPaid, World, invoicing, message, ran


class Seat(Entity):
    row: str
    number: int

    @property
    def partition_key(self) -> tuple[str, int]:
        return self.row, self.number


def seating(**options: Any) -> Consumer:
    consumer = Consumer("seating", attempts=1, **options)

    @consumer.on(OrderPaid)
    async def take(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        row, number = key_of_text(message.session_id or "", levels=2)
        uow.repository(Seat).create(Seat(row=row, number=number))

    return consumer


async def test_the_session_id_gives_the_hierarchical_partition_key_of_written_documents():
    world = await ran(
        seating(),
        message(OrderPaid(order_id="o1", id="m1"), session=key_text(("a", 5))),
        message(OrderPaid(order_id="o1", id="m1"), session=key_text(("a", 5))),
        container=MemoryContainer(ranges=1, key_paths=["/row", "/number"]),
    )

    assert [] == world.of(MessageGivenUp, "parked")
    assert [("a", 5)] == [(seat["row"], seat["number"]) for seat in world.documents("seat")]


async def test_a_session_id_that_is_no_partition_key_parks_its_message_with_advice():
    world = await ran(
        seating(),
        message(OrderPaid(order_id="o1"), session="o1"),
        container=MemoryContainer(ranges=1, key_paths=["/row", "/number"]),
    )

    (parked,) = world.of(MessageGivenUp, "parked")
    assert "'o1' is no partition key" in str(parked.error)
    assert str(parked.error).endswith('write it as ["row","number"]. Or give `partition_key=`.')


@pytest.mark.parametrize("session", ["[5]", '["a","b"]'])
async def test_a_session_id_is_the_partition_key_of_a_container_with_one_key_path(session: str):
    world = await ran(invoicing(partition_key=None), message(OrderPaid(order_id=session), session=session))

    assert [session] == [invoice["partitionKey"] for invoice in world.documents("invoice")]


async def test_a_copy_that_was_held_while_its_key_was_parked_has_no_second_effect():
    now = [1_000_000_000.0]
    world = World(invoicing(attempts=1), container=MemoryContainer(ranges=1, now=lambda: now[0]))
    once, bad = message(OrderPaid(order_id="o1")), message(OrderPaid(order_id="o1", total=-1))
    for one in (once, bad, once):
        world.subscription.deliver(one)
    await world.run()
    now[0] += 31 * 86400  # the inbox record of the first message has expired
    await world.keys.drop("o1", bad.message_id, reason="no such order")
    await world.keys.release("o1")

    assert 1 == len(world.documents("invoice"))


class Behind(MemoryContainer):
    """
    A container with a lagging replica: while `stale` is set, the next read of an inbox record does not find it.
    """

    stale = False

    async def read(self, document_id: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self.stale and document_id.startswith("inbox."):
            self.stale = False
            raise NotFound(document_id=document_id)
        return await super().read(document_id, *args, **kwargs)


async def test_the_inbox_record_alone_prevents_a_second_effect():
    """
    The handler writes its document under a new id each time, so only the inbox record can conflict. The consumer does not count this
    conflict as a failure.
    """
    world = World(invoicing(attempts=1), container=(container := Behind(ranges=1)))
    once = message(OrderPaid(order_id="o1"))
    for _ in range(2):
        container.stale = True
        world.subscription.deliver(once)
        await world.run()

    assert ([], []) == (world.of(AttemptFailed), world.of(ConsumingDelayed))
    assert (1, 1) == (len(world.documents("invoice")), len(world.documents("inboxRecord")))


class Account(Entity):
    payments: int = 0


def counting(gate: asyncio.Event) -> Consumer:
    """Return a consumer whose first handler call reads its entity and then waits until `gate` is set."""
    consumer, waits = Consumer("counting", attempts=1), [True]

    @consumer.on(OrderPaid)
    async def count(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        accounts = uow.repository(Account)
        try:
            account = await accounts.read(event.order_id)
        except NotFound:
            account = accounts.create(Account(id=event.order_id))
        account.payments += 1
        if waits and waits.pop():
            await gate.wait()
        if event.total < 0 and account.payments > 1:
            raise ValueError("it was paid")

    return consumer


class Session:
    def __init__(self, session_id: str) -> None:
        self.id = session_id

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("total", [1, -1])
async def test_a_failure_is_ignored_if_another_process_already_handled_the_message(total: int):
    world = World(counting(gate := asyncio.Event()))
    paid = message(OrderPaid(order_id="o1", total=total))
    zombie = asyncio.create_task(world.handling(paid, Session("o1")))
    await asyncio.sleep(0.1)
    owner = await world.handling(paid, Session("o1"))
    gate.set()

    assert (Complete(), Complete()) == (owner, await zombie)
    assert [1] == [account["data"]["payments"] for account in world.documents("account")]
    assert [] == world.of(MessageGivenUp, "parked")


async def test_a_second_attempt_reads_the_inbox_before_it_calls_the_handler():
    calls, gate, consumer = list[str](), asyncio.Event(), Consumer("c", attempts=2)

    @consumer.on(OrderPaid)
    async def pay(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        calls.append(message.message_id)
        if len(calls) == 1:
            await gate.wait()
            raise ValueError("not yet")
        uow.save({"id": f"payment-{len(calls)}", "partitionKey": "o1", "type": "payment"})

    world, paid = World(consumer), message(OrderPaid(order_id="o1"), enqueued_at=utc_now())
    zombie = asyncio.create_task(world.handling(paid, Session("o1")))
    await asyncio.sleep(0.1)
    await world.handling(paid, Session("o1"))
    gate.set()

    assert Complete() == await zombie
    assert (2, 1) == (len(calls), len(world.documents("payment")))


async def test_a_handler_that_fails_because_its_message_already_took_effect_parks_nothing():
    (gate := asyncio.Event()).set()
    world = World(counting(gate), container=(container := Behind(ranges=1)))
    paid = message(OrderPaid(order_id="o1", total=-1))
    for deliveries in range(2):
        container.stale = True
        world.subscription.deliver(replace(paid, delivery_count=deliveries))
        await world.run()

    assert 1 == len(world.of(AttemptFailed)) == len(world.of(MessageHandled, "repeated"))
    assert [] == world.of(MessageGivenUp, "parked")


@pytest.mark.parametrize(
    ("copy", "calls"),
    # What differs in the copy, and how often the handler is called for message and copy. If the consumer reads the inbox, the number is 1.
    [
        ({}, 2),
        ({"delivery_count": 1}, 1),
        # The copy comes late, as from a replay, so the consumer reads the inbox and calls the handler only for the first message.
        ({"enqueued_at": timedelta(minutes=6)}, 1),
        # The producer's clock is fast, so the consumer cannot tell whether the copy comes late, and reads the inbox.
        ({"enqueued_at": timedelta(minutes=-6)}, 1),
        # The body does not say when the event was created, so the consumer reads the inbox.
        ({"body": b'{"orderId": "o1"}'}, 1),
        ({"body": b'{"orderId": "o1", "createdAt": "2026-01-01T00:00:00"}'}, 1),
        ({"body": b'{"orderId": "o1", "createdAt": 17}'}, 1),
    ],
)
async def test_a_copy_of_a_message_has_no_second_effect(copy: dict[str, Any], calls: int):
    """
    If the copy comes later than the broker's duplicate detection lasts, the consumer reads the inbox and does not call the handler. If it
    comes sooner, the consumer does not read the inbox, because such copies are rare. Then Cosmos DB refuses the copy's batch.
    """
    called: list[str] = []
    consumer = Consumer("c")

    class Paid(BaseModel):
        order_id: str = Field(alias="orderId")

    @consumer.on(Paid, subject="OrderPaid")
    async def pay(event: Paid, message: Message, uow: UnitOfWork) -> None:
        called.append(event.order_id)
        uow.save({"id": f"payment-{len(called)}", "partitionKey": "o1", "type": "payment"})

    world = World(consumer)
    first = message(OrderPaid(order_id="o1", id="m1"))
    if late := copy.get("enqueued_at"):
        copy = {"enqueued_at": utc_now() + late}
    for one in (first, replace(first, **copy)):
        world.subscription.deliver(one)
    await world.run()

    assert (calls, 1) == (len(called), len(world.documents("payment")))
    assert ([], 1) == (world.of(AttemptFailed), len(world.of(MessageHandled, "repeated")))


async def test_a_conflict_with_another_document_counts_as_a_failure_of_the_handler():
    consumer = Consumer("c", attempts=1)

    @consumer.on(OrderPaid)
    async def create(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        uow.repository(Account).create(Account(id=event.order_id))

    world = World(consumer)
    for _ in range(2):
        world.subscription.deliver(message(OrderPaid(order_id="o1")))
    await world.run()

    assert ["Conflict"] == [parked.reason for parked in world.of(MessageGivenUp, "parked")]


async def test_a_release_after_a_crashed_release_has_no_second_effect():
    """The second release runs ten years later, because the inbox record of a release must not expire."""
    now = [1_000_000_000.0]
    consumer, mended = Consumer("c", attempts=1), []

    @consumer.on(OrderPaid)
    async def issue(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if not mended:
            raise ValueError("not yet")
        uow.save({"id": f"i{len(mended)}", "partitionKey": "o1", "type": "invoice"})
        mended.append(event)

    world = await ran(
        consumer, message(OrderPaid(order_id="o1")), container=MemoryContainer(ranges=1, now=lambda: now[0])
    )
    mended.append(None)

    async def dies(held: Sequence[ParkedEvent], ensure_claimed: Callable[[], Awaitable[None]]) -> SendResult:
        await world.handling.release(held, ensure_claimed)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await ParkedKeys(world.parked, dies, scope=world.handling.scope).release("o1")
    now[0] += 3650 * 86400
    assert (await world.keys.release("o1")).handed_back

    assert 1 == len(world.documents("invoice"))
    # The list has the None that the test added, and one event: the second release did not call the handler.
    assert 2 == len(mended)


@pytest.mark.parametrize("readable", [True, False])
async def test_a_dropped_message_that_comes_again_and_fails_is_dead_lettered(
    readable: bool,
):
    """The key of the message is not parked again, so the next message is handled."""
    world = World(invoicing(attempts=1))
    bad, good = message(OrderPaid(order_id="o1", total=-1)), message(OrderPaid(order_id="o1"))
    world.subscription.deliver(bad)
    await world.run()
    await world.keys.drop("o1", bad.message_id, reason="no such order")
    await world.keys.release("o1")
    if not readable:  # a later version of the library wrote a status that this version does not know
        partition = world.keys._scope.partition_of("o1")
        written = await world.parked.read(parked_id(bad.message_id), partition)
        later = {name: value for name, value in written.items() if not name.startswith("_")}
        write = Write(kind=WriteKind.REPLACE, id=written["id"], document={**later, "status": "archived"})
        await world.parked.commit(partition, [replace(write, etag=written["_etag"])])
    for one in (bad, good):
        world.subscription.deliver(one)
    await world.run()

    assert ["DroppedBefore"] == [reason for _, reason, _ in world.subscription.dead_letters]
    assert 1 == len(world.of(MessageGivenUp, "parked")) == len(world.documents("invoice"))


@pytest.mark.parametrize("purged", [False, True])
async def test_a_dropped_message_that_is_delivered_again_can_be_released_later(
    purged: bool,
):
    bad = {"m1", "m2"}
    consumer = Consumer("c", attempts=1)

    @consumer.on(OrderPaid)
    async def issue(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if message.message_id in bad:
            raise ValueError("not yet")
        uow.repository(Invoice).create(Invoice.of(event))

    world = World(consumer)
    first, second = (message(OrderPaid(id=f"m{n}", order_id="o1", total=n)) for n in (1, 2))
    world.subscription.deliver(first)
    await world.run()
    await world.keys.drop("o1", "m1", reason="by mistake", by="ann")
    # The broker may deliver the message again, if its completion was lost. It stays dropped as long as the key is parked.
    world.subscription.deliver(first)
    await world.run()
    assert () == (await world.keys.show("o1")).held
    if purged:
        await world.keys.purge("o1", "m1", reason="personal data")
    await world.keys.release("o1")
    for one in (second, first):
        world.subscription.deliver(one)
    await world.run()
    held = (await world.keys.show("o1")).held

    assert ["m2", "m1"] == [event.event_id for event in held]
    assert ["dropped", "purged"][: 1 + purged] == [decision.did for decision in held[1].decisions]
    assert ["dropped", "held"] == [handled.outcome for handled in world.of(MessageHandled)]
    bad.clear()
    await world.keys.release("o1")
    assert [2, 1] == [invoice["data"]["total"] for invoice in world.documents("invoice")]


@pytest.mark.parametrize("purged", [False, True])
async def test_a_copy_of_a_dropped_message_is_reported_as_dropped(purged: bool):
    world = World(invoicing(attempts=1))
    bad = message(OrderPaid(order_id="o1", total=-1))
    world.subscription.deliver(bad)
    await world.run()
    await world.keys.drop("o1", bad.message_id, reason="no such order")
    if purged:
        await world.keys.purge("o1", bad.message_id, reason="personal data")
    world.subscription.deliver(bad)
    await world.run()

    assert ["dropped"] == [handled.outcome for handled in world.of(MessageHandled)]
    assert [Complete()] * 2 == [settlement for _, settlement in world.subscription.settled]
    assert () == (await world.keys.show("o1")).held


async def test_a_dropped_message_that_fails_again_is_not_reported_as_held():
    consumer, world = Consumer("c", attempts=1), None

    @consumer.on(OrderPaid)
    async def fail(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if world.of(MessageGivenUp):
            await world.keys.park("o1", reason="the consumer of o1 is broken")
        raise ValueError("not yet")

    world = World(consumer)
    bad = message(OrderPaid(order_id="o1"))
    world.subscription.deliver(bad)
    await world.run()
    await world.keys.drop("o1", bad.message_id, reason="no such order")
    await world.keys.release("o1")
    world.subscription.deliver(bad)
    await world.run()

    assert ["DroppedBefore"] == [reason for _, reason, _ in world.subscription.dead_letters]
    assert 1 == len(world.of(MessageGivenUp, "parked"))
    assert () == (await world.keys.show("o1")).held
