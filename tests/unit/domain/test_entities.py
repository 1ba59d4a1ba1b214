from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from cosmos_outbox import DomainEvent, Entity, SoftDeletable
from cosmos_outbox.domain.entities import progress_of
from tests.support.notes import Note


def committed(note: Note, version: int = 1) -> Note:
    progress_of(note).note_commit(
        version=version, etag='"e"', taken=progress_of(note).take(note.created_event)
    )
    return note


def test_the_created_event_of_a_new_entity_comes_before_its_recorded_events():
    note = Note(text="first")
    note.file_as("f")
    note.change("second")
    note.delete()

    assert [("NoteWritten", "second"), ("NoteFiled", None), ("NoteDeleted", None)] == [
        (event.action, getattr(event, "text", None)) for event in note.events
    ]


def test_the_created_event_keeps_its_id_and_time_when_the_entity_changes():
    note = Note(text="first")
    (before,) = note.events
    note.change("second")
    (after,) = note.events

    assert (before.id, before.created_at, "second") == (after.id, after.created_at, after.text)


class Seat(Entity):
    key_fields = ("hall", "row")

    hall: str
    row: int


def test_the_partition_key_of_an_entity_is_built_from_its_key_fields():
    seat = Seat(hall="main", row=5)
    made = [Seat.key_of("main", 5), Seat.key_of("main", row=5), Seat.key_of(row=5, hall="main")]
    assert [("main", 5)] * 4 == [seat.partition_key, *made]
    assert "n1" == Note.key_of("n1") == Note(id="n1").partition_key


class Entry(BaseModel):
    quantity: int


class EntryAdded(DomainEvent):
    entry: Entry
    labels: list[str]


class EntryCounted(DomainEvent):
    entries: tuple[Entry, ...]


class Ledger(Entity):
    entry: Entry

    def created_event(self) -> EntryCounted:
        return EntryCounted(entries=(self.entry,))


def test_a_recorded_event_does_not_change_with_the_objects_in_its_fields():
    entry, labels = Entry(quantity=5), ["new"]
    ledger = Ledger(entry=entry)
    ledger.record(EntryAdded(entry=entry, labels=labels))
    taken = progress_of(ledger).take(ledger.created_event).events
    entry.quantity = 7
    labels.append("changed")

    assert [5, 7] == [event.entries[0].quantity for event in (taken[0], ledger.events[0])]
    assert (5, ["new"]) == (taken[1].entry.quantity, ledger.events[1].labels)


def test_a_coalescing_event_replaces_the_earlier_event_of_its_type():
    note = committed(Note())
    note.tag_as("old")
    note.change("text")
    note.tag_as("new")

    assert [("NoteTagged", "new"), ("NoteChanged", "text")] == [
        (event.action, getattr(event, "tag", None) or event.text) for event in note.events
    ]


def test_an_entity_keeps_the_events_that_were_recorded_during_its_commit():
    for note in (Note(), committed(Note())):
        note.change("before")
        taken = progress_of(note).take(note.created_event)
        note.change("since")
        progress_of(note).note_commit(version=2, etag='"2"', taken=taken)

        assert ["since"] == [event.text for event in note.events]
        assert (2, '"2"', False) == (note.version, note.etag, note.is_new)


def test_a_soft_deletable_entity_cannot_have_a_field_named_delete():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(TypeError, match="named 'delete': SoftDeletable uses that name"):
            type("Hiding", (SoftDeletable,), {"__annotations__": {"delete": bool}, "__module__": __name__})


OWN_NAMES = {name for name in vars(Entity) if not name.startswith("_")} - {
    "model_config",
    *Entity.model_fields,
}


@pytest.mark.parametrize("name", sorted(OWN_NAMES | {"entity_type", "_progress"}))
def test_a_field_with_the_name_of_an_entity_member_is_refused(name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic only warns of such a name, but the library refuses it
        with pytest.raises(TypeError, match=f"named '{name}'"):
            type("Hiding", (Entity,), {"__annotations__": {name: str}, "__module__": __name__})


def test_a_copy_of_an_entity_records_its_own_events():
    """The test also checks that a copy with another id counts as a new entity."""
    note = Note(id="a")
    progress_of(note).note_commit(version=3, etag='"3"', taken=progress_of(note).take(note.created_event))
    same, other, deep = note.model_copy(), note.model_copy(update={"id": "b"}), note.model_copy(deep=True)
    for copied in (same, other, deep):
        copied.change("x")

    assert () == note.events
    assert [(3, '"3"'), (0, None), (3, '"3"')] == [(c.version, c.etag) for c in (same, other, deep)]
    progress_of(note).note_commit(version=4, etag='"4"', taken=progress_of(note).take(note.created_event))
    assert [3, 0, 3] == [copied.version for copied in (same, other, deep)]


def test_an_entity_class_with_a_delete_method_must_be_soft_deletable():
    with pytest.raises(TypeError, match="SoftDeletable"):

        class Archived(Entity):
            is_deleted: bool = False

            def delete(self) -> None:
                self.is_deleted = True


def test_a_deletion_mark_under_another_name_or_type_is_refused():
    """Queries look for the field `deleted`, so it has to be a boolean that is stored under that name."""
    with pytest.raises(TypeError, match="stored under that name"):

        class Aliased(SoftDeletable):
            deleted: bool = Field(default=False, alias="isDeleted")

    with pytest.raises(TypeError, match="stored under that name"):

        class Dated(SoftDeletable):
            deleted: datetime | None = None


class Plan(Entity):
    seat_count: int = 1
    price: int = Field(default=0, validation_alias=AliasChoices("cost", AliasPath("prices", 0)))


class OpenPlan(Plan):
    model_config = ConfigDict(extra="allow")


class OwnPlan(Plan):
    def __init__(self, **data: Any) -> None:
        super().__init__(**data)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seat_cuont": 5}, "Plan has no field 'seat_cuont'. Did you mean seat_count?"),
        ({"etag": "e"}, "Plan has no field 'etag'. Did you mean id or seat_count or price?"),
    ],
)
def test_the_error_of_a_misspelled_argument_names_similar_fields(given: dict[str, Any], said: str):
    with pytest.raises(TypeError) as caught:
        Plan(**given)
    assert said == str(caught.value)


@pytest.mark.parametrize("kind", [Plan, OpenPlan, OwnPlan])
def test_a_stored_document_may_have_fields_that_are_missing_in_its_class(kind: type[Plan]):
    plan = kind.restore({"id": "p", "seatCount": 2, "seatCuont": 5}, version=1, etag='"e"')
    assert 2 == plan.seat_count


def test_a_model_validator_may_take_arguments_that_are_no_fields():
    class Person(Entity):
        name: str

        @model_validator(mode="before")
        @classmethod
        def joined(cls, data: Any) -> Any:
            if "first" in data:
                data["name"] = f"{data.pop('first')} {data.pop('last')}"
            return data

    assert "Ada Lovelace" == Person(first="Ada", last="Lovelace").name
