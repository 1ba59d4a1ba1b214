"""
A missing event no longer proves that a commit was not written, once the commit is old: the relay may have sent and deleted the event.
"""

from __future__ import annotations

import asyncio

import pytest

from cosmos_outbox import CommitOutcomeUnknown, Outbox, PreconditionFailed, RetryOptions, UnitOfWork
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox.relay.deletion import DEFAULT_KEEP
from cosmos_outbox.write.commit import ABSENCE_PROVES_FOR
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Note, changed_by_another_caller, events, written

F = CommitFault
CHANGES = ["create", "update", "delete"]
AWAY = RetryOptions(deadline_seconds=10)


async def begun(container: MemoryContainer, uow: UnitOfWork, change: str) -> None:
    """Create, update or delete the note `n` in a unit of work, as `change` says, without committing it."""
    notes = uow.repository(Note)
    if change == "create":
        notes.create(Note(id="n", text="mine"))
        return
    await written(container, Note(id="n"))
    if change == "update":
        (await notes.read("n")).change("mine")
    else:
        await notes.delete("n", hard=True)


async def left_in_doubt(store: FaultyStore, uow: UnitOfWork, fault: CommitFault) -> None:
    """Commit while the store is away, so that the outcome is unknown, and let the store come back."""
    store.commit_faults, store.read_faults = [fault, *[F.LOST_BEFORE] * 100], [ReadFault.UNAVAILABLE] * 100
    with pytest.raises(CommitOutcomeUnknown):
        await uow.commit()
    store.commit_faults, store.read_faults = [], []


def test_the_relay_keeps_sent_events_while_a_commit_may_still_look_for_them():
    assert ABSENCE_PROVES_FOR < DEFAULT_KEEP


async def events_deleted(container: MemoryContainer, count: int | None = None) -> None:
    for event in events(container)[:count]:
        await container.commit("n", [Write(kind=WriteKind.DELETE, id=event["id"])])


@pytest.mark.parametrize("change", CHANGES)
async def test_a_written_commit_is_not_reported_as_refused_after_its_events_were_deleted(change: str):
    container = MemoryContainer()
    store = FaultyStore(container)
    async with Outbox(store, retries=AWAY).unit_of_work() as uow:
        await begun(container, uow, change)
        await left_in_doubt(store, uow, F.LOST_AFTER)
        await asyncio.sleep(DEFAULT_KEEP.total_seconds())
        await events_deleted(container)
        written = container.documents()
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
    assert written == container.documents()


async def test_a_missing_event_shows_that_its_commit_failed_only_for_a_limited_time():
    """A second call of `commit` that also ends with an unknown outcome does not extend the time."""
    container = MemoryContainer()
    store = FaultyStore(container)
    async with Outbox(store, retries=AWAY).unit_of_work() as uow:
        await begun(container, uow, "update")
        await left_in_doubt(store, uow, F.LOST_AFTER)
        await asyncio.sleep(DEFAULT_KEEP.total_seconds())
        await events_deleted(container)
        await left_in_doubt(store, uow, F.LOST_BEFORE)
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()


async def test_missing_events_of_a_recent_commit_prove_that_it_was_refused():
    container = MemoryContainer()
    store = FaultyStore(container)
    async with Outbox(store, retries=AWAY).unit_of_work() as uow:
        await begun(container, uow, "update")
        began = asyncio.get_running_loop().time()
        await left_in_doubt(store, uow, F.LOST_BEFORE)
        await changed_by_another_caller(container)
        elapsed = asyncio.get_running_loop().time() - began
        await asyncio.sleep(ABSENCE_PROVES_FOR.total_seconds() - elapsed - 1)
        with pytest.raises(PreconditionFailed):
            await uow.commit()
