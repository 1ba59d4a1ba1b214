from __future__ import annotations

from uuid import uuid4

import pytest

from cosmos_outbox import (
    Conflict,
    Entity,
    NotFound,
    NotModified,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    StoreUnavailable,
    UnreadableDocument,
    UsageError,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.ports import Write, WriteKind
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Line, Note, Remark, actions, stored, written


async def test_a_second_read_returns_the_same_object_without_a_request():
    await written(container := MemoryContainer(), note := Note())
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        first = await uow.repository(Note).read(note.id)
        assert first is await uow.repository(Note).read(note.id)
        with pytest.raises(NotModified):
            await uow.repository(Note).read(note.id, if_none_match=first.etag)
    assert 1 == store.reads


async def test_missing_and_deleted_entities_are_not_found():
    """A document of another entity type is not found either."""
    await written(container := MemoryContainer(), note := Note())
    async with Outbox(container).unit_of_work() as uow:
        with pytest.raises(NotFound):
            await uow.repository(Note).read("missing")
        with pytest.raises(NotFound):
            await uow.repository(Line).read(note.id)
        with pytest.raises(NotFound):
            await uow.repository(Note).delete("missing")
        await uow.repository(Note).delete(note.id)
        await uow.commit()
        with pytest.raises(NotFound):
            await uow.repository(Note).read(note.id)
        found = [await uow.repository(Note).find(one) for one in ("missing", note.id)]
        assert [None, None, None] == [*found, await uow.repository(Line).find(note.id, partition_key="b")]
        assert note.id == (await uow.repository(Note).find(note.id, include_deleted=True)).id
        assert (await uow.repository(Note).read(note.id, include_deleted=True)).deleted


async def test_an_entity_deleted_in_the_unit_of_work_is_not_found_without_its_key():
    async with Outbox(MemoryContainer()).unit_of_work() as uow:
        remarks = uow.repository(Remark)
        remarks.create(Remark(id="n", book="b"))
        await uow.commit()
        await remarks.delete("n")
        assert await remarks.find("n") is None
        with pytest.raises(UsageError, match="so 'other' cannot be found without it"):
            await remarks.find("other")
        await uow.commit()


async def test_an_update_with_a_wrong_etag_is_refused_with_both_etags():
    await written(container := MemoryContainer(), note := Note())
    async with Outbox(container).unit_of_work() as uow:
        read = await uow.repository(Note).read(note.id)
        with pytest.raises(PreconditionFailed) as caught:
            uow.repository(Note).update(read, '"other"')
        with pytest.raises(PreconditionFailed):
            await uow.repository(Note).delete(note.id, '"other"')
    assert ('"other"', note.etag) == (caught.value.expected, caught.value.actual)


async def test_a_soft_delete_keeps_the_document():
    """The test also checks that a hard delete removes the document, and that each kind of deletion records the deletion event."""
    container = MemoryContainer()
    soft, hard = Note(id="soft"), Note(id="hard")
    await written(container, soft, hard)
    for note in (soft, hard):
        async with Outbox(container).unit_of_work() as uow:
            await uow.repository(Note).delete(note.id, note.etag, hard=note is hard)
            await uow.commit()

    assert [("soft", True)] == [(d["id"], d["data"]["deleted"]) for d in stored(container, "note")]
    assert ["NoteWritten", "NoteDeleted"] == actions(container, "soft") == actions(container, "hard")


async def test_an_entity_that_the_unit_of_work_deletes_for_good_is_not_found():
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        lines = uow.repository(Line)
        lines.create(Line(id="l", book="b"))
        await uow.commit()
        await lines.delete("l", partition_key="b")
        with pytest.raises(NotFound):
            await lines.read("l", partition_key="b")
        with pytest.raises(NotFound):
            await lines.delete("l", partition_key="b")
        await lines.delete("l", partition_key="b", hard=True)
        assert 1 == (await uow.commit()).operations
        assert 0 == (await uow.commit()).operations
    assert () == container.documents()


async def test_pages_of_all_keys_omit_deleted_entities():
    container = MemoryContainer(ranges=2)
    await written(container, *(Note(id=f"n{n}") for n in range(5)))
    async with Outbox(container).unit_of_work() as uow:
        notes = uow.repository(Note)
        await notes.delete("n2")
        await uow.commit()
        first = await notes.page_of_all_keys(3)
        second = await notes.page_of_all_keys(3, first.continuation)
        assert ["n0", "n1", "n3"] == [note.id for note in first.entities]
        assert (["n4"], None) == ([note.id for note in second.entities], second.continuation)
        assert 5 == len((await notes.page_of_all_keys(10, include_deleted=True)).entities)


async def test_reads_are_repeated_until_the_deadline():
    await written(container := MemoryContainer(), note := Note())
    store = FaultyStore(container, reads=[ReadFault.UNAVAILABLE, ReadFault.HANGING])
    async with Outbox(store).unit_of_work() as uow:
        await uow.repository(Note).read(note.id)
    assert 3 == store.reads

    store.read_faults = [ReadFault.UNAVAILABLE] * 1000
    async with Outbox(store, retries=RetryOptions(deadline_seconds=4)).unit_of_work() as uow:
        with pytest.raises(StoreUnavailable):
            await uow.repository(Note).read(note.id)


@pytest.mark.parametrize("fault", [None, CommitFault.LOST_AFTER])
async def test_an_entity_deleted_for_good_cannot_overwrite_its_successor(
    fault: CommitFault | None,
):
    """The deleted object counts as new, so creating it again conflicts with a document that took its id."""
    container, note = MemoryContainer(), Note(id="n", text="mine")
    store = FaultyStore(container, [None, fault])
    uow = Outbox(store).unit_of_work()
    notes = uow.repository(Note)
    notes.create(note)
    await uow.commit()
    await notes.delete("n", hard=True)
    await uow.commit()
    assert (True, None, None) == (note.is_new, note.etag, note.stored)

    await written(container, theirs := Note(id="n", text="theirs"))
    with pytest.raises(UsageError, match="neither read nor created"):
        notes.update(note)
    notes.create(note)
    with pytest.raises(Conflict):
        await uow.commit()
    assert ["theirs"] == [document["data"]["text"] for document in stored(container, "note")]

    async with Outbox(container).unit_of_work() as others:
        await others.repository(Note).delete(theirs.id, hard=True)
        await others.commit()
    notes.create(note)
    assert ["NoteWritten"] == [event.action for event in (await uow.commit()).events[:1]]
    assert (1, 1) == (note.version, stored(container, "note")[0]["version"])


@pytest.mark.parametrize("hard", [False, True])
async def test_a_stored_entity_without_an_etag_is_not_written(hard: bool):
    await written(container := MemoryContainer(), Note(id="n", text="theirs"))
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Note).update(Note.restore({"id": "n"}, version=1, etag=None))
        if hard:
            await uow.repository(Note).delete("n", hard=True)
        with pytest.raises(UsageError, match="no etag"):
            await uow.commit()
    assert ["theirs"] == [document["data"]["text"] for document in stored(container, "note")]


