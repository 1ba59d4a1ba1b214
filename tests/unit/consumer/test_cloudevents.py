"""
Tests of a consumer that receives CloudEvents in every form, from this library and from other programs: which handler is called, and
which attributes it sees.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from cosmos_outbox import UnitOfWork, stored_event
from cosmos_outbox.consumer import Consumer, Message
from cosmos_outbox.errors import MessageUnreadable
from cosmos_outbox.message_format import message_of
from cosmos_outbox.records import MessageGivenUp, MessageHandled, SubjectIgnored
from cosmos_outbox.relay.cloudevents import ContentMode, as_cloud_event
from tests.support.event_documents import event as event_document
from tests.support.shop import Invoice, OrderPaid, World, invoicing, ran

STRUCTURED = "application/cloudevents+json"
SAID = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "com.example.placed"}
MORE = {"subject": "order/7", "time": "2026-05-01T10:00:00.123456789Z", "correlationid": "c7", "tier": "gold"}
ENVELOPE = {**SAID, **MORE, "datacontenttype": "application/json", "data": {"number": 1}}


class Placed(BaseModel):
    number: int


def taking(subject: str = SAID["type"], **options: Any) -> tuple[Consumer, list[tuple[int, Message]]]:
    consumer, seen = Consumer("orders", **options), list[tuple[int, Message]]()

    @consumer.on(Placed, subject=subject)
    async def take(event: Placed, message: Message, uow: UnitOfWork) -> None:
        seen.append((event.number, message))
        uow.repository(Invoice).create(Invoice.of(OrderPaid(order_id="k", total=event.number)))

    return consumer, seen


def carrying(body: Any, *, content_type: str | None = None, **properties: Any) -> Message:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(
        message_id="m1", session_id="k", body=encoded, content_type=content_type, properties=properties
    )


def binary(separator: str, attributes: dict[str, Any], body: Any = {"number": 1}) -> Message:  # noqa: B006
    named = {f"cloudEvents{separator}{name}": value for name, value in attributes.items()}
    return carrying(body, content_type="application/json", **named)


AT = datetime(2026, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)
FORMS = {
    "binary, by the binding": binary(":", SAID | MORE),
    "binary, as filters can name it": binary("_", SAID | MORE),
    "binary, the time as a timestamp of AMQP": binary(":", SAID | MORE | {"time": 1777629600123}),
    "structured": carrying(ENVELOPE, content_type=f"{STRUCTURED}; charset=UTF-8"),
    "structured, encoded twice": carrying(json.dumps(ENVELOPE), content_type=STRUCTURED),
    "structured, of a type in capitals": carrying(ENVELOPE, content_type="Application/CloudEvents+JSON"),
    "structured, with data in base64": carrying(
        {
            **{name: value for name, value in ENVELOPE.items() if name != "data"},
            "data_base64": base64.b64encode(b'{"number":1}').decode(),
        },
        content_type=STRUCTURED,
    ),
    "structured, with data encoded twice": carrying(
        {**ENVELOPE, "data": '{"number": 1}'}, content_type=STRUCTURED
    ),
    "JSON that does not say what it is": carrying(ENVELOPE, content_type="application/json"),
    "without a content type": carrying(ENVELOPE),
}


@pytest.mark.parametrize("message", FORMS.values(), ids=FORMS)
async def test_a_cloud_event_of_any_form_is_handled_by_its_type(
    message: Message,
):
    """The handler also finds the attributes of the CloudEvent, such as its source, in `message.cloud_event`."""
    consumer, seen = taking()
    world = await ran(consumer, message)

    ((number, given),) = seen
    told = given.cloud_event
    assert told is not None
    assert (1, SAID["type"], "/shop", "order/7") == (number, given.subject, told.source, told.subject)
    assert told.time is not None
    assert AT.replace(microsecond=123000) == told.time.replace(microsecond=123000)
    assert "gold" == told.extensions["tier"]
    (committed,) = world.documents("domainEvent")
    assert "c7" == committed["meta"]["correlationId"]


async def test_a_parked_cloud_event_is_handled_as_a_cloud_event_at_its_release():
    consumer, healthy, seen = Consumer("orders", attempts=1), False, list[str]()

    @consumer.on(Placed, subject=SAID["type"])
    async def take(event: Placed, message: Message, uow: UnitOfWork) -> None:
        if not healthy:
            raise ValueError("not yet")
        assert message.cloud_event is not None
        seen.append(message.cloud_event.source)

    for form in ("binary, by the binding", "structured", "structured, encoded twice"):
        healthy = False
        world = await ran(consumer, FORMS[form])
        assert [SAID["type"]] == [told.subject for told in world.of(MessageGivenUp, "parked")]
        healthy = True
        await world.keys.release("k")

    assert ["/shop"] * 3 == seen


@pytest.mark.parametrize("mode", list(ContentMode))
async def test_a_consumer_reads_the_cloud_events_that_the_relay_sends(
    mode: ContentMode,
):
    """
    If a program between relay and consumer drops all other properties of a message, the CloudEvents properties are enough.
    """
    document = event_document("c1", correlationId="c7", schemaVersion=2) | {
        "data": {"number": 1, "createdAt": "today"}
    }
    stored = stored_event(document)
    assert stored
    sent = as_cloud_event(message_of(stored), source="/contacts/data", mode=mode)
    own = {name: value for name, value in sent.properties.items() if name.startswith("cloudEvents")}
    for properties in (sent.properties, own):
        consumer, seen = Consumer("orders"), list[tuple[int, Message]]()

        @consumer.on(Placed, subject="event", version=2)
        async def take(event: Placed, message: Message, uow: UnitOfWork) -> None:
            seen.append((event.number, message))  # noqa: B023

        await ran(
            consumer,
            Message(
                message_id="m1",
                session_id="k",
                body=sent.body,
                content_type=sent.content_type,
                properties=properties,
            ),
        )
        ((number, given),) = seen
        assert (1, "c7", None) == (number, given.properties["correlation-id"], given.cloud_event.time)  # type: ignore[union-attr]


async def test_a_cloud_event_type_without_a_handler_is_reported_once():
    world = World(invoicing())
    for number, kind in enumerate(("com.example.placed", "com.example.placed", "com.example.paid")):
        world.subscription.deliver(binary("_", SAID | {"type": kind}), message_id=f"m{number}")
    await world.run()

    assert ["com.example.placed", "com.example.paid"] == [told.subject for told in world.of(SubjectIgnored)]
    assert 3 == len(world.of(MessageHandled, "ignored"))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (carrying(b"<event/>", content_type=STRUCTURED), "its body is no JSON object"),
        (carrying([ENVELOPE], content_type=STRUCTURED), "its body is no JSON object"),
        (carrying([ENVELOPE], content_type="application/cloudevents-batch+json"), "send each event alone"),
        (carrying(b"\0", content_type="application/cloudevents+protobuf"), f"as {STRUCTURED}"),
        (carrying(ENVELOPE | {"source": ""}, content_type=STRUCTURED), "its attribute source"),
        (carrying(ENVELOPE | {"type": None}, content_type=STRUCTURED), "its attribute type: Field required"),
        (carrying(ENVELOPE | {"specversion": "0.3"}), "its attribute specversion: Input should be '1.0'"),
        (binary("_", {"type": SAID["type"]}), "its attribute specversion: Field required"),
    ],
)
async def test_an_invalid_cloud_event_is_parked_with_the_reason(message: Message, said: str):
    world = await ran(invoicing(), message)

    (parked,) = world.of(MessageGivenUp, "parked")
    assert ("MessageUnreadable", 1) == (parked.reason, parked.attempts)
    assert said in str(parked.error)
    with pytest.raises(MessageUnreadable):
        message.cloud_event  # noqa: B018


async def test_a_cloud_event_without_a_message_id_is_identified_by_its_source_and_id():
    consumer, seen = taking()
    world = World(consumer)
    for attributes in (SAID, SAID, SAID | {"source": "/depot"}):
        world.subscription.deliver(binary(":", attributes), message_id="")
    await world.run()

    assert 2 == len(seen)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (json.dumps(json.dumps({"number": 1})).encode(), None),  # as the SDK for JavaScript encodes a text
        (json.dumps({"number": 1}).encode("utf-16"), None),
        (b'[{"number": 1}]', "no JSON object but list"),
        (b'"{ no JSON"', "no JSON object but str: have its sender send one object in each message"),
        (b'"number"', "no JSON object but str"),
        (b"", "is no JSON"),
        (b'{"number": 1, "specversion": 3}', None),
    ],
)
async def test_bodies_as_other_sdks_encode_them_are_read_or_refused_with_advice(
    body: bytes, said: str | None
):
    consumer, seen = taking("")
    world = await ran(consumer, carrying(body))

    refused = [str(given_up.error) for given_up in world.of(MessageGivenUp)]
    assert (said is None, said is not None) == (bool(seen), bool(refused))
    assert said is None or said in refused[0]
