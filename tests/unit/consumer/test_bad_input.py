"""
A consumer with unusual input: handlers that end in odd ways, bodies that Cosmos DB would refuse or change, and messages that are too
large.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from math import inf, nan
from typing import Any
from uuid import UUID

import pytest

from cosmos_outbox import UnitOfWork
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.consumer.parked_messages import ParkedMessage, message_of
from cosmos_outbox.errors import StoreUnavailable, frames_of
from cosmos_outbox.records import ConsumingDelayed, MessageGivenUp, MessageHandled
from tests.support.shop import OrderPaid, World, message, ran
from tests.unit.consumer.test_handling import invoicing


def awaiting_what_is_cancelled() -> Consumer:
    consumer = Consumer("invoicing", attempts=2)

    @consumer.on(OrderPaid)
    async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        other = asyncio.create_task(asyncio.sleep(100))
        other.cancel()
        await other

    return consumer


async def test_a_message_is_parked_if_its_handler_awaits_a_cancelled_task():
    world = await ran(awaiting_what_is_cancelled(), message(OrderPaid(order_id="o1")))

    (parked,) = world.of(MessageGivenUp, "parked")
    assert 2 == parked.attempts
    assert "what it awaited was cancelled" in str(parked.error)
    assert __file__ in "".join(frames_of(parked.error))
    assert [] == world.subscription.dead_letters


@pytest.mark.parametrize("total", ["NaN", "-Infinity", "1e400", r'"\ud800"', str(2**53 + 1)])
async def test_a_body_that_the_store_would_refuse_is_parked_unchanged(total: str):
    world = World(invoicing(attempts=1))
    body = f'{{"orderId":"o1","total":{total},"id":5}}'.encode()
    world.subscription.deliver(
        Message(message_id="m1", session_id="o1", subject="OrderPaid", body=body, properties={"rate": nan})
    )
    await world.run()

    assert 1 == len(world.of(MessageGivenUp, "parked"))
    (kept,) = [document for document in world.parked.documents() if document["type"] == "parkedEvent"]
    assert {} == kept["event"]["data"]
    assert body == message_of(kept["event"], edited=False).body


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, "text", 7, -(2**53) - 1, 2**63 - 1, 0.1, 1.0, 1e300, inf, b"ab\xff"),
        *(Decimal("1.10"), UUID(int=1), datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC)),
    ],
)
def test_a_held_message_keeps_the_values_and_types_of_its_properties(value: Any):
    sent = message(OrderPaid(order_id="o1"), properties={"value": value}, sequence_number=33 << 48 | 1)
    stored = json.dumps(ParkedMessage(sent, "o1").document, allow_nan=False)
    # Cosmos DB stores every number as a double and returns 1.0 as 1, so the test reads the numbers in this way.
    found = message_of(json.loads(stored, parse_int=as_double, parse_float=as_double), edited=False)

    assert sent == replace(found, body=sent.body)
    assert type(value) is type(found.properties["value"])


@pytest.mark.parametrize(
    ("digits", "kept"),
    [("10.50", True), ("1e300", True), ("0.12345678901234567", False), (f"1e-{'9' * 20}", False)],
)
def test_a_number_in_the_body_of_a_held_message_does_not_change(digits: str, kept: bool):
    sent = message(OrderPaid(order_id="o1"), body=f'{{"total":{digits}}}'.encode())
    document = ParkedMessage(sent, "o1").document

    assert ({"total": float(digits)} if kept else {}) == document["data"]
    assert kept or sent.body == message_of(document, edited=False).body


@pytest.mark.parametrize(
    "body",
    [
        *(
            '{ "orderId":"o1","total":-1}',
            '{"total":-1.50,"orderId":"o1"}',
            '{"orderId":"\\u00e9","total":-1.0}',
        ),
        *('{"orderId":"x","orderId":"o1","total":-1}', '{"orderId":"é","total":-1}', '{"total":-1e2}'),
    ],
)
async def test_the_body_of_a_released_message_has_the_bytes_that_were_received(body: str):
    """If an operator edited the message, the release sends the edited data instead."""
    sent = message(OrderPaid(order_id="o1"), body=body.encode())
    stored = json.dumps(ParkedMessage(sent, "o1").document)
    document = json.loads(stored, parse_int=as_double, parse_float=as_double)

    assert body.encode() == message_of(document, edited=False).body
    assert document["data"].items() >= {"total": json.loads(body)["total"]}.items()
    assert document["data"] == json.loads(message_of(document, edited=True).body)


@pytest.mark.parametrize("letter", ["y", "é", "漢", '\\"'])
async def test_a_message_of_1_3_megabytes_is_parked_in_any_alphabet(letter: str):
    world = World(invoicing(attempts=1))
    note = letter * (1_300_000 // len(letter.encode()))
    body = f'{{"orderId":"o1","note":"{note}","total":-1}}'.encode()
    world.subscription.deliver(Message(message_id="m1", session_id="o1", subject="OrderPaid", body=body))
    await world.run()

    assert [] == world.subscription.dead_letters
    (kept,) = [document for document in world.parked.documents() if document["type"] == "parkedEvent"]
    assert len(json.dumps(kept)) < 2_000_000
    assert body == message_of(kept["event"], edited=False).body


def as_double(digits: str) -> float | int:
    number = float(digits)
    return int(number) if number.is_integer() else number


@pytest.mark.parametrize(
    ("said", "reason"),
    [(None, None), ("1", None), (7, "UnknownVersion"), ("7", "UnknownVersion")]
    + [(said, "MessageUnreadable") for said in ("seven", "", "1.0", "9" * 5000, True, 1.0, b"1")],
    ids=lambda value: repr(value)[:20],
)
async def test_a_schema_version_may_be_text_but_must_be_a_whole_number(said: Any, reason: str | None):
    world = await ran(invoicing(), message(OrderPaid(order_id="o1"), properties={"schema-version": said}))

    assert [(reason, 1)] * bool(reason) == [
        (one.reason, one.attempts) for one in world.of(MessageGivenUp, "parked")
    ]
    assert len(world.documents("invoice")) == (reason is None)


@pytest.mark.parametrize(("levels", "kept_as_data"), [(126, True), (127, False), (900, False)])
async def test_a_body_that_is_nested_too_deeply_for_a_document_is_parked_unchanged(
    levels: int, kept_as_data: bool
):
    world = World(invoicing(attempts=1))
    nested = "[" * (levels - 1) + "]" * (levels - 1)
    body = f'{{"orderId":"o1","total":{nested}}}'.encode()
    world.subscription.deliver(Message(message_id="m1", session_id="o1", subject="OrderPaid", body=body))
    await world.run()

    assert 1 == len(world.of(MessageGivenUp, "parked"))
    (kept,) = [document for document in world.parked.documents() if document["type"] == "parkedEvent"]
    assert kept_as_data is ("body" not in kept["event"])
    assert levels_of(kept) <= 128
    assert body == message_of(kept["event"], edited=False).body


def levels_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(levels_of, value.values() if isinstance(value, dict) else value), default=0)


@pytest.mark.parametrize("behind_another", [False, True])
async def test_a_message_that_is_too_large_to_park_is_dead_lettered_at_once(behind_another: bool):
    world = World(invoicing(attempts=1))
    if behind_another:
        world.subscription.deliver(message(OrderPaid(order_id="o1", total=-1)))
    large = Message(message_id="m2", session_id="o1", subject="OrderPaid", body=b"x" * 3_000_000)
    world.subscription.deliver(large)
    await world.run()

    assert [("m2", "TooLargeToPark", 0)] == [
        (one.message_id, reason, one.delivery_count) for one, reason, _ in world.subscription.dead_letters
    ]


async def test_the_back_off_of_a_waiting_key_grows_while_other_keys_succeed():
    consumer = Consumer("invoicing")

    @consumer.on(OrderPaid)
    async def invoice(event: OrderPaid, message: Message, uow: UnitOfWork) -> None:
        if event.order_id == "o1":
            raise StoreUnavailable("The handler's own container is away.", applied=False)
        await asyncio.sleep(0.1)

    world = World(consumer)
    world.subscription.deliver(message(OrderPaid(order_id="o1")))
    for _ in range(600):
        world.subscription.deliver(message(OrderPaid(order_id="o2"), session="o2"))
    await world.run(lambda: len(world.of(MessageHandled, "handled")) == 600)

    # In 60 seconds the key is tried a few times at first, and then every 4 s on average.
    # If each success of another key reset the back-off, there would be 240 attempts.
    assert 5 < len(world.of(ConsumingDelayed)) < 60


async def test_messages_that_are_too_large_to_park_do_not_halt_the_consumer():
    world = World(invoicing(attempts=1))
    for key in "abcdef":
        large = Message(message_id=f"m{key}", session_id=key, subject="OrderPaid", body=b"x" * 3_000_000)
        world.subscription.deliver(large)
    await world.run()

    assert ["TooLargeToPark"] * 6 == [reason for _, reason, _ in world.subscription.dead_letters]
    assert not world.handling.halted