async def test_an_entity_that_was_read_as_one_class_cannot_be_read_as_another():
    class Postcard(Note):
        entity_type = "note"

    await written(container := MemoryContainer(), Note(id="n"))
    async with Outbox(container).unit_of_work() as uow:
        await uow.repository(Note).read("n")
        with pytest.raises(UsageError, match=r"Note, so it cannot read it as .*Postcard too"):
            await uow.repository(Postcard).read("n")


class Letter(Entity):
    pages: int = 1


def a_letter_of_another_kind() -> type[Entity]:
    class Letter(Entity):
        words: int = 0

    return Letter


async def test_two_classes_with_the_same_entity_type_are_refused_in_one_outbox():
    outbox = Outbox(MemoryContainer())
    async with outbox.unit_of_work() as uow:
        uow.repository(Letter).create(Letter(id="l"))
        await uow.commit()
    async with outbox.unit_of_work() as uow:
        with pytest.raises(UsageError, match=r"Letter and Letter are both.*'letter'.*another `entity_type`"):
            uow.repository(a_letter_of_another_kind())


async def test_a_subclass_and_a_redefined_class_may_share_the_entity_type():
    class ShortLetter(Letter):
        entity_type = "letter"

    for kinds in (
        [Letter, ShortLetter],
        [ShortLetter, Letter],
        [a_letter_of_another_kind() for _ in range(2)],
    ):
        async with Outbox(MemoryContainer()).unit_of_work() as uow:
            for kind in kinds:
                uow.repository(kind).create(kind(id=str(uuid4())))
                await uow.commit()


async def test_a_read_of_an_invalid_id_is_refused_without_a_request():
    store = FaultyStore(MemoryContainer())
    async with Outbox(store).unit_of_work() as uow:
        with pytest.raises(UsageError, match="'a/b'"):
            await uow.repository(Note).read("a/b")
    assert 0 == store.reads


@pytest.mark.parametrize("data", [{}, {"id": "other"}])
async def test_an_entity_gets_its_id_from_the_document_and_not_from_its_data(
    data: dict[str, str],
):
    container = MemoryContainer()
    document = {"id": "n", "partitionKey": "n", "type": "note", "data": data}
    await container.commit("n", [Write(kind=WriteKind.CREATE, id="n", document=document)])
    async with Outbox(container).unit_of_work() as uow:
        note = await uow.repository(Note).read("n")
        note.change("new")
        await uow.commit()
    assert {"id": "n", "text": "new"}.items() <= stored(container, "note")[0]["data"].items()


class Parcel(Entity):
    weights: list[int]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"data": {"weights": [1, "heavy"]}}, "weights.1"),
        ({"data": {}}, "weights"),
        ({"data": "parcel"}, "data"),
        ({}, "data"),
    ],
)
async def test_the_error_of_an_unreadable_document_names_its_partition_key_and_field(
    document: dict[str, object], field: str
):
    container = MemoryContainer()
    damaged = {"id": "p", "partitionKey": "k", "type": "parcel", **document}
    await container.commit("k", [Write(kind=WriteKind.CREATE, id="p", document=damaged)])
    async with Outbox(container).unit_of_work() as uow:
        with pytest.raises(UnreadableDocument, match=f"parcel 'p' of partition key 'k'.*{field}") as caught:
            await uow.repository(Parcel).read("p", partition_key="k")
    error = caught.value
    assert ("p", "k", field) == (error.document_id, error.partition_key, error.field)


async def test_a_page_with_an_unreadable_document_returns_the_other_entities():
    """The error of the document is in `page.unreadable`."""
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        for name in ("a", "c"):
            uow.rollback()
            uow.repository(Parcel).create(Parcel(id=name, weights=[]))
            await uow.commit()
        damaged = {"id": "b", "partitionKey": "b", "type": "parcel", "data": {"weights": None}}
        await container.commit("b", [Write(kind=WriteKind.CREATE, id="b", document=damaged)])
        page = await uow.repository(Parcel).page_of_all_keys()
    assert ["a", "c"] == [parcel.id for parcel in page.entities]
    assert [("b", "weights")] == [(error.document_id, error.field) for error in page.unreadable]
