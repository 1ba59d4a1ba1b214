"""
Values of entities and events: each is read back unchanged, or the commit is refused with the name of the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal, Self
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    SerializeAsAny,
    WrapSerializer,
    computed_field,
    field_serializer,
)

from cosmos_outbox import DomainEvent, Entity, Outbox, UnstorableValue
from cosmos_outbox.adapters.memory.container import MemoryContainer

NOW = datetime(2026, 7, 1, tzinfo=UTC)


class Size(BaseModel):
    width: float


class LabelledSize(Size):
    label: str


class Colour(Enum):
    RED = "r"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Box(Entity):
    numbers: list[int] = Field(default_factory=list)
    sizes: list[Size] = Field(default_factory=list)
    password: SecretStr = SecretStr("")
    cached: str = Field(default="", exclude=True)
    renamed: str = Field(default="", serialization_alias="other")
    weight: float = 0.0
    raw: bytes = b""
    labels: dict[str, str] = Field(default_factory=dict)


class BoxWeighed(DomainEvent):
    weight: float = 0.0
    raw: bytes = b""
    labels: dict[str, str] = Field(default_factory=dict)


class Crate(Entity):
    amount: Decimal
    at: datetime
    day: date
    clock: time
    lasts: timedelta
    serial: UUID
    colour: Colour
    labels: set[str]
    pair: tuple[int, str]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    sizes: dict[str, Size]
    small_float: float

    @computed_field
    @property
    def doubled(self) -> Decimal:
        return self.amount * 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("numbers", [1, "garbage"]),
        ("sizes", [LabelledSize(width=1, label="x")]),
        ("password", SecretStr("hidden")),
        ("cached", "looked up"),
        ("renamed", "x"),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("raw", b"\xff"),
        ("labels", {"top": "half of a pair: \ud800"}),
        ("labels", {"\ud800": "top"}),
    ],
)
async def test_a_value_that_would_not_be_read_back_is_refused_with_its_field(field: str, value: object):
    container = MemoryContainer()
    box = Box(id="b")
    box.__dict__[field] = value  # without validation, as after `model_construct` or a change inside a list
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Box).create(box)
        with pytest.raises(UnstorableValue, match=f"(?i)box 'b' of partition key 'b'.*{field}") as caught:
            await uow.commit()
    assert ("b", "b") == (caught.value.document_id, caught.value.partition_key)
    assert caught.value.field.startswith(field)
    assert () == container.documents()


@pytest.mark.parametrize(
    "made",
    [
        {"weight": float("nan")},
        {"raw": b"\xff"},
        {"labels": {"top": "\ud800"}},
    ],
)
async def test_an_event_value_that_json_cannot_represent_is_refused_with_its_field(made: dict[str, Any]):
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Box).create(Box(id="b")).record(BoxWeighed(id="e", **made))
        with pytest.raises(UnstorableValue, match=f"BoxWeighed 'e' of partition key 'b'.*{next(iter(made))}"):
            await uow.commit()
    assert () == container.documents()


@pytest.mark.parametrize("text", [{"top": "\ud800"}, {"\ud800": "top"}])
async def test_a_text_that_is_not_valid_unicode_in_a_dict_is_refused_with_its_field(text: dict[str, str]):
    container = MemoryContainer()

    async def write() -> None:
        async with Outbox(container).unit_of_work() as uow:
            uow.save({"id": "d", "partitionKey": "k", "labels": text})
            await uow.commit()

    with pytest.raises(UnstorableValue, match=r"dict 'd' of partition key 'k'.*the field 'labels"):
        await write()
    assert () == container.documents()


async def test_values_of_all_common_types_are_read_back_unchanged():
    container = MemoryContainer()
    crate = Crate(
        amount=Decimal("1.10"),
        at=datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")),
        day=date(2026, 1, 1),
        clock=time(1, 2, 3, 4, tzinfo=UTC),
        lasts=timedelta(days=1, microseconds=1),
        serial=UUID(int=7),
        colour=Colour.RED,
        labels={"a", "b"},
        pair=(1, "x"),
        pet=Dog(),
        sizes={"s": Size(width=1)},
        small_float=0.1,
    )
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Crate).create(crate)
        await uow.commit()
        uow.rollback()
        read = await uow.repository(Crate).read(crate.id)
    assert crate.__dict__ == read.__dict__


class Bill(Entity):
    due: float = 0.0

    @property
    def partition_key(self) -> str:
        return "k"

    @computed_field
    @property
    def overdue(self) -> float:
        return perf_counter() - self.due


async def test_an_entity_is_not_written_if_only_its_computed_field_changed():
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        _, changed = (uow.repository(Bill).create(Bill(id=name)) for name in ("read", "changed"))
        await uow.commit()
        changed.due = 6.0
        await uow.commit()
    async with Outbox(container).unit_of_work() as uow:
        await uow.repository(Bill).read("read", partition_key="k")
        changed = await uow.repository(Bill).read("changed", partition_key="k")
        for due in (7.0, 8.0):
            changed.due = due
            await uow.commit()

    versions = {one["id"]: one["version"] for one in container.documents() if one["type"] == "bill"}
    assert {"read": 1, "changed": 4} == versions


class Listed(Entity):
    """An entity of which only a computed field is stored."""

    rows: list[str] = Field(default_factory=list, exclude=True, validation_alias="lines")

    @computed_field
    @property
    def lines(self) -> list[str]:
        return self.rows


async def test_an_edit_that_changes_only_a_computed_field_is_written():
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Listed).create(Listed(id="l", lines=["x"]))
        await uow.commit()
    async with Outbox(container).unit_of_work() as uow:
        (await uow.repository(Listed).read("l")).rows.append("y")
        await uow.commit()

    assert ["x", "y"] == (await container.read("l", "l"))["data"]["lines"]


class Anything(Entity):
    value: Any = None


class Said(DomainEvent):
    model_config = ConfigDict(extra="allow")

    value: Any = None
    named: dict[str, Any] = Field(default_factory=dict)
    bare: dict = Field(default_factory=dict)  # type: ignore[type-arg]
    other: Any = Field(default=None, serialization_alias="else")
    either: int | list[Any] = 0


class Line(BaseModel):
    value: Any = None


class SaidInside(DomainEvent):
    lines: list[Line] = Field(default_factory=list)
    before: Self | None = None


LOST = [
    float("nan"),
    float("inf"),
    {1, 2},
    frozenset(),
    (1, 2),
    {1: "a number as a name"},
    Decimal("1.10"),
]
SAID = {
    "value": lambda value: Said(id="e", value=value),
    "named.deep.0": lambda value: Said(id="e", named={"deep": [value]}),
    "bare.deep": lambda value: Said(id="e", bare={"deep": value}),
    "other": lambda value: Said(id="e", other=value),
    "either.1": lambda value: Said(id="e", either=[0, value]),
    "extra.deep": lambda value: Said(id="e", extra={"deep": value}),
    "lines.0.value": lambda value: SaidInside(id="e", lines=[Line(value=value)]),
    "before.lines.0.value": lambda value: SaidInside(id="e", before=SaidInside(lines=[Line(value=value)])),
}


@pytest.mark.parametrize("field", SAID)
@pytest.mark.parametrize("value", LOST, ids=repr)
async def test_a_value_that_json_would_change_is_refused_in_an_event_field_of_any_type(
    field: str, value: object
):
    container, thing = MemoryContainer(), Anything(id="t")
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Anything).create(thing).record(SAID[field](value))
        with pytest.raises(UnstorableValue, match="could not be read back as it is") as caught:
            await uow.commit()
    assert caught.value.field == (f"{field}.1" if isinstance(value, dict) else field)
    assert () == container.documents()


@pytest.mark.parametrize("value", [*LOST, {"deep": (1, 2)}, datetime(2026, 7, 1, tzinfo=UTC), b"x"], ids=repr)
async def test_a_value_that_json_would_change_is_refused_in_an_entity_field_of_any_type(value: object):
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Anything).create(Anything(id="t", value=value))
        with pytest.raises(UnstorableValue, match="could not be read back as it is") as caught:
            await uow.commit()
    assert caught.value.field.startswith("value")
    assert () == container.documents()


@pytest.mark.parametrize("value", [2**63 + 1, -(2**63) - 1, 10**400], ids=["above", "below", "no float"])
@pytest.mark.parametrize("of_event", [True, False], ids=["event", "entity"])
async def test_an_integer_that_needs_more_than_64_bits_is_refused(value: int, *, of_event: bool):
    async with Outbox(MemoryContainer()).unit_of_work() as uow:
        thing = uow.repository(Anything).create(Anything(id="t", value=[None if of_event else value]))
        thing.record(Said(value=[10**20, value if of_event else 2**63 - 1]))
        with pytest.raises(UnstorableValue, match="store the number as text") as caught:
            await uow.commit()
    assert ("value.1" if of_event else "value.0") == caught.value.field


class Place:
    """A class that pydantic does not know."""


class Hidden(BaseModel):
    note: str = Field(exclude=True)
    value: Any = None


class Renamed(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime = Field(default=NOW, serialization_alias="when")
    value: Any = None


@dataclass
class Pair:
    one: tuple[int, int]
    value: Any = None


class WithAll(DomainEvent):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    pair: tuple[Any, ...] = (1, "x")
    labels: set[Any] = Field(default_factory=lambda: {"a"})
    amounts: tuple[Decimal, dict[str, Any]] = (Decimal(1), {})
    by_number: dict[int, Any] = Field(default_factory=lambda: {1: 2})
    either: Decimal | dict[str, Any] | None = Decimal(1)
    any_of: list[SerializeAsAny[Line]] = Field(default_factory=lambda: [Renamed()])  # type: ignore[list-item]
    place: Place | None = Field(default_factory=Place, exclude=True)
    at: Annotated[Any, PlainSerializer(str)] = Decimal(1)
    wrapped: Annotated[Any, WrapSerializer(lambda value, write: str(value))] = Decimal(1)
    cause: Any = ValueError("no")
    dataclass: Pair = Field(default_factory=lambda: Pair((1, 2)))
    before: Self | None = None
    hidden: Hidden | None = None

    @field_serializer("cause")
    def written(self, cause: Any) -> str:
        return str(cause)


class Starred(DomainEvent):
    value: Any = None

    @field_serializer("*")
    def written(self, value: object) -> str:
        return str(value)


@pytest.mark.parametrize(
    "event",
    [
        WithAll(before=WithAll(hidden=Hidden(note="n"))),
        Starred(value=Decimal(1)),
        *(
            Said(value=value, named={"deep": [value]}, extra=value)
            for value in (
                *(
                    None,
                    True,
                    1.5,
                    2**60,
                    "text",
                    {"deep": [1, None]},
                    NOW,
                    NOW.date(),
                    timedelta(1),
                    UUID(int=1),
                ),
                *(Colour.RED, Path("here"), b"x", Line(value=1), Pair((1, 2))),
            )
        ),
    ],
    ids=lambda event: repr(event)[:60],
)
async def test_an_event_with_a_defined_serialization_of_each_value_is_committed(
    event: DomainEvent,
):
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Anything).create(Anything(id="t")).record(event)
        await uow.commit()
    assert event.payload() == next(one["data"] for one in container.documents() if one["id"] == event.id)
