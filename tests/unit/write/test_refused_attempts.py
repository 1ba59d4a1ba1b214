"""A refused commit leaves nothing behind, and `Outbox.run` repeats the whole work after it."""

from __future__ import annotations

import asyncio

import pytest

from cosmos_outbox import (
    Backoff,
    Conflict,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    UnitOfWork,
    UsageError,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from tests.support.notes import Line, Note, NoteChanged, actions, stored, written


def invoicing(container: MemoryContainer) -> Outbox:
    """
    Return an outbox whose event handler creates a `Line` with a new id for each change of a `Note`, and records the event NoteFiled.
    """
    outbox = Outbox(container)

    async def invoice(event: NoteChanged, uow: UnitOfWork) -> None:
        uow.repository(Line).create(Line(book=event.note_id, text=event.text))
        (await uow.repository(Note).read(event.note_id)).file_as(event.text)

    outbox.on(NoteChanged, invoice)
    return outbox


async def overtaken(container: MemoryContainer) -> None:
    """Change the stored note as another program would, so that the next commit of the test is refused."""
    async with Outbox(container).unit_of_work() as theirs:
        notes = theirs.repository(Note)
        notes.update(await notes.read("n"))
        await theirs.commit()


@pytest.fixture
async def container() -> MemoryContainer:
    container = MemoryContainer()
    await written(container, Note(id="n"))
    return container


async def refused(uow: UnitOfWork, container: MemoryContainer) -> Note:
    note = await uow.repository(Note).read("n")
    note.change("paid")
    await overtaken(container)
    with pytest.raises(PreconditionFailed):
        await uow.commit()
    return note


async def test_after_a_refused_commit_an_entity_keeps_the_events_that_the_caller_recorded(
    container: MemoryContainer,
):
    """Events that event handlers recorded during the refused commit are removed."""
    async with invoicing(container).unit_of_work() as uow:
        note = await refused(uow, container)
        assert ["NoteChanged"] == [event.action for event in note.events]


async def test_a_new_attempt_without_changes_commits_nothing(container: MemoryContainer):
    async with invoicing(container).unit_of_work() as uow:
        uow.repository(Line).create(Line(book="n"))
        await refused(uow, container)
        await uow.repository(Note).read("n")
        commit = await uow.commit()

    assert (0, ()) == (commit.operations, commit.events)
    assert [] == stored(container, "line")


async def test_a_failed_event_handler_undoes_only_the_changes_of_handlers(
    container: MemoryContainer,
):
    outbox, failing = invoicing(container), [True]

    def fail(event: NoteChanged, uow: UnitOfWork) -> None:
        uow.repository(Line).create(Line(book=event.note_id, text="second"))
        if failing:
            raise RuntimeError(failing.pop())

    outbox.on(NoteChanged, fail)
    async with outbox.unit_of_work() as uow:
        (await uow.repository(Note).read("n")).change("paid")
        with pytest.raises(RuntimeError):
            await uow.commit()
        await uow.commit()

    assert ["NoteWritten", "NoteChanged", "NoteFiled"] == actions(container)
    assert ["paid", "second"] == sorted(line["data"]["text"] for line in stored(container, "line"))


# Outbox.run


async def test_outbox_run_repeats_the_whole_work_in_a_new_unit_of_work(
    container: MemoryContainer,
):
    units = []

    async def pay(uow: UnitOfWork) -> Note:
        units.append(uow)
        note = await uow.repository(Note).read("n")
        note.change("paid")
        if len(units) < 3:
            await overtaken(container)
        return note

    note = await invoicing(container).run(pay)

    assert (3, 4) == (len(set(units)), note.version)
    assert ["NoteWritten", "NoteChanged", "NoteFiled"] == actions(container)
    assert ["paid"] == [line["data"]["text"] for line in stored(container, "line")]


async def test_outbox_run_raises_the_refusal_of_its_last_attempt(container: MemoryContainer):
    times = []

    async def collide(uow: UnitOfWork) -> None:
        times.append(asyncio.get_running_loop().time())
        (await uow.repository(Note).read("n")).change("x")
        await overtaken(container)
        await uow.commit()  # not necessary: `run` commits if the work did not

    retries = RetryOptions(backoff=Backoff(initial_seconds=5, maximum_seconds=20))
    with pytest.raises(PreconditionFailed):
        await Outbox(container, retries=retries).run(collide, attempts=4)
    assert 4 == len(set(times))


async def test_outbox_run_passes_a_unit_of_work_of_the_requested_class(container: MemoryContainer):
    class Notes(UnitOfWork):
        async def text(self) -> str:
            return (await self.repository(Note).read("n")).text

    assert "" == await Outbox(container).run(Notes.text, kind=Notes)


async def test_outbox_run_does_not_repeat_work_that_would_be_refused_again(container: MemoryContainer):
    attempts = []

    async def change_an_old_one(uow: UnitOfWork) -> None:
        attempts.append(uow)
        uow.repository(Note).update(await uow.repository(Note).read("n"), etag='"old"')

    async def create_what_is_there(uow: UnitOfWork) -> None:
        attempts.append(uow)
        uow.repository(Note).create(Note(id="n"))

    with pytest.raises(PreconditionFailed):
        await Outbox(container).run(change_an_old_one)
    with pytest.raises(Conflict):
        await Outbox(container).run(create_what_is_there)
    assert 2 == len(attempts)


@pytest.mark.parametrize("attempts", [0, -1])
async def test_outbox_run_needs_at_least_one_attempt(container: MemoryContainer, attempts: int):
    with pytest.raises(UsageError, match=f"not {attempts}"):
        await Outbox(container).run(UnitOfWork.commit, attempts=attempts)
