from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta

import pytest

from cosmos_outbox import DomainEvent, UsageError
from cosmos_outbox.domain.entities import progress_of
from cosmos_outbox.errors import BatchTooLarge, EventTooLarge
from cosmos_outbox.partition_key import ON_PARTITION_KEY
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_EVENT_BYTES, WriteKind
from cosmos_outbox.write.change_tracking import Change, IdentityMap
from cosmos_outbox.write.commit_batch import CommitBatch, assemble
from cosmos_outbox.write.event_sizes import EventSizes
from tests.support.notes import Line, Note, NoteDeleted, NoteEvent, Remark

PREMIUM = EventSizes(max_message_bytes=100 * 1024 * 1024)


def pending(context: IdentityMap, correlation: Mapping[str, str] | None = None) -> CommitBatch:
    return assemble(
        [tracked.part(ON_PARTITION_KEY) for tracked in context.changes()],
        correlation=correlation or {},
        published={},
        sizes=PREMIUM,
        paths=ON_PARTITION_KEY,
    )


def settle(context: IdentityMap, commit: CommitBatch) -> None:
    context.mark_written(commit.parts, commit.partition_key, {"l": '"1"'})


def kinds(context: IdentityMap) -> list[tuple[str, str]]:
    if not context.changes():
        return []
    return [(write.kind.value, write.id) for write in pending(context).writes]


def committed(entity: Note | Line) -> Note | Line:
    progress_of(entity).note_commit(
        version=1, etag='"1"', taken=progress_of(entity).take(entity.created_event)
    )
    return entity


@pytest.mark.parametrize(
    ("stored", "changes", "written"),
    [
        (False, [Change.CREATE, Change.CREATE, Change.UPDATE], [("Create", "l")]),
        (False, [Change.CREATE, Change.DELETE], []),
        (False, [Change.CREATE, Change.DELETE, Change.CREATE], [("Create", "l")]),
        (True, [Change.NONE], []),
        (True, [Change.NONE, Change.UPDATE], [("Replace", "l")]),
        (True, [Change.UPDATE, Change.NONE], [("Replace", "l")]),
        (True, [Change.UPDATE, Change.DELETE], [("Delete", "l")]),
        (True, [Change.DELETE, Change.DELETE, Change.NONE], [("Delete", "l")]),
    ],
)
def test_several_changes_of_one_entity_give_one_write(
    stored: bool, changes: list[Change], written: list[tuple[str, str]]
):
    context, line = IdentityMap(), Line(id="l", book="b")
    if stored:
        committed(line)
    for change in changes:
        context.track(line, change)

    assert written == kinds(context)


@pytest.mark.parametrize(
    ("stored", "then"), [(True, Change.CREATE), (True, Change.UPDATE), (False, Change.UPDATE)]
)
def test_a_deleted_entity_cannot_be_changed_before_the_commit(stored: bool, then: Change):
    """A deleted entity can be created again only if it was never stored."""
    context, line = IdentityMap(), Line(book="b")
    if stored:
        committed(line)
    context.track(line, Change.NONE if stored else Change.CREATE)
    context.track(line, Change.DELETE)
    with pytest.raises(UsageError, match="deleted"):
        context.track(line, then)


def test_two_documents_with_one_id_are_refused_before_a_request_is_sent():
    context = IdentityMap()
    context.track(Line(id="x", book="x"), Change.CREATE)
    context.track(Note(id="x"), Change.CREATE)
    with pytest.raises(UsageError, match="'x'"):
        pending(context)


@pytest.mark.parametrize(
    ("then", "written"),
    [
        (None, []),
        (Change.UPDATE, [("Replace", "l")]),
        (Change.DELETE, [("Delete", "l")]),
    ],
)
def test_changes_during_a_commit_are_still_pending_after_it(
    then: Change | None, written: list[tuple[str, str]]
):
    context, line = IdentityMap(), Line(id="l", book="b")
    context.track(line, Change.CREATE)
    commit = pending(context)
    if then is not None:
        context.track(line, then)
    settle(context, commit)

    assert written == kinds(context)


def test_replace_and_delete_operations_have_the_etag_of_the_document():
    context = IdentityMap()
    lines = [
        Line(id="new", book="b"),
        committed(Line(id="old", book="b")),
        committed(Line(id="gone", book="b")),
    ]
    for line, change in zip(lines, (Change.CREATE, Change.UPDATE, Change.DELETE), strict=True):
        context.track(line, change)

    commit = pending(context)
    assert [
        (WriteKind.CREATE, None, False),
        (WriteKind.REPLACE, '"1"', False),
        (WriteKind.DELETE, '"1"', True),
    ] == [(write.kind, write.etag, write.document is None) for write in commit.writes]


