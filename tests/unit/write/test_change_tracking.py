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
def test_changes_of_one_entity_merge(stored: bool, changes: list[Change], written: list[tuple[str, str]]):
    context, line = IdentityMap(), Line(id="l", book="b")
    if stored:
        committed(line)
    for change in changes:
        context.track(line, change)

    assert written == kinds(context)


@pytest.mark.parametrize(
    ("stored", "then"), [(True, Change.CREATE), (True, Change.UPDATE), (False, Change.UPDATE)]
)
def test_what_was_deleted_can_only_be_created_again_where_it_never_was_stored(stored: bool, then: Change):
    context, line = IdentityMap(), Line(book="b")
    if stored:
        committed(line)
    context.track(line, Change.NONE if stored else Change.CREATE)
    context.track(line, Change.DELETE)
    with pytest.raises(UsageError, match="deleted"):
        context.track(line, then)


def test_two_documents_of_one_id_are_refused_before_anything_is_sent():
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
def test_what_is_asked_for_while_a_commit_is_on_its_way_is_still_to_be_done_after_it(
    then: Change | None, written: list[tuple[str, str]]
):
    context, line = IdentityMap(), Line(id="l", book="b")
    context.track(line, Change.CREATE)
    commit = pending(context)
    if then is not None:
        context.track(line, then)
    settle(context, commit)

    assert written == kinds(context)


def test_replace_and_delete_carry_the_etag_and_create_does_not():
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


def test_events_come_first_and_are_numbered_through_the_commit_over_all_entities():
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


def test_more_operations_than_a_batch_holds_are_refused_with_their_number():
    context, note = IdentityMap(), committed(Note())
    context.track(note)
    for n in range(99):
        note.change(str(n))
    assert 100 == len(kinds(context))

    note.change("one too many")
    with pytest.raises(BatchTooLarge, match="101 operations"):
        pending(context)


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", "\x01"])
def test_more_bytes_than_a_batch_holds_are_refused_with_their_number(character: str):
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
    """An event with as much text as one likes."""

    text: str


@pytest.mark.parametrize("character", ["x", "é"])
def test_an_event_that_could_not_be_set_aside_is_refused_by_its_id(character: str):
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


def test_a_correlation_id_that_no_message_can_carry_is_refused_by_its_name():
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


def test_a_correlation_id_counts_only_where_an_event_carries_it():
    context, line = IdentityMap(), committed(Line(book="b", text="x"))
    context.track(line, Change.UPDATE)
    assert () == pending(context, {"correlationId": "x" * 100_000}).events


def test_an_event_whose_id_no_document_can_have_is_refused():
    context, note = IdentityMap(), committed(Note(id="n"))
    context.track(note)
    note.record(NoteDeleted(id="a/b", note_id="n"))
    with pytest.raises(UsageError, match="'a/b'"):
        pending(context)


def test_a_stored_entity_cannot_move_to_another_partition_key_and_a_new_one_can():
    context, line = IdentityMap(), Line(id="l", book="first")
    context.track(line, Change.CREATE)
    line.book = "second"
    settle(context, pending(context))

    context.track(line, Change.UPDATE)
    line.book = "third"
    with pytest.raises(UsageError, match="'second', and its Line has 'third' now"):
        pending(context)


@pytest.mark.parametrize("minutes", [(30, 60), (60, 30)])
def test_the_event_that_lives_longest_proves_a_commit(minutes: tuple[int, int]):
    context, note = IdentityMap(), committed(Note(id="n"))
    context.track(note)
    for length in minutes:
        note.record(LASTING[length](note_id="n"))
    assert LASTING[60] is type(pending(context).proof)
