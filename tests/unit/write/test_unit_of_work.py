from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cosmos_outbox import (
    DomainEvent,
    Outbox,
    Repository,
    StoreUnavailable,
    UnitOfWork,
    UsageError,
    correlated,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.errors import MixedPartitionKeys, SharedUnitOfWork
from cosmos_outbox.write.event_handlers import MAX_CHAIN
from tests.support.faulty_store import CommitFault, FaultyStore
from tests.support.notes import (
    Line,
    Note,
    NoteChanged,
    NoteEvent,
    NoteTagged,
    actions,
    events,
    stored,
    written,
)


class NotesUnitOfWork(UnitOfWork):
    @property
    def notes(self) -> Repository[Note]:
        return self.repository(Note)


class NoteAnnounced(DomainEvent):
    headline: str


@pytest.fixture
def container() -> MemoryContainer:
    return MemoryContainer()


async def test_an_entity_and_its_events_are_committed_in_one_request(container: MemoryContainer):
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work(NotesUnitOfWork) as uow:
        note = uow.notes.create(Note(text="x"))
        await uow.commit()
        note.change("y")
        note.change("z")
        commit = await uow.commit()

    assert 2 == store.commits
    assert (3, ["NoteChanged", "NoteChanged"]) == (commit.operations, [e.action for e in commit.events])
    assert [(1, 0), (2, 0), (2, 1)] == [
        (event["meta"]["entityVersion"], event["meta"]["sequence"]) for event in events(container)
    ]
    assert {commit.id} == {event["meta"]["commitId"] for event in events(container)[1:]}


async def test_nothing_is_written_without_a_commit(container: MemoryContainer):
    async with Outbox(container).unit_of_work(NotesUnitOfWork) as uow:
        uow.notes.create(Note())
    assert () == container.documents()


async def test_a_failed_commit_keeps_the_pending_changes_and_event_ids(
    container: MemoryContainer,
):
    store = FaultyStore(container, [CommitFault.REFUSED] * 1000)
    async with Outbox(store).unit_of_work(NotesUnitOfWork) as uow:
        note = uow.notes.create(Note(id="n"))
        expected = [event.id for event in note.events]
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await uow.commit()
        assert expected == [event.id for event in note.events]
        store.commit_faults.clear()
        await uow.commit()

    assert expected == [event["id"] for event in events(container)]


async def test_a_commit_of_two_partition_keys_is_refused_before_a_request_is_sent(container: MemoryContainer):
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work(NotesUnitOfWork) as uow:
        uow.notes.create(Note(id="a"))
        uow.notes.create(Note(id="b"))
        with pytest.raises(MixedPartitionKeys, match=r"'a'.*'b'"):
            await uow.commit()
    assert 0 == store.commits


async def test_a_unit_of_work_cannot_be_used_by_two_tasks_at_once(
    container: MemoryContainer,
):
    store = FaultyStore(container, [CommitFault.HANGING_AFTER])
    async with Outbox(store).unit_of_work(NotesUnitOfWork) as uow:
        uow.notes.create(Note(id="n"))
        committing = asyncio.create_task(uow.commit())
        await asyncio.sleep(0.01)
        with pytest.raises(SharedUnitOfWork):
            await uow.commit()
        with pytest.raises(SharedUnitOfWork):
            await uow.notes.read("other")
        with pytest.raises(SharedUnitOfWork):
            uow.notes.create(Note())
        with pytest.raises(SharedUnitOfWork):
            uow.rollback()
        await committing
        await uow.notes.read("n")


# Tests of event handlers, which run inside of `commit`


async def tag(event: NoteChanged, uow: UnitOfWork) -> None:
    (await uow.repository(Note).read(event.note_id)).tag_as(f"about {event.text}")


async def test_event_handlers_add_documents_to_the_batch_of_the_commit(
    container: MemoryContainer,
):
    outbox = Outbox(container)

    def add_line(event: NoteChanged, uow: UnitOfWork) -> None:
        uow.repository(Line).create(Line(book=event.note_id, text=event.text))

    outbox.on(NoteChanged, add_line)
    outbox.on(NoteChanged, tag)
    async with outbox.unit_of_work(NotesUnitOfWork) as uow:
        note = uow.notes.create(Note())
        await uow.commit()
        note.change("x")
        await uow.commit()

    assert ["NoteWritten", "NoteChanged", "NoteTagged"] == actions(container)
    assert ["x"] == [document["data"]["text"] for document in stored(container, "line")]
    assert 1 == len({document["_lsn"] for document in container.documents()} - {1})


@pytest.mark.parametrize("rolled_back", [False, True])
async def test_an_event_handler_sees_an_event_once_although_the_commit_is_repeated(
    container: MemoryContainer, rolled_back: bool
):
    """The test also checks that the handler sees the event again after a rollback."""
    store = FaultyStore(container, [CommitFault.REFUSED] * 1000)
    outbox, seen = Outbox(store), []
    outbox.on(NoteEvent, lambda event, uow: seen.append(event.id))
    async with outbox.unit_of_work(NotesUnitOfWork) as uow:
        note = uow.notes.create(Note())
        with pytest.raises(StoreUnavailable, match="again"):
            await uow.commit()
        if rolled_back:
            uow.rollback()
            uow.notes.create(note)
        store.commit_faults.clear()
        commit = await uow.commit()

    assert [commit.events[0].id] * (1 + rolled_back) == seen


async def test_event_handlers_that_record_more_than_100_events_are_stopped(
    container: MemoryContainer,
):
    outbox, calls = Outbox(container), 0

    async def change_twice(event: NoteChanged, uow: UnitOfWork) -> None:
        nonlocal calls
        calls += 1
        note = await uow.repository(Note).read(event.note_id)
        note.change("x")
        note.change("y")

    outbox.on(NoteChanged, change_twice)
    async with outbox.unit_of_work(NotesUnitOfWork) as uow:
        note = uow.notes.create(Note())
        await uow.commit()
        note.change("begin")
        with pytest.raises(UsageError, match=r"more than 100 events .* NoteChanged -> NoteChanged"):
            await uow.commit()
    assert 51 == calls


async def test_a_chain_of_more_than_sixteen_events_is_refused_as_endless(container: MemoryContainer):
    outbox, lengths = Outbox(container), [MAX_CHAIN, MAX_CHAIN + 1]

    async def change(event: NoteChanged, uow: UnitOfWork) -> None:
        if int(event.text) < length:
            (await uow.repository(Note).read(event.note_id)).change(str(int(event.text) + 1))

    outbox.on(NoteChanged, change)
    async with outbox.unit_of_work(NotesUnitOfWork) as uow:
        note = uow.notes.create(Note())
        await uow.commit()
        length = lengths[0]
        note.change("1")
        assert MAX_CHAIN == len((await uow.commit()).events)
        length = lengths[1]
        note.change("1")
        with pytest.raises(UsageError, match="without end"):
            await uow.commit()


async def test_an_event_handler_that_commits_gets_an_error(container: MemoryContainer):
    outbox = Outbox(container)

    async def commit(event: NoteEvent, uow: UnitOfWork) -> None:
        await uow.commit()

    outbox.on(NoteEvent, commit)
    async with outbox.unit_of_work(NotesUnitOfWork) as uow:
        uow.notes.create(Note())
        with pytest.raises(UsageError, match="handler called commit"):
            await uow.commit()
    assert () == container.documents()


async def test_an_error_in_a_unit_of_work_s_block_is_raised_while_another_task_commits(
    container: MemoryContainer,
):
    store = FaultyStore(container, [CommitFault.HANGING_AFTER])
    committing: list[asyncio.Task[object]] = []

    async def fails_beside_a_commit() -> None:
        async with Outbox(store).unit_of_work(NotesUnitOfWork) as uow:
            uow.notes.create(Note())
            committing.append(asyncio.create_task(uow.commit()))
            await asyncio.sleep(0.01)
            raise ValueError("the block's own")

    with pytest.raises(ValueError, match="the block's own"):
        await fails_beside_a_commit()
    await committing[0]


async def test_leaving_the_block_while_another_task_commits_raises_an_error(container: MemoryContainer):
    store = FaultyStore(container, [CommitFault.HANGING_AFTER])
    uow = Outbox(store).unit_of_work(NotesUnitOfWork)
    await uow.__aenter__()
    uow.notes.create(Note())
    committing = asyncio.create_task(uow.commit())
    await asyncio.sleep(0.01)
    with pytest.raises(SharedUnitOfWork):
        await uow.__aexit__(None, None, None)
    await committing


# Tests of public events, which are published in place of domain events


async def test_a_domain_event_can_be_published_as_another_event_or_not_at_all(container: MemoryContainer):
    outbox = Outbox(container)
    outbox.publishes(NoteChanged, lambda event: NoteAnnounced(headline=event.text.upper()))
    outbox.publishes(NoteTagged, lambda event: None)
    async with outbox.unit_of_work(NotesUnitOfWork) as uow:
        note = uow.notes.create(Note())
        await uow.commit()
        note.tag_as("secret")
        note.change("news")
        (recorded,) = (event.id for event in note.events if isinstance(event, NoteChanged))
        commit = await uow.commit()
        assert () == note.events

    assert ["NoteWritten", "NoteAnnounced"] == actions(container)
    assert ([recorded], "NEWS") == ([e.id for e in commit.events], events(container)[1]["data"]["headline"])
    assert 0 == events(container)[1]["meta"]["sequence"]


# Tests of correlation ids and traces in events


async def test_events_have_the_correlation_and_causation_ids_of_the_surrounding_blocks(
    container: MemoryContainer,
):
    async def write(note_id: str) -> None:
        await written(container, Note(id=note_id))

    with correlated(correlation_id="c1"):
        with correlated(causation_id="m1"):
            await write("inner")
        await asyncio.create_task(write("task"))
    await write("outside")

    found = {
        event["partitionKey"]: (event["meta"].get("correlationId"), event["meta"].get("causationId"))
        for event in events(container)
    }
    assert {"inner": ("c1", "m1"), "task": ("c1", None), "outside": (None, None)} == found


async def test_a_commit_is_a_span_with_its_request_charge(
    container: MemoryContainer,
):
    """The trace context in the events of the commit refers to this span."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    store = FaultyStore(container, [CommitFault.THROTTLED])
    async with Outbox(store, tracer_provider=provider).unit_of_work(NotesUnitOfWork) as uow:
        uow.notes.create(Note())
        commit = await uow.commit()
        await uow.commit()

    span, *others = exporter.get_finished_spans()
    assert [] == others, "a commit of nothing is no span"
    assert ("outbox.commit", trace.SpanKind.INTERNAL) == (span.name, span.kind)
    assert {
        "outbox.commit.id": commit.id,
        "outbox.events": 1,
        "outbox.commit.attempts": 2,
        "db.operation.batch.size": 2,
        "azure.cosmosdb.operation.request_charge": commit.request_charge,
    } == dict(span.attributes or {})
    traceparent = events(container)[0]["meta"]["traceparent"].split("-")
    assert [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"] == traceparent[1:3]


def pickled(note: Note) -> Note:
    read: Note = pickle.loads(pickle.dumps(note))  # noqa: S301 - its own
    return read


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
async def test_a_copy_of_an_entity_is_equal_and_belongs_to_no_unit_of_work(
    container: MemoryContainer, copied: Callable[[Note], Note]
):
    outbox = Outbox(container)
    async with outbox.unit_of_work() as first:
        note = first.repository(Note).create(Note(id="n"))
        await first.commit()
        assert note == copied(note)
        async with outbox.unit_of_work() as second:
            second.repository(Note).update(copied(note))
            assert 1 == (await second.commit()).operations


async def test_an_unreferenced_unit_of_work_is_freed_at_once_with_its_entities(
    container: MemoryContainer,
):
    gc.disable()
    try:
        async with Outbox(container).unit_of_work() as uow:
            note = uow.repository(Note).create(Note(id="n"))
            await uow.commit()
        kept = weakref.ref(uow), weakref.ref(note)
        del uow, note
        assert (None, None) == tuple(one() for one in kept)
    finally:
        gc.enable()
