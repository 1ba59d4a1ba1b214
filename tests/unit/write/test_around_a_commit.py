"""
Around a commit: `after_commit` hooks, public events, handlers that need a subclass of UnitOfWork, and entities that expire.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from cosmos_outbox import (
    Commit,
    DomainEvent,
    Entity,
    NotFound,
    Outbox,
    PreconditionFailed,
    UnitOfWork,
    UsageError,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import StoreUnavailable
from cosmos_outbox.retries import RetryOptions
from tests.support.faulty_store import CommitFault, FaultyStore
from tests.support.notes import Line, Note, NoteChanged, NoteTagged, actions, events, stored, written


class Indexed(DomainEvent):
    word: str


class Announced(DomainEvent):
    text: str


class Library(UnitOfWork):
    def note(self, note_id: str) -> Note:
        return self.repository(Note).create(Note(id=note_id))


@pytest.fixture
def container() -> MemoryContainer:
    return MemoryContainer()


# hooks


async def test_an_after_commit_hook_runs_once_after_the_next_commit_that_writes(container: MemoryContainer):
    seen: list[tuple[str, str | None]] = []

    async def later(commit: Commit) -> None:
        seen.append(("later", commit.id))

    async with Outbox(container).unit_of_work() as uow:
        uow.after_commit(lambda commit: seen.append(("first", commit.id)))
        uow.after_commit(later)
        await uow.commit()
        assert [] == seen
        uow.repository(Note).create(Note(id="n"))
        commit = await uow.commit()
        assert [("first", commit.id), ("later", commit.id)] == seen
        uow.repository(Note).create(Note(id="m"))
        await uow.commit()
    assert 2 == len(seen)


async def test_an_after_commit_hook_may_commit_again(container: MemoryContainer):
    async with Outbox(container).unit_of_work() as uow:
        note = uow.repository(Note).create(Note(id="n"))

        async def again(_: Commit) -> None:
            note.change("from the hook")
            await uow.commit()

        uow.after_commit(again)
        await uow.commit()
    assert ["NoteWritten", "NoteChanged"] == actions(container)


async def test_an_error_of_an_after_commit_hook_is_logged(
    container: MemoryContainer, caplog: pytest.LogCaptureFixture
):
    """The commit succeeds, and the other hooks run."""
    seen: list[Commit] = []

    def broken(_: Commit) -> None:
        raise ValueError("broken")

    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Note).create(Note(id="n"))
        uow.after_commit(broken)
        uow.after_commit(seen.append)
        with caplog.at_level(logging.ERROR):
            commit = await uow.commit()
    assert [commit] == seen
    assert ["commit.hook_failed"] == [record.message for record in caplog.records]


async def test_after_commit_hooks_of_a_refused_or_rolled_back_attempt_do_not_run(container: MemoryContainer):
    seen: list[Commit] = []
    outbox = Outbox(container)
    await written(container, Note(id="n"))
    async with outbox.unit_of_work() as mine, outbox.unit_of_work() as theirs:
        (await mine.repository(Note).read("n")).change("mine")
        (await theirs.repository(Note).read("n")).change("theirs")
        await theirs.commit()
        mine.after_commit(seen.append)
        with pytest.raises(PreconditionFailed):
            await mine.commit()
        (await mine.repository(Note).read("n")).change("again")
        await mine.commit()
        mine.after_commit(seen.append)
        mine.rollback()
        (await mine.repository(Note).read("n")).change("once more")
        await mine.commit()
    assert [] == seen


async def test_a_change_of_an_entity_that_another_program_deleted_is_refused(container: MemoryContainer):
    await written(container, Note(id="n"))
    async with Outbox(container).unit_of_work() as mine, Outbox(container).unit_of_work() as theirs:
        (await mine.repository(Note).read("n")).change("mine")
        await theirs.repository(Note).delete("n", hard=True)
        await theirs.commit()
        with pytest.raises(NotFound) as refusal:
            await mine.commit()
        assert mine.was_refused(refusal.value)
        mine.rollback()
        assert Commit() == await mine.commit()


async def test_an_after_commit_hook_runs_once_although_its_commit_was_repeated(container: MemoryContainer):
    seen: list[str] = []
    store = FaultyStore(container, [CommitFault.REFUSED] * 40)
    outbox = Outbox(store, retries=RetryOptions(deadline_seconds=2, attempt_seconds=1))
    failing = [True]

    def handler(event: NoteChanged, uow: UnitOfWork) -> None:
        uow.after_commit(lambda _: seen.append(event.text))
        if failing:
            failing.clear()
            raise ValueError("the first time")

    outbox.on(NoteChanged, handler)
    async with outbox.unit_of_work() as uow:
        line = uow.repository(Line).create(Line(id="l", book="b"))
        line.record(NoteChanged(note_id="l", text="new"))
        with pytest.raises(ValueError, match="first"):
            await uow.commit()
        with pytest.raises(StoreUnavailable):
            await uow.commit()
        assert [] == seen
        store.commit_faults = []
        await uow.commit()
    assert ["new"] == seen


# public events


async def test_a_domain_event_can_be_published_as_several_events(
    container: MemoryContainer,
):
    """The test also checks that the published events keep their ids if the commit is repeated."""
    store = FaultyStore(container, [CommitFault.LOST_BEFORE])
    outbox = Outbox(store)
    outbox.publishes(NoteTagged, lambda event: [Indexed(word=event.tag), Announced(text=event.tag), event])
    async with outbox.unit_of_work() as uow:
        note = uow.repository(Note).create(Note(id="n"))
        await uow.commit()
        note.tag_as("blue")
        recorded = note.events[0].id
        commit = await uow.commit()
    assert ["NoteWritten", "Indexed", "Announced", "NoteTagged"] == actions(container)
    ids = [event.id for event in commit.events]
    assert (recorded, 3) == (ids[0], len(set(ids)))
    assert [0, 1, 2] == [event["meta"]["sequence"] for event in events(container)[1:]]
    assert 1 == len({event.created_at for event in commit.events})


def test_the_method_publishes_refuses_a_second_mapping_of_an_event_type(container: MemoryContainer):
    outbox = Outbox(container)
    outbox.publishes(NoteTagged, lambda _: None)
    with pytest.raises(TypeError, match=r"publishes\(NoteTagged.*already maps this event.*one mapping"):
        outbox.publishes(NoteTagged, lambda event: event)


# handlers


async def test_an_event_handler_can_require_a_subclass_of_unit_of_work(container: MemoryContainer):
    outbox = Outbox(container)

    def add(event: NoteTagged, library: Library) -> None:
        library.note(event.note_id)

    outbox.on(NoteTagged, add, kind=Library)
    async with outbox.unit_of_work(Library) as library:
        library.repository(Line).create(line := Line(id="l", book="n"))
        line.record(NoteTagged(note_id="n", tag="x"))
        await library.commit()
    assert 1 == len(stored(container, "note"))
    async with outbox.unit_of_work() as uow:
        uow.repository(Line).create(line := Line(id="k", book="n"))
        line.record(NoteTagged(note_id="m", tag="x"))
        with pytest.raises(
            UsageError, match=r"add.*NoteTagged.*needs a Library.*is a UnitOfWork.*unit_of_work\(Library\)"
        ):
            await uow.commit()


# Tests of entities with a time to live


class Receipt(Entity):
    ttl = timedelta(days=7)


async def test_an_entity_with_a_ttl_expires_after_its_last_write():
    now = [1_800_000_000.0]
    container = MemoryContainer(now=lambda: now[0])
    await written(container, Receipt(id="r"))
    assert [7 * 86_400] == [document["ttl"] for document in container.documents()]
    now[0] += 7 * 86_400
    assert () == container.documents()


@pytest.mark.parametrize("ttl", [60, timedelta(0), timedelta(days=365 * 100)])
def test_an_invalid_time_to_live_of_an_entity_class_is_refused(ttl: object):
    with pytest.raises(TypeError, match=r"Brief\.ttl has to be None or a timedelta"):
        type("Brief", (Entity,), {"ttl": ttl, "__module__": __name__})