def test_the_events_of_a_commit_are_numbered_across_its_entities():
    """Two entities with two events each give the numbers 0 to 3. In the batch, all events come before the entities."""
    context = IdentityMap()
    notes = [committed(Note(id="a")), committed(Remark(id="b", book="a"))]
    for note in notes:
        context.track(note)
        note.change("1")
        note.change("2")

    commit = pending(context)
    metas = [write.document["meta"] for write in commit.writes[:4]]
    assert [0, 1, 2, 3] == [meta["sequence"] for meta in metas]
    assert ["a", "a", "b", "b"] == [meta["entityId"] for meta in metas]
    assert [2, 2, 2, 2] == [meta["entityVersion"] for meta in metas]
    assert {commit.commit_id} == {meta["commitId"] for meta in metas}
    assert ["a", "b"] == [write.id for write in commit.writes[4:]]


def test_a_commit_with_more_than_100_operations_is_refused():
    context, note = IdentityMap(), committed(Note())
    context.track(note)
    for n in range(99):
        note.change(str(n))
    assert 100 == len(kinds(context))

    note.change("one too many")
    with pytest.raises(BatchTooLarge, match="101 operations"):
        pending(context)


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", "\x01"])
def test_the_error_for_a_commit_that_is_larger_than_a_batch_says_its_size(character: str):
    context = IdentityMap()
    as_sent = len(json.dumps(character)) - 2
    context.track(Line(book="b", text=character * (MAX_BATCH_BYTES // as_sent)), Change.CREATE)
    with pytest.raises(BatchTooLarge) as caught:
        pending(context)
    (size,) = re.findall(r"and (\d+) bytes;", str(caught.value))
    assert int(size) > MAX_BATCH_BYTES


class HalfAnHour(NoteEvent):
    ttl = timedelta(minutes=30)


class Hour(NoteEvent):
    ttl = timedelta(hours=1)


LASTING = {30: HalfAnHour, 60: Hour}


class Grown(DomainEvent):
    """An event with a text of any length."""

    text: str


@pytest.mark.parametrize("character", ["x", "é"])
def test_an_event_that_is_too_large_to_be_parked_is_refused(character: str):
    as_sent = len(json.dumps(character)) - 2
    for spare, refused in ((-10_000, False), (10, True)):
        context, note = IdentityMap(), committed(Note(id="n"))
        context.track(note)
        note.record(Grown(id="large", text=character * ((MAX_EVENT_BYTES + spare) // as_sent)))
        if refused:
            with pytest.raises(EventTooLarge, match="Grown 'large' of partition key 'n' takes"):
                pending(context)
        else:
            assert ["large"] == [event.id for event in pending(context).events]


def test_a_correlation_id_that_is_too_long_for_a_message_is_refused():
    context, note = IdentityMap(), committed(Note(id="n"))
    context.track(note)
    note.change("more")
    for text, names, refused in (
        ("x" * 24_000, 1, False),
        ("x" * 25_000, 1, True),
        ("é" * 12_500, 1, True),
        ("x" * 8_000, 3, False),
        ("x" * 9_000, 3, True),
    ):
        correlation = dict.fromkeys(("correlationId", "causationId", "tracestate")[:names], text)
        if refused:
            with pytest.raises(EventTooLarge, match="correlationId"):
                pending(context, correlation)
        else:
            assert pending(context, correlation)


def test_a_long_correlation_id_is_accepted_in_a_commit_without_events():
    context, line = IdentityMap(), committed(Line(book="b", text="x"))
    context.track(line, Change.UPDATE)
    assert () == pending(context, {"correlationId": "x" * 100_000}).events


def test_an_event_with_an_invalid_document_id_is_refused():
    context, note = IdentityMap(), committed(Note(id="n"))
    context.track(note)
    note.record(NoteDeleted(id="a/b", note_id="n"))
    with pytest.raises(UsageError, match="'a/b'"):
        pending(context)


def test_a_stored_entity_cannot_change_its_partition_key():
    """A new entity may change its partition key until it is committed."""
    context, line = IdentityMap(), Line(id="l", book="first")
    context.track(line, Change.CREATE)
    line.book = "second"
    settle(context, pending(context))

    context.track(line, Change.UPDATE)
    line.book = "third"
    with pytest.raises(UsageError, match="'second', and its Line has 'third' now"):
        pending(context)


@pytest.mark.parametrize("minutes", [(30, 60), (60, 30)])
def test_the_event_with_the_longest_time_to_live_proves_the_commit(minutes: tuple[int, int]):
    context, note = IdentityMap(), committed(Note(id="n"))
    context.track(note)
    for length in minutes:
        note.record(LASTING[length](note_id="n"))
    assert LASTING[60] is type(pending(context).proof)
