"""
Events that soon expire prove a commit while they are there; their absence proves less, the shorter they live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from cosmos_outbox import (
    CommitOutcomeUnknown,
    Conflict,
    NotFound,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    UnitOfWork,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.ports import CommitResult, Document, Write
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Line, Note, NoteEvent, actions, stored, written

F = CommitFault


class LineSeen(NoteEvent):
    ttl = timedelta(seconds=1)


@pytest.fixture
async def container() -> MemoryContainer:
    return MemoryContainer(now=asyncio.get_running_loop().time)


def see(line: Line) -> None:
    line.record(LineSeen(note_id=line.id))


async def seen_line(uow: UnitOfWork) -> Line:
    """A line that was committed, and is changed beside an event that soon expires."""
    line = uow.repository(Line).create(Line(id="l", book="b", text="one"))
    await uow.commit()
    line.text = "two"
    see(line)
    return line


@pytest.mark.parametrize("new", [True, False])
async def test_the_outcome_is_unknown_when_the_events_expired_before_anything_could_be_read(
    container: MemoryContainer, new: bool
):
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        if new:
            see(uow.repository(Line).create(Line(id="l", book="b", text="two")))
        else:
            await seen_line(uow)
        # By the time that the answer is given up the event is gone.
        store.commit_faults, store.read_faults = [F.HANGING_AFTER], [ReadFault.UNAVAILABLE]
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()

    assert [(1 if new else 2, "two")] == [
        (d["version"], d["data"]["text"]) for d in stored(container, "line")
    ]


class LineRead(NoteEvent):
    ttl = timedelta(seconds=11)


@pytest.mark.parametrize(("seconds", "error"), [(4, PreconditionFailed), (6, CommitOutcomeUnknown)])
async def test_absence_proves_something_for_half_of_an_events_life(
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


async def test_a_collision_beside_short_lived_events_is_reported(container: MemoryContainer):
    async with Outbox(container).unit_of_work() as uow:
        line = await seen_line(uow)
        async with Outbox(container).unit_of_work() as theirs:
            see(await theirs.repository(Line).read("l", partition_key="b"))
            await theirs.commit()
        with pytest.raises(PreconditionFailed) as caught:
            await uow.commit()
    assert (line.etag, stored(container, "line")[0]["_etag"]) == (caught.value.expected, caught.value.actual)


async def deleted(store: FaultyStore, fault: CommitFault, *reads: ReadFault) -> UnitOfWork:
    uow = Outbox(store, retries=RetryOptions(deadline_seconds=3, attempt_seconds=1)).unit_of_work()
    see(uow.repository(Line).create(Line(id="l", book="b")))
    await uow.commit()
    await asyncio.sleep(2)
    line = await uow.repository(Line).delete("l", partition_key="b")
    see(line)
    store.commit_faults, store.read_faults = [fault], list(reads)
    return uow


@pytest.mark.parametrize("fault", [F.LOST_BEFORE, F.LOST_AFTER, F.RESENT, F.LATE])
async def test_a_lost_answer_to_a_deletion_beside_a_short_lived_event_is_found_out(
    container: MemoryContainer, fault: CommitFault
):
    store = FaultyStore(container)
    uow = await deleted(store, fault)
    commit = await uow.commit()
    assert (["LineSeen"], []) == (actions(container), stored(container, "line"))
    assert ["LineSeen"] == [event.action for event in commit.events]


async def test_a_deletion_of_which_nothing_is_left_is_unknown(container: MemoryContainer):
    store = FaultyStore(container)
    uow = await deleted(store, F.HANGING_AFTER)
    with pytest.raises(CommitOutcomeUnknown):
        await uow.commit()


async def test_a_deletion_that_another_caller_carried_out_is_not_found(container: MemoryContainer):
    uow = await deleted(FaultyStore(container), F.THROTTLED)
    async with Outbox(container).unit_of_work() as theirs:
        await theirs.repository(Line).delete("l", partition_key="b")
        await theirs.commit()
    with pytest.raises(NotFound):
        await uow.commit()


class Slow(FaultyStore):
    """Time passes between a refusal and the look at what stood in the way."""

    refused = False

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        try:
            return await super().commit(partition_key, writes)
        except Conflict:
            self.refused = True
            raise

    async def read(
        self, document_id: str, partition_key: str, *, if_none_match: str | None = None
    ) -> Document:
        if self.refused:
            await asyncio.sleep(0.99)
        return await super().read(document_id, partition_key, if_none_match=if_none_match)


async def test_an_event_that_stood_in_the_way_and_expired_since_leaves_the_proof_to_one_that_lives_longer(
    container: MemoryContainer,
):
    store = Slow(container)
    async with Outbox(store).unit_of_work() as uow:
        note = uow.repository(Note).create(Note(text="one"))
        await uow.commit()
        note.record(LineSeen(note_id=note.id))
        note.change("two")
        store.commit_faults, store.read_faults = [F.LOST_AFTER], [ReadFault.UNAVAILABLE]
        await uow.commit()
    assert 2 == stored(container, "note")[0]["version"]


async def test_a_collision_at_one_of_two_entities_names_it(container: MemoryContainer):
    await written(container, *(Line(id=line_id, book="b", text="one") for line_id in "ab"))
    async with Outbox(FaultyStore(container, [F.THROTTLED])).unit_of_work() as uow:
        for line_id in "ab":
            uow.repository(Line).update(await uow.repository(Line).read(line_id, partition_key="b"))
        async with Outbox(container).unit_of_work() as theirs:
            theirs.repository(Line).update(await theirs.repository(Line).read("a", partition_key="b"))
            await theirs.commit()
        with pytest.raises(PreconditionFailed, match="'a'"):
            await uow.commit()


async def test_what_was_written_under_an_unknown_etag_is_refused_whatever_got_lost(
    container: MemoryContainer,
):
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        line = await seen_line(uow)
        store.commit_faults, store.read_faults = [F.LOST_AFTER], [None, ReadFault.UNAVAILABLE]
        await uow.commit()
        uow.repository(Line).update(line)
        store.commit_faults = [F.LOST_BEFORE]
        with pytest.raises(PreconditionFailed):
            await uow.commit()
