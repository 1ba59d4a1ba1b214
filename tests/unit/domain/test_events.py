from __future__ import annotations

import json
import warnings
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, Field, RootModel, computed_field

from cosmos_outbox import DomainEvent
from cosmos_outbox.domain.events import new_id


class SeatTaken(DomainEvent):
    seat_number: int
    taken_on: datetime


class SeatFreed(DomainEvent):
    action = "seat.freed"
    schema_version = 3
    ttl = timedelta(hours=1)


def test_the_payload_of_an_event_is_camel_case_json():
    event = SeatTaken(
        id="e1",
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        seat_number=7,
        taken_on=datetime(2026, 1, 3, tzinfo=UTC),
    )
    payload = event.payload()

    assert ["id", "action", "createdAt", "seatNumber", "takenOn"] == list(payload)
    assert {
        "id": "e1",
        "action": "SeatTaken",
        "createdAt": "2026-01-02T00:00:00Z",
        "seatNumber": 7,
        "takenOn": "2026-01-03T00:00:00Z",
    } == json.loads(json.dumps(payload))


def test_new_ids_are_random_uuids_of_version_4():
    ids = {new_id() for _ in range(100)}
    assert 100 == len(ids)
    assert ids == {str(UUID(one, version=4)) for one in ids}


def test_an_event_type_has_defaults_for_action_schema_version_and_time_to_live():
    assert ("seat.freed", 3, timedelta(hours=1)) == (
        SeatFreed.action,
        SeatFreed.schema_version,
        SeatFreed.ttl,
    )
    assert ("SeatTaken", 1, timedelta(days=10)) == (SeatTaken.action, SeatTaken.schema_version, SeatTaken.ttl)


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": ""},
        {"schema_version": 0},
        {"schema_version": "2"},
        {"ttl": 60},
        {"ttl": timedelta(0)},
        {"ttl": timedelta(days=30000)},
    ],
)
def test_an_event_type_with_invalid_settings_is_refused_at_its_definition(wrong: dict[str, object]):
    with pytest.raises(TypeError, match=r"Impossible[.](ttl|schema_version|action) has to be"):
        type("Impossible", (DomainEvent,), {**wrong, "__module__": __name__})


OWN_NAMES = {name for name in vars(DomainEvent) if not name.startswith("_")} - {
    "model_config",
    *DomainEvent.model_fields,
}


@pytest.mark.parametrize("name", sorted(OWN_NAMES | {"action"}))
def test_a_field_with_the_name_of_an_event_member_is_refused(name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic warns of such a field, and the library refuses it
        with pytest.raises(TypeError, match=f"named '{name}'"):
            type("Hiding", (DomainEvent,), {"__annotations__": {name: str}, "__module__": __name__})


class Numbered(BaseModel):
    id: int = 5


class Computed(BaseModel):
    @computed_field(alias="createdAt")
    def when(self) -> str:
        return "then"


@pytest.mark.parametrize(
    ("taken", "name", "field"),
    [
        ("id", "id", 5),
        ("created_at", "created_at", 5),
        ("createdAt", "createdAt", 5),
        ("id", "Id", 5),
        ("id", "number", Field(alias="id")),
        ("action", "kind", Field(alias="action")),
        ("id", "number", Field(5, serialization_alias="id")),
        ("createdAt", "when", Field(5, validation_alias="createdAt")),
        ("created_at", "when", Field(5, validation_alias=AliasChoices("at", "created_at"))),
        ("action", "kind", Field(5, validation_alias=AliasPath("action", 0))),
        ("id", "number", Field(5, validation_alias=AliasChoices("n", AliasPath("id", "n")))),
        ("id", "id", Numbered),
        ("createdAt", "when", Computed),
    ],
)
def test_a_field_that_would_be_stored_as_id_action_or_creation_time_is_refused(
    taken: str, name: str, field: Any
):
    bases, body = (DomainEvent,), {"__annotations__": {name: int}, name: field}
    if isinstance(field, type):
        bases, body = (field, DomainEvent), {}  # type: ignore[assignment]
    with pytest.raises(TypeError, match=f"cannot have a field {name!r} that is named '{taken}'"):
        type("Paid", bases, {**body, "__module__": __name__})


class Visit(BaseModel):
    at: datetime


class Visited(DomainEvent):
    at: datetime | None = None
    visits: list[Visit] = Field(default_factory=list)
    facts: dict[str, Any] = Field(default_factory=dict)
    of_the_day: time | None = None
    on: date | None = None


NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - what the tests are about


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"at": NAIVE}, "at"),
        ({"created_at": NAIVE}, "created_at"),
        ({"visits": [{"at": "2026-01-01T00:00:00Z"}, {"at": NAIVE}]}, "visits.1.at"),
        ({"facts": {"seen": (NAIVE,)}}, "facts.seen.0"),
    ],
)
def test_a_time_without_a_utc_offset_in_an_event_is_refused(given: dict[str, Any], field: str):
    with pytest.raises(ValueError, match=rf"'{field}' of Visited has no UTC offset.*datetime\.now\(UTC\)"):
        Visited(**given)


def test_times_without_a_utc_offset_are_refused_inside_root_models():
    class Times(RootModel[list[datetime]]):
        def __iter__(self):  # type: ignore[override]
            return iter(self.root)

    class Rung(DomainEvent):
        times: Times

    assert 1 == len(Rung(times=Times([datetime.now(UTC)])).times.root)
    with pytest.raises(ValueError, match=r"'times\.root\.0' of Rung"):
        Rung(times=Times([datetime(2026, 1, 1)]))  # noqa: DTZ001 - without an offset
