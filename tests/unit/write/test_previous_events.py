"""
Each event names the entity's event before it, as it was written, so that a consumer sees what never arrived.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from cosmos_outbox import (
    BatchTooLarge,
    CommitOutcomeUnknown,
    DomainEvent,
    EventSizes,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    UnitOfWork,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Line, Note, NoteChanged, Remark, events, stored

Position = tuple[int | None, int | None]


class LineRead(DomainEvent):
    pass


class Indexed(DomainEvent):
    text: str


def lives(container: MemoryContainer) -> list[str | None]:
    return [event["meta"].get("entityLife") for event in stored(container, "domainEvent")]


def links(container: MemoryContainer, entity_id: str = "n") -> list[tuple[str, Position, Position]]:
    """
    Return the action of each event of an entity, its position and that of the event before.
    """
    found = []
    for event in events(container):
        meta = event["meta"]
        if meta["entityId"] == entity_id:
            position = meta.get("entityVersion"), meta["sequence"]
            before = meta.get("previousVersion"), meta.get("previousSequence")
            found.append((event["data"]["action"], position, before))
    return found


async def kept(container: MemoryContainer) -> dict[str, int] | None:
    position: dict[str, int] | None = (await container.read("n", "n")).get("lastEvent")
    return position


async def changed(container: MemoryContainer, change: Callable[[Note], object]) -> None:
    async with Outbox(container).unit_of_work() as uow:
        change(await uow.repository(Note).read("n"))
        await uow.commit()


async def rewritten(container: MemoryContainer, **changes: Any) -> None:
    """
    Write the note as a program that keeps only what it knows.
    """
    read = await container.read("n", "n")
    document = {name: read[name] for name in ("id", "partitionKey", "type", "data", "ttl")} | changes
    write = Write(kind=WriteKind.REPLACE, id="n", document=document, etag=read["_etag"])
    await container.commit("n", [write])


@pytest.fixture
async def container() -> MemoryContainer:
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Note).create(Note(id="n"))
        await uow.commit()
    return container


async def test_the_first_event_follows_none_and_each_further_one_the_one_before(container: MemoryContainer):
    async with Outbox(container).unit_of_work() as uow:
        note = await uow.repository(Note).read("n")
        note.change("a")
        note.file_as("b")
        await uow.commit()
        note.change("c")
        await uow.commit()
    assert links(container) == [
        ("NoteWritten", (1, 0), (0, 0)),
        ("NoteChanged", (2, 0), (1, 0)),
        ("NoteFiled", (2, 1), (2, 0)),
        ("NoteChanged", (3, 0), (2, 1)),
    ]
    (written,) = stored(container, "note")
    life = written["lastEvent"].pop("life")
    assert {"version": 3, "sequence": 0} == written["lastEvent"]
    assert {life} == {event["meta"]["entityLife"] for event in stored(container, "domainEvent")}
    assert ["id", "partitionKey", "type", "data", "ttl", "version", "lastEvent"] == [*written][:7]


async def test_entities_of_one_commit_have_a_chain_each():
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        for name in ("n", "m"):
            uow.repository(Remark).create(Remark(id=name, book="b")).file_as("x")
        await uow.commit()
        for name in ("m", "n"):
            (await uow.repository(Remark).read(name)).change("y")
        await uow.commit()
    assert [((1, 0), (0, 0)), ((1, 1), (1, 0)), ((2, 0), (1, 1))] == [
        link[1:] for link in links(container, "n")
    ]
    assert [((1, 2), (0, 0)), ((1, 3), (1, 2)), ((2, 1), (1, 3))] == [
        link[1:] for link in links(container, "m")
    ]


async def test_commits_without_an_event_come_between_without_a_trace(container: MemoryContainer):
    def edit(note: Note) -> None:
        note.text += "x"

    for _ in range(2):
        await changed(container, edit)
    await changed(container, lambda note: note.change("y"))
    assert ("NoteChanged", (4, 0), (1, 0)) == links(container)[-1]


async def test_an_entity_that_was_created_without_an_event_has_its_first_one_later():
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        line = uow.repository(Line).create(Line(id="n", book="n"))
        await uow.commit()
        line.record(LineRead())
        await uow.commit()
    assert [("LineRead", (2, 0), (0, 0))] == links(container)


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        (None, [("NoteFiled", (3, 0), (1, 0))]),
        (
            lambda event: Indexed(text=event.text),
            [("Indexed", (2, 0), (1, 0)), ("NoteFiled", (3, 0), (2, 0))],
        ),
        (
            lambda event: [Indexed(text="1"), Indexed(text="2")],
            [("Indexed", (2, 0), (1, 0)), ("Indexed", (2, 1), (2, 0)), ("NoteFiled", (3, 0), (2, 1))],
        ),
    ],
    ids=["nothing", "another", "several"],
)
async def test_what_counts_is_what_is_published(
    container: MemoryContainer, published: Callable[[Any], Any] | None, expected: list[Any]
):
    outbox = Outbox(container)
    outbox.publishes(NoteChanged, published or (lambda event: None))
    async with outbox.unit_of_work() as uow:
        note = await uow.repository(Note).read("n")
        note.change("a")
        await uow.commit()
        note.file_as("b")
        await uow.commit()
    assert expected == links(container)[1:]


async def test_events_that_coalesce_or_that_creation_implies_leave_no_gap():
    container = MemoryContainer()
    async with Outbox(container).unit_of_work() as uow:
        note = uow.repository(Note).create(Note(id="n"))
        note.change("implied")
        note.file_as("x")
        await uow.commit()
        for tag in "abc":
            note.tag_as(tag)
        note.file_as("y")
        await uow.commit()
    assert links(container) == [
        ("NoteWritten", (1, 0), (0, 0)),
        ("NoteFiled", (1, 1), (1, 0)),
        ("NoteTagged", (2, 0), (1, 1)),
        ("NoteFiled", (2, 1), (2, 0)),
    ]


async def test_what_was_listed_and_what_is_marked_as_deleted_go_on_with_their_chain(
    container: MemoryContainer,
):
    async with Outbox(container).unit_of_work() as uow:
        (note,) = (await uow.repository(Note).list("n")).entities
        note.change("listed")
        await uow.commit()
    async with Outbox(container).unit_of_work() as uow:
        await uow.repository(Note).delete("n")
        await uow.commit()
    async with Outbox(container).unit_of_work() as uow:
        (await uow.repository(Note).read("n", include_deleted=True)).file_as("graves")
        await uow.commit()
    assert [(2, 0), (3, 0)] == [before for _, _, before in links(container)[2:]]


@pytest.mark.parametrize("fault", [CommitFault.LOST_AFTER, CommitFault.LOST_BEFORE])
async def test_a_commit_of_unknown_outcome_is_sent_again_as_it_was(
    container: MemoryContainer, fault: CommitFault
):
    store = FaultyStore(container)
    async with Outbox(store, retries=RetryOptions(deadline_seconds=10)).unit_of_work() as uow:
        note = await uow.repository(Note).read("n")
        note.change("a")
        store.commit_faults = [fault, *[CommitFault.LOST_BEFORE] * 100]
        store.read_faults = [ReadFault.UNAVAILABLE] * 100
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
        store.commit_faults, store.read_faults = [], []
        note.change("b")
        await uow.commit()
    assert [((2, 0), (1, 0)), ((3, 0), (2, 0))] == [link[1:] for link in links(container)[1:]]


async def test_what_a_refused_attempt_would_have_written_is_named_by_no_event(container: MemoryContainer):
    async with Outbox(container).unit_of_work() as mine:
        note = await mine.repository(Note).read("n")
        note.change("mine")
        note.file_as("x")
        await changed(container, lambda note: note.change("theirs"))
        with pytest.raises(PreconditionFailed):
            await mine.commit()
    await changed(container, lambda note: note.change("mine again"))
    assert [((2, 0), (1, 0)), ((3, 0), (2, 0))] == [link[1:] for link in links(container)[1:]]


@pytest.mark.parametrize("same_object", [True, False])
async def test_an_entity_that_is_created_again_under_its_id_begins_anew(
    container: MemoryContainer, same_object: bool
):
    async with Outbox(container).unit_of_work() as uow:
        notes = uow.repository(Note)
        (note := await notes.read("n")).change("x")
        await uow.commit()
        await notes.delete("n", hard=True)
        await uow.commit()
        notes.create(note if same_object else Note(id="n")).file_as("y")
        await uow.commit()
    assert links(container)[2:] == [
        ("NoteDeleted", (3, 0), (2, 0)),
        ("NoteWritten", (1, 0), (0, 0)),
        ("NoteFiled", (1, 1), (1, 0)),
    ]
    first, *rest = lives(container)
    assert [first] * 2 == rest[:2]
    assert first != rest[2] == rest[3]


async def test_a_position_that_is_damaged_ends_no_life(container: MemoryContainer):
    life = (await container.read("n", "n"))["lastEvent"]["life"]
    await rewritten(container, version=1, lastEvent={"life": life, "version": "1"})
    await changed(container, lambda note: note.change("a"))
    assert [(None, None)] == [link[2] for link in links(container)[1:]]
    assert [life] * 2 == lives(container)


@pytest.mark.parametrize("theirs", [{}, {"lastEvent": "today"}, {"lastEvent": {"version": 1}}], ids=str)
async def test_after_a_program_that_does_not_keep_the_position_it_is_unknown_until_the_next_event(
    container: MemoryContainer, theirs: dict[str, Any]
):
    await rewritten(container, version=1, **theirs)
    await changed(container, lambda note: note.change("a"))
    await changed(container, lambda note: note.change("b"))
    assert [((2, 0), (None, None)), ((3, 0), (2, 0))] == [link[1:] for link in links(container)[1:]]
    first, second, third = lives(container)
    assert first != second == third  # its versions may have begun again


async def test_a_document_that_counts_no_versions_has_no_position_at_first(container: MemoryContainer):
    await rewritten(container)
    async with Outbox(container).unit_of_work() as uow:
        note = await uow.repository(Note).read("n")
        note.change("a")
        note.file_as("b")
        await uow.commit()
    assert [((2, 0), (None, None)), ((2, 1), (2, 0))] == [link[1:] for link in links(container)[1:]]


async def test_the_position_is_no_edit(container: MemoryContainer):
    async with Outbox(container).unit_of_work() as uow:
        await uow.repository(Note).read("n")
        assert 0 == (await uow.commit()).operations
    await rewritten(container, lastEvent={"version": 1, "sequence": 7})
    async with Outbox(container).unit_of_work() as uow:
        await uow.repository(Note).list("n")
        assert 0 == (await uow.commit()).operations


async def read_own(uow: UnitOfWork) -> dict[str, Any]:
    return await uow.documents().read("n")


async def new_own(uow: UnitOfWork) -> dict[str, Any]:
    return uow.save({"id": "n", "partitionKey": "n", "version": 0})


@pytest.mark.parametrize(
    ("opened", "versions", "expected"),
    [
        (new_own, [1, 2], [((1, 0), (0, 0)), ((1, 1), (1, 0)), ((2, 0), (None, None)), ((2, 1), (2, 0))]),
        (read_own, [5], [((5, 0), (None, None)), ((5, 1), (5, 0))]),
        (new_own, [0], [((0, 0), (None, None)), ((0, 1), (None, None))]),
        (new_own, [None], [((None, 0), (None, None)), ((None, 1), (None, None))]),
    ],
    ids=["created", "read", "counted from 0", "not counted"],
)
async def test_a_document_of_the_applications_own_shape_is_linked_inside_a_commit_and_stored_as_it_is(
    opened: Callable[[UnitOfWork], Awaitable[dict[str, Any]]],
    versions: list[int | None],
    expected: list[tuple[Position, Position]],
):
    container = MemoryContainer()
    if opened is read_own:
        document = {"id": "n", "partitionKey": "n", "version": 4, "lastEvent": {"version": 4, "sequence": 0}}
        await container.commit("n", [Write(kind=WriteKind.CREATE, id="n", document=document)])
    async with Outbox(container).unit_of_work() as uow:
        order = await opened(uow)
        for version in versions:
            order["version"] = version
            for text in "ab":
                uow.record(Indexed(text=text), about=order)
            await uow.commit()
    assert expected == [link[1:] for link in links(container)]
    assert ({"version": 4, "sequence": 0} if opened is read_own else None) == await kept(container)


async def test_a_payload_of_its_own_leaves_the_position_with_the_event():
    container = MemoryContainer()
    sizes = EventSizes(max_message_bytes=8192, claim_check=True)
    async with Outbox(container, sizes=sizes).unit_of_work() as uow:
        uow.repository(Note).create(Note(id="n", text="x" * 10_000)).file_as("y")
        await uow.commit()
    assert [(0, 0), (1, 0)] == [before for _, _, before in links(container)]
    assert "claimCheck" in events(container)[0]["meta"]


class Watched:
    """
    Next to the container: keeps what was last written.
    """

    def __init__(self, container: MemoryContainer) -> None:
        self._container, self.read, self.key_paths = container, container.read, container.key_paths
        self.query, self.list = container.query, container.list
        self.writes: Sequence[Write] = ()

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        self.writes = writes
        return await self._container.commit(partition_key, writes)


async def test_the_limit_of_a_batch_counts_the_position(
    container: MemoryContainer, monkeypatch: pytest.MonkeyPatch
):
    store = Watched(container)
    async with Outbox(store).unit_of_work() as uow:
        (await uow.repository(Note).read("n")).change("a")
        with monkeypatch.context() as smaller:
            smaller.setattr("cosmos_outbox.write.batch.MAX_BATCH_BYTES", 1)
            with pytest.raises(BatchTooLarge) as refused:
                await uow.commit()
        await uow.commit()
    named = sum(len(write.id) + len(write.etag or "") + 64 for write in store.writes)
    written = sum(len(json.dumps(write.document, separators=(",", ":"))) for write in store.writes)
    assert named + written == refused.value.size_bytes
