from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, Field

from cosmos_outbox import Entity, stored_event
from cosmos_outbox.stored_documents import (
    claims_to_be_an_event,
    comparable,
    entity_data,
    entity_document,
    event_document,
    event_meta,
)
from cosmos_outbox.write.commit import commit_id_of
from cosmos_outbox.write.repository import version_of
from tests.support.notes import Note, NoteChanged, NoteGlanced

META = event_meta("note", "n", version=7, commit_id="c", correlation={"correlationId": "r"})


def document_of(entity: Entity, *, version: int) -> dict[str, Any]:
    key_fields = {"partitionKey": entity.partition_key}
    return entity_document(entity, entity.stored, version=version, key_fields=key_fields)


def test_the_document_of_an_entity_has_the_documented_shape():
    assert {
        "id": "n",
        "partitionKey": "n",
        "type": "note",
        "data": {"id": "n", "text": "x", "tag": "", "deleted": False},
        "ttl": -1,
        "version": 7,
    } == document_of(Note(id="n", text="x"), version=7)


def test_the_json_of_documents_with_the_default_partition_key_path_stays_as_it_is():
    note = Note(id="n", text="x")
    written = json.dumps(document_of(note, version=7), separators=(",", ":"))
    assert written == (
        '{"id":"n","partitionKey":"n","type":"note","data":{"id":"n","deleted":false,"text":"x","tag":""},'
        '"ttl":-1,"version":7}'
    )
    event = NoteGlanced(id="e", note_id="n")
    document = event_document(event, key_fields={"partitionKey": "[5]"}, meta=META, sequence=2)
    assert ["id", "partitionKey", "type", "data", "ttl", "meta"] == [*document]
    assert "[5]" == document["partitionKey"]
    stored = stored_event(document)
    assert stored is not None
    assert "[5]" == stored.partition_key


def restored(document: dict[str, Any]) -> Note:
    return Note.restore(document["data"], version=version_of(document), etag='"1"', stored=document)


def test_fields_that_other_programs_added_to_an_entity_are_kept():
    """Only the system fields of Cosmos DB, such as `_ts`, are not written back."""
    note = restored(
        {
            "id": "n",
            "partitionKey": "n",
            "type": "note",
            "data": {"id": "n", "text": "old", "tag": "", "deleted": False, "addedByV2": {"x": 1}},
            "ttl": -1,
            "version": 3,
            "tenant": "t",
            "meta": {"by": "another program", "commits": [{"version": 2, "id": "c"}]},
            **dict.fromkeys(("_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"), "service"),
        }
    )
    note.text = "new"

    assert {
        "id": "n",
        "partitionKey": "n",
        "type": "note",
        "data": {"id": "n", "text": "new", "tag": "", "deleted": False, "addedByV2": {"x": 1}},
        "ttl": -1,
        "version": 4,
        "tenant": "t",
        "meta": {"by": "another program", "commits": [{"version": 2, "id": "c"}]},
    } == document_of(note, version=4)


class Subscriber(Entity):
    wants: object = None
    e_mail: str | None = Field(default=None, exclude_if=lambda value: value is None)
    looked_up: str = Field(default="", exclude=True)


def test_a_field_that_an_entity_no_longer_writes_is_removed_from_its_document():
    stored = {"data": {"id": "s", "eMail": "x@y", "lookedUp": "by another program"}}
    subscriber = Subscriber.restore(stored["data"], version=1, etag='"1"', stored=stored)
    subscriber.e_mail = None

    data = document_of(subscriber, version=2)["data"]
    assert {"id": "s", "wants": None, "lookedUp": "by another program"} == data


class Bag(Entity):
    model_config = ConfigDict(extra="allow")


def test_a_field_removed_from_an_entity_with_extra_fields_does_not_come_back():
    stored = {"data": {"id": "b", "kept": 1, "dropped": 2}}
    bag = Bag.restore(stored["data"], version=1, etag='"1"', stored=stored)
    before = _state(bag)
    del bag.dropped

    assert {"id": "b", "kept": 1} == document_of(bag, version=2)["data"]
    assert _state(bag) != before


def _state(entity: Entity) -> bytes | None:
    return comparable(entity, entity_data(entity, entity.stored))


@pytest.mark.parametrize("edit", [{"e_mail": None}, {"wants": True}, {"wants": [1]}, {"wants": 2}], ids=str)
def test_an_entity_counts_as_changed_if_its_json_changed(edit: dict[str, object]):
    subscriber = Subscriber(id="s", e_mail="x@y", wants=1)
    before = _state(subscriber)
    assert before == _state(subscriber)

    for name, value in edit.items():
        setattr(subscriber, name, value)
    assert _state(subscriber) != before


def test_the_document_of_an_event_has_the_documented_shape():
    event = NoteChanged(id="e", note_id="n", text="x")
    document = event_document(event, key_fields={"partitionKey": "p"}, meta=META, sequence=2)

    assert {
        "id": "e",
        "partitionKey": "p",
        "type": "domainEvent",
        "ttl": 864000,
        "data": {
            "id": "e",
            "action": "NoteChanged",
            "createdAt": document["data"]["createdAt"],
            "noteId": "n",
            "text": "x",
        },
        "meta": {
            "entityType": "note",
            "entityId": "n",
            "entityVersion": 7,
            "commitId": "c",
            "sequence": 2,
            "schemaVersion": 1,
            "correlationId": "r",
        },
    } == document
    assert "c" == commit_id_of(document)


def test_a_written_event_is_read_back_unchanged():
    event = NoteChanged(id="e", note_id="n", text="x")
    document = event_document(event, key_fields={"partitionKey": "p"}, meta=META, sequence=2)
    read = stored_event({**document, "_lsn": 12, "_ts": 34, "_etag": '"e"'})

    assert read is not None
    assert ("e", "p", "NoteChanged", (12, 2)) == (read.id, read.partition_key, read.action, read.order)
    assert (864000, document["data"]) == (document["ttl"], read.data)


def test_an_event_of_the_dotnet_sample_is_read_without_meta():
    read = stored_event(
        {
            "id": "e",
            "partitionKey": "p",
            "type": "domainEvent",
            "data": {"contactId": "p", "action": "ContactCreatedEvent", "id": "e", "createdAt": "2021-01-01"},
            "ttl": 120,
            "_lsn": 3,
        }
    )
    assert read is not None
    assert ("ContactCreatedEvent", {}, (3, 0)) == (read.action, read.meta, read.order)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["id", "partitionKey", "type", "data", "meta", "ttl", "version"]), anything
    )
)
def test_documents_of_other_kinds_are_not_read_as_events(document: dict[str, Any]):
    assert None is stored_event(document)
    commit_id_of(document)
    assert version_of(document) >= 1


def is_malformed_event(document: dict[str, Any]) -> bool:
    return claims_to_be_an_event(document) and stored_event(document) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": None},
        {"data": "text"},
        {"data": [1]},
        {"id": None},
        {"partitionKey": None},
        {"partitionKey": {}},
    ],
)
def test_an_event_document_with_invalid_fields_is_malformed(wrong: dict[str, Any]):
    event = {"id": "e", "partitionKey": "k", "type": "domainEvent", "data": {"action": "a"}}
    assert (False, True) == (is_malformed_event(event), is_malformed_event(event | wrong))
    assert not is_malformed_event({"id": "e", "partitionKey": "k", "type": "domainEvent", "data": {}})
    assert not is_malformed_event({"type": "contact"} | wrong)
