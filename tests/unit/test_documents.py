from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox import stored_event
from cosmos_outbox.documents import EventMeta, commit_id_of, entity_document, event_document, version_of
from tests.notes import Note, NoteChanged, NoteGlanced

META = EventMeta(
    entity_type="note", entity_id="n", entity_version=7, commit_id="c", sequence=2, correlation_id="r"
)


def test_the_document_of_an_entity_has_exactly_the_shape_of_the_contract():
    assert {
        "id": "n",
        "partitionKey": "n",
        "type": "note",
        "data": {"id": "n", "text": "x", "tag": "", "deleted": False},
        "ttl": -1,
        "version": 7,
    } == entity_document(Note(id="n", text="x"), version=7)


def test_a_commit_that_leaves_no_lasting_event_leaves_its_id_in_the_entity():
    document = entity_document(Note(), version=1, commit_id="c")
    assert ({"commitId": "c"}, "c") == (document["meta"], commit_id_of(document))


def test_the_document_of_an_event_has_exactly_the_shape_of_the_contract():
    event = NoteChanged(id="e", note_id="n", text="x")
    document = event_document(event, partition_key="p", meta=META)

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


def test_an_event_lives_as_long_as_its_type_says():
    assert 5 == event_document(NoteGlanced(note_id="n"), partition_key="p", meta=META)["ttl"]


def test_what_is_written_is_read_back():
    event = NoteChanged(id="e", note_id="n", text="x")
    document = event_document(event, partition_key="p", meta=META)
    read = stored_event({**document, "_lsn": 12, "_ts": 34, "_etag": '"e"'})

    assert read is not None
    assert ("e", "p", "NoteChanged", 864000, (12, 2), 34) == (
        read.id,
        read.partition_key,
        read.action,
        read.ttl,
        read.order,
        read.written_at,
    )
    assert document["data"] == read.data


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


@pytest.mark.parametrize(("document", "version"), [({}, 1), ({"version": 4}, 4), ({"version": "x"}, 1)])
def test_a_version_that_nobody_wrote_is_the_first(document: dict[str, Any], version: int):
    assert version == version_of(document)


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
def test_no_foreign_document_is_mistaken_for_an_event(document: dict[str, Any]):
    assert None is stored_event(document)
    commit_id_of(document)
    assert version_of(document) >= 1
