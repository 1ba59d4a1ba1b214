"""
Events with a short time to live: a stored event proves that its commit was written. When the event may have
expired, its absence proves nothing.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cosmos_outbox import (
    CommitOutcomeUnknown,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    UnitOfWork,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Line, NoteEvent, stored

F = CommitFault


class LineSeen(NoteEvent):
    ttl = timedelta(seconds=1)


@pytest.fixture
async def container() -> MemoryContainer:
    return MemoryContainer(now=asyncio.get_running_loop().time)


def see(line: Line) -> None:
    line.record(LineSeen(note_id=line.id))


async def seen_line(uow: UnitOfWork) -> Line:
    """Return a committed entity `Line` with a pending change and an event that lives for one second."""
    line = uow.repository(Line).create(Line(id="l", book="b", text="one"))
    await uow.commit()
    line.text = "two"
    see(line)
    return line


@pytest.mark.parametrize("new", [True, False])
async def test_the_outcome_is_unknown_if_the_events_expired_before_the_first_read(
    container: MemoryContainer, new: bool
):
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        if new:
            see(uow.repository(Line).create(Line(id="l", book="b", text="two")))
        else:
            await seen_line(uow)
        # The event expires before the commit stops waiting for the answer.
        store.commit_faults, store.read_faults = [F.HANGING_AFTER], [ReadFault.UNAVAILABLE]
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()

    assert [(1 if new else 2, "two")] == [
        (d["version"], d["data"]["text"]) for d in stored(container, "line")
    ]


class LineRead(NoteEvent):
    ttl = timedelta(seconds=11)


@pytest.mark.parametrize(("seconds", "error"), [(4, PreconditionFailed), (6, CommitOutcomeUnknown)])
async def test_a_missing_event_proves_a_failed_commit_only_for_half_its_time_to_live(
    container: MemoryContainer, seconds: int, error: type[Exception]
):
    store = FaultyStore(container)
    async with Outbox(
        store, retries=RetryOptions(deadline_seconds=1, attempt_seconds=1)
    ).unit_of_work() as uow:
        line = uow.repository(Line).create(Line(id="l", book="b"))
        await uow.commit()
        line.record(LineRead(note_id="l"))
        began = asyncio.get_running_loop().time()
        store.commit_faults = [F.LOST_BEFORE] * 100
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
        store.commit_faults = []
        async with Outbox(container).unit_of_work() as theirs:
            theirs.repository(Line).update(await theirs.repository(Line).read("l", partition_key="b"))
            await theirs.commit()
        await asyncio.sleep(began + seconds - asyncio.get_running_loop().time())
        with pytest.raises(error):
            await uow.commit()
