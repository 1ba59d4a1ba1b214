"""Tests of the AsyncAPI description of the messages that a service sends and handles, and of the check that finds breaking changes between
two descriptions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from cosmos_outbox import DomainEvent
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.message_format import message_of
from cosmos_outbox.relay.routing import parse_routes
from cosmos_outbox.stored_documents import StoredEvent, event_document, event_meta
from cosmos_outbox_worker.contract.asyncapi import asyncapi_of
from cosmos_outbox_worker.contract.breaking_changes import breaks
from cosmos_outbox_worker.contract.declarations import Declarations

ASYNCAPI = Path(__file__).parents[1] / "support/asyncapi/3.0.0.json"
VALID = jsonschema_rs.validator_for(json.loads(ASYNCAPI.read_text()))
CONSUMERS, STORED = "consumers of version 1 do not take", "the class does not take now"
TEXT = Literal["a"] | str  # noqa: PYI051 - a value that was listed stays, and any other one may come
Schema = dict[str, Any]


class Card(BaseModel):
    kind: Literal["card"] = "card"
    last4: str


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Sealed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    street: str


class Tolerant(DomainEvent):
    model_config = ConfigDict(extra="ignore")
    action = "Placed"


def fields(given: dict[str, Any]) -> dict[str, Any]:
    return {name: one if isinstance(one, tuple) else (one, ...) for name, one in given.items()}


def event(base: type[DomainEvent] = DomainEvent, /, **given: Any) -> type[DomainEvent]:
    made = create_model("Placed", __base__=base, **fields(given))
    made.action = "Placed"
    return made


def sent(*events: type[DomainEvent], routes: str = "", topic: str = "") -> Schema:
    known = parse_routes(routes, default=topic) if topic else None
    return asyncapi_of(
        Declarations({"title": "shop", "version": "1"}, {one: ["order"] for one in events}, []), known
    )


def handling(model: type[BaseModel], version: int | None, *upcast: int) -> Consumer:
    consumer = Consumer("billing")

    @consumer.on(model, subject="Placed", version=version, upcasters=dict.fromkeys(upcast, dict))
    async def handle(event: Any, message: Any, uow: Any) -> None: ...

    return consumer


def handled(model: type[BaseModel], version: int | None = None, *upcast: int) -> Schema:
    return asyncapi_of(
        Declarations({"title": "billing", "version": "1"}, {}, [handling(model, version, *upcast)])
    )


def second(kind: type[DomainEvent], *upcast: int) -> type[DomainEvent]:
    kind.schema_version, kind.upcasters = 2, dict.fromkeys(upcast, dict)
    return kind


@pytest.mark.parametrize(
    ("before", "after", "field", "may"),
    [
        ({"x": int, "y": int}, {"x": int}, "y", f"lack it, which {CONSUMERS}"),
        ({"y": int}, {"z": int}, "y", f"lack it, which {CONSUMERS}"),
        ({"x": int}, {"x": int, "y": (int, 0)}, "y", f"have it, which {CONSUMERS}"),
        ({"x": (int, 0)}, {"x": int}, "x", f"lack it, which {STORED}"),
        ({"x": int}, {"x": str}, "x", f"be string, which {CONSUMERS}"),
        ({"x": float}, {"x": int}, "x", f"be number, which {STORED}"),
        ({"x": int}, {"x": int | None}, "x", f"be null, which {CONSUMERS}"),
        ({"x": int | None}, {"x": int}, "x", f"be null, which {STORED}"),
        ({"x": Literal["a", "b"]}, {"x": Literal["a"]}, "x", f'be "b", which {STORED}'),
        ({"x": Literal["a"]}, {"x": Literal["a", "b"]}, "x", f'be "b", which {CONSUMERS}'),
        ({"x": str}, {"x": Literal["a"]}, "x", f"be string, which {STORED}"),
        ({"x": Literal["a"]}, {"x": TEXT}, "x", f"be string, which {CONSUMERS}"),
        ({"x": Annotated[int, Field(le=9)]}, {"x": Annotated[int, Field(le=5)]}, "x", f"fit maximum 5, which {STORED}"),
        ({"x": Annotated[int, Field(le=5)]}, {"x": Annotated[int, Field(le=9)]}, "x", f"fit maximum 5, which {CONSUMERS}"),
        ({"x": Card}, {"x": Card | Cash}, "x", f"be a Card, which {CONSUMERS}"),
        ({"x": Card | None}, {"x": create_model("Card", __base__=Card, more=int) | None}, "x.more", f"lack it, which {STORED}"),
        ({"x": Sealed}, {"x": create_model("Sealed", __base__=Sealed, floor=(int, 0))}, "x.floor", f"have it, which {CONSUMERS}"),
        ({"x": list[Node]}, {"x": list[Card]}, "x[].name", f"lack it, which {CONSUMERS}"),
        ({"x": dict[str, int]}, {"x": dict[str, str]}, "x.*", f"be string, which {CONSUMERS}"),
    ],
)  # fmt: skip
def test_a_changed_event_breaks_consumers_unless_an_upcaster_converts_it(
    before: Schema, after: Schema, field: str, may: str
):
    was = sent(event(**before))
    found = {one.field: one for one in breaks(was, sent(event(**after)))}
    assert may in found[field].problem
    assert "raise schema_version to 2 and add an upcaster from version 1" in found[field].remedy
    assert ["add an upcaster from version 1"] == [
        one.remedy for one in breaks(was, sent(second(event(**after))))
    ]
    assert [] == breaks(was, sent(second(event(**after), 1)))


def test_compatible_changes_of_an_event_break_nothing():
    was = sent(event(Tolerant, x=int), topic="events")
    assert [] == breaks(was, sent(event(Tolerant, x=int, y=(int, 0)), topic="events")), (
        "it is read by those who want it"
    )
    assert [] == breaks(was, sent(event(Tolerant, x=(int, 5)), topic="events")), "it is still written"
    assert [] == breaks(
        was, sent(event(Tolerant, x=Annotated[int, Field(description="how many")]), topic="events")
    )
    assert [] == breaks(was, sent(event(Tolerant, x=int), type("Other", (DomainEvent,), {}), topic="events"))
    assert [] == breaks(was, sent(event(Tolerant, x=int))), "its topic is not known"


def test_a_service_breaks_its_contract_if_it_stops_sending_or_handling_an_event():
    """A break is also reported for one topic that no longer gets an event, if another topic still gets it."""
    assert "nothing sends it now" in breaks(sent(event(x=int)), sent())[0].problem
    was = sent(event(x=int), topic="events", routes="entity:order=orders,audit")
    [one] = breaks(was, sent(event(x=int), topic="events", routes="action:Placed=orders"))
    assert "topic audit receives it no more" == one.problem
    assert "handles it no more" in breaks(handled(Card), asyncapi_of(Declarations({}, {}, [])))[0].problem


OLD, NEW = create_model("Read", x=(int, ...)), create_model("Read", x=(int, ...), y=(int, ...))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    # What a consumer accepts before and after a change, and words of the error (None if the change breaks nothing). The numbers are the
    # schema version that the handler takes, and the versions that its upcasters take.
    [
        (handled(OLD), handled(NEW), "messages may lack it, which consumer billing does not take now"),
        (handled(NEW), handled(OLD), None),  # OLD lacks the field y, so the consumer ignores y now
        (handled(event(x=int, y=int)), handled(event(x=int)), "messages may have it, which consumer billing"),
        (handled(OLD, 1), handled(OLD), None),
        (handled(OLD), handled(OLD, 1), "takes one schema version now"),
        (handled(OLD, 1), handled(NEW, 2), "no upcaster takes version 1"),
        (handled(OLD, 1), handled(NEW, 2, 1), None),
        (handled(OLD, 1), handled(NEW, 3, 2), "no upcaster takes version 1"),
        (handled(NEW, 2, 1), handled(NEW, 2), "no upcaster takes version 1"),
    ],
)
def test_a_consumer_that_refuses_messages_it_accepted_before_breaks_the_contract(
    before: Schema, after: Schema, said: str | None
):
    found = [one.problem for one in breaks(before, after)]
    assert (said is None) == (not found)
    assert said is None or said in found[0]


KINDS: list[Any] = [
    int, float, str, bool, None, Any, int | None, str | int, Literal["a"], Literal["a", "b"], Literal[1, "a"], Literal["a"] | int,
    Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)], Annotated[int, Field(gt=1)], Annotated[float, Field(le=2)],
    Annotated[str, Field(max_length=1)], Annotated[str, Field(min_length=2)], Annotated[str, Field(pattern="^a")],
    list[int], list[Any], list[int | None], Annotated[list[int], Field(min_length=1)], set[int], tuple[int, str], dict[str, int],
    dict[str, Any], create_model("Loose", street=(str, ...)), Card, Cash, Card | Cash, Card | None, Node, Sealed, list[Card],
]  # fmt: skip
UNDECLARED = {"street": "s", "floor": 1}  # no event has the field `floor`, so a service never sends it
VALUES: list[Any] = [
    0, 1, 2, 3, 1.5, 2.5, "", "a", "b", "ab", "ba", True, None, [], [1], [1, 1], [None], ["a"], [1, "a"], {}, {"a": 1}, {"a": "b"},
    {"kind": "card", "last4": "1"}, {"last4": "1"}, {"kind": "cash"}, {"name": "n"}, {"name": "n", "children": [{"name": 1}]},
    {"street": "s"}, UNDECLARED, [{"last4": "1"}], [{}],
]  # fmt: skip


def test_every_change_of_a_type_that_refuses_old_values_is_found():
    """
    The test changes the type of a field in every possible way, and asks another implementation of JSON Schema which values the old
    and the new type accept.
    """
    documents = [handled(create_model("Read", x=(kind, ...))) for kind in KINDS]
    events = [sent(event(x=kind)) for kind in KINDS]
    validators = [validator_of(one, "Read") for one in documents]
    takes = [[one.is_valid({"x": value}) for value in VALUES] for one in validators]
    missed, needless = [], []
    for (old, before), (new, after) in itertools.product(enumerate(documents), repeat=2):
        differ = [value for value, was, now in zip(VALUES, takes[old], takes[new], strict=True) if was != now]
        if differ not in ([], [UNDECLARED]) and not breaks(events[old], events[new]):
            missed.append((KINDS[old], KINDS[new], "sent"))
        refused = any(was and not now for was, now in zip(takes[old], takes[new], strict=True))
        if refused and not breaks(before, after):
            missed.append((KINDS[old], KINDS[new]))
        elif not refused and breaks(before, after):
            needless.append((KINDS[old], KINDS[new]))
    assert [] == missed
    assert len(needless) < 20, needless


SHAPES: list[tuple[type[DomainEvent], dict[str, Any]]] = [
    (base, given)
    for base in (DomainEvent, Tolerant)
    for given in ({}, {"y": int}, {"y": (int, 0)}, {"y": (int | None, None)}, {"y": str}, {"z": int}, {"y": int, "z": (int, 0)})
]  # fmt: skip


def test_a_break_is_found_if_a_version_of_an_event_cannot_read_another_version():
    kinds = [event(base, **given) for base, given in SHAPES]
    events = [kind(**{name: "1" if given[name] is str else 1 for name in given}) for kind, (_, given) in zip(kinds, SHAPES, strict=True)]  # fmt: skip
    documents = [sent(kind) for kind in kinds]
    for old, new in itertools.product(range(len(kinds)), repeat=2):
        refused = refuses(kinds[old], events[new]) or refuses(kinds[new], events[old])
        assert not refused or breaks(documents[old], documents[new]), (SHAPES[old], SHAPES[new])


def refuses(kind: type[DomainEvent], other: DomainEvent) -> bool:
    try:
        kind.from_payload(other.payload())
    except ValidationError:
        return True
    return False


def validator_of(document: Schema, name: str) -> Any:
    return jsonschema_rs.validator_for({**document, "$ref": f"#/components/schemas/{name}"})


def test_a_sent_message_fits_the_asyncapi_description():
    """The test also checks that the description itself is valid AsyncAPI."""
    kind = event(
        card=Annotated[Card | Cash, Field(discriminator="kind")], how_many=int, tree=(Node | None, None)
    )
    made = kind(card=Card(last4="4242"), how_many=3)
    document = sent(kind, event(other=str), topic="events")
    VALID.validate(document)
    VALID.validate(handled(Node))
    meta = event_meta("order", "o1", version=1, commit_id="c1", correlation={"traceparent": "00-1-2-00"})
    data = event_document(made, key_fields={"partitionKey": "p1"}, meta=meta, sequence=0)
    stored = StoredEvent(
        id=made.id, partition_key="p1", action="Placed", data=data["data"], meta=data["meta"], lsn=1
    )
    message, outbound = document["components"]["messages"]["send.events.Placed.v1"], message_of(stored)
    assert message["name"] == outbound.subject
    for part, value in (("headers", dict(outbound.properties)), ("payload", json.loads(outbound.body))):
        jsonschema_rs.validator_for({**document, **message[part]}).validate(value)
    assert outbound.properties.keys() <= message["headers"]["properties"].keys()
