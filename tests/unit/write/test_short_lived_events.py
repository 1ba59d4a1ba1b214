"""
A commit whose events expire is found out about as any other: what is gone cannot prove anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from cosmos_outbox import (
    CommitOutcomeUnknown,
    Conflict,
    NotFound,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    Store,
    UnitOfWork,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.ports import CommitResult, Document, Write, WriteKind
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import Line, Note, NoteChanged, NoteEvent, actions, stored

F = CommitFault


class LineSeen(NoteEvent):
    ttl = timedelta(seconds=1)


@pytest.fixture
async def container() -> MemoryContainer:
    return MemoryContainer(now=asyncio.get_running_loop().time)


def see(line: Line) -> None:
    line.record(LineSeen(note_id=line.id))


async def seen_line(uow: UnitOfWork) -> Line:
    """
    A line that was committed, and is changed beside an event that soon expires.
    """
    line = uow.repository(Line).create(Line(id="l", book="b", text="one"))
    await uow.commit()
    line.text = "two"
    see(line)
    return line


@pytest.mark.parametrize("fault", [*CommitFault, None])
@pytest.mark.parametrize("new", [True, False])
async def test_a_lost_answer_is_found_out_when_the_events_have_expired_before_the_repeated_commit(
    container: MemoryContainer, fault: CommitFault | None, new: bool
):
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        if new:
            line = uow.repository(Line).create(Line(id="l", book="b", text="two"))
            see(line)
        else:
            line = await seen_line(uow)
        # By the time that the answer is given up the event is gone, and nobody can look.
        store.commit_faults, store.read_faults = [F.HANGING_AFTER, fault], [ReadFault.UNAVAILABLE]
        await uow.commit()
    await store.arrived()

    assert [(1 if new else 2, "two")] == [
        (d["version"], d["data"]["text"]) for d in stored(container, "line")
    ]
    assert line.etag == stored(container, "line")[0]["_etag"]


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


async def test_a_deletion_of_which_nothing_is_left_is_unknown_for_good(container: MemoryContainer):
    store = FaultyStore(container)
    uow = await deleted(store, F.HANGING_AFTER)
    with pytest.raises(CommitOutcomeUnknown) as caught:
        await uow.commit()
    assert caught.value.final


async def test_a_deletion_that_somebody_else_carried_out_is_not_found(container: MemoryContainer):
    uow = await deleted(FaultyStore(container), F.THROTTLED)
    async with Outbox(container).unit_of_work() as theirs:
        await theirs.repository(Line).delete("l", partition_key="b")
        await theirs.commit()
    with pytest.raises(NotFound):
        await uow.commit()


async def test_an_id_that_the_second_event_of_a_commit_shares_with_anothers_is_a_conflict(
    container: MemoryContainer,
):
    for attempt in range(2):
        async with Outbox(container).unit_of_work() as uow:
            line = uow.repository(Line).create(Line(book="b"))
            line.record(NoteChanged(note_id=line.id, text="first"))
            line.record(NoteChanged(id="taken", note_id=line.id, text="second"))
            if attempt:
                with pytest.raises(Conflict, match="'taken'"):
                    await uow.commit()
            else:
                await uow.commit()
    assert 1 == len(stored(container, "line"))


class Slow(FaultyStore):
    """
    Time passes between a refusal and the look at what stood in the way.
    """

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


@pytest.mark.parametrize("lasting", [True, False])
async def test_a_short_lived_event_that_stood_in_the_way_and_expired_since_leaves_its_commit_to_be_found(
    container: MemoryContainer, lasting: bool
):
    store = Slow(container)
    async with Outbox(store).unit_of_work() as uow:
        note = uow.repository(Note).create(Note(text="one"))
        await uow.commit()
        note.record(LineSeen(note_id=note.id))
        if lasting:
            note.change("two")
        store.commit_faults, store.read_faults = [F.LOST_AFTER], [ReadFault.UNAVAILABLE]
        await uow.commit()
    assert 2 == stored(container, "note")[0]["version"]


class Lagging(FaultyStore):
    """
    After the first commit, the replica that answers some reads still has what was there before.
    """

    def __init__(self, store: Store, documents: Iterator[Document]) -> None:
        super().__init__(store, [F.LOST_AFTER])
        self._documents = documents

    async def read(
        self, document_id: str, partition_key: str, *, if_none_match: str | None = None
    ) -> Document:
        behind = next(self._documents, None) if self.commits else None
        return behind or await super().read(document_id, partition_key, if_none_match=if_none_match)


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_replica_that_lags_does_not_turn_a_written_change_into_a_collision(
    container: MemoryContainer, times: int
):
    async with Outbox(container).unit_of_work() as uow:
        uow.repository(Line).create(Line(id="l", book="b", text="one"))
        await uow.commit()
    store = Lagging(container, iter(stored(container, "line") * times))
    async with Outbox(store).unit_of_work() as uow:
        line = await uow.repository(Line).read("l", partition_key="b")
        line.text = "two"
        uow.repository(Line).update(line)
        await uow.commit()
    assert [(2, "two")] == [(d["version"], d["data"]["text"]) for d in stored(container, "line")]


@pytest.mark.parametrize("fault", [F.LOST_BEFORE, F.THROTTLED])
async def test_a_collision_at_one_of_two_entities_is_no_contradiction_to_the_other_being_as_it_was(
    container: MemoryContainer, fault: CommitFault
):
    async with Outbox(container).unit_of_work() as uow:
        for line_id in "ab":
            uow.repository(Line).create(Line(id=line_id, book="b", text="one"))
        await uow.commit()
    async with Outbox(FaultyStore(container, [fault])).unit_of_work() as uow:
        for line_id in "ab":
            uow.repository(Line).update(await uow.repository(Line).read(line_id, partition_key="b"))
        async with Outbox(container).unit_of_work() as theirs:
            theirs.repository(Line).update(await theirs.repository(Line).read("a", partition_key="b"))
            await theirs.commit()
        with pytest.raises(PreconditionFailed, match="'a'"):
            await uow.commit()


@pytest.mark.parametrize("fault", [None, F.LOST_BEFORE])
async def test_a_collision_beside_a_creation_is_reported_although_nothing_was_created(
    container: MemoryContainer, fault: CommitFault | None
):
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        uow.repository(Line).update(await seen_line(uow))
        uow.repository(Line).create(Line(id="new", book="b"))
        async with Outbox(container).unit_of_work() as theirs:
            theirs.repository(Line).update(await theirs.repository(Line).read("l", partition_key="b"))
            await theirs.commit()
        store.commit_faults = [fault]
        with pytest.raises(PreconditionFailed, match="'l'"):
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


@pytest.mark.parametrize("fault", [None, F.LOST_AFTER])
async def test_a_program_that_keeps_no_trail_hides_neither_a_collision_nor_the_trail_of_the_other_entity(
    container: MemoryContainer, fault: CommitFault | None
):
    async def theirs() -> None:
        document = {"id": "l", "partitionKey": "b", "type": "line", "data": {"id": "l", "book": "b"}}
        await container.commit("b", [Write(kind=WriteKind.REPLACE, id="l", document=document)])

    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        uow.repository(Line).update(await seen_line(uow))
        uow.repository(Line).create(Line(id="new", book="b"))
        if fault is None:
            await theirs()
            with pytest.raises(PreconditionFailed):
                await uow.commit()
        else:
            store.commit_faults, store.read_faults = [F.HANGING_AFTER], [ReadFault.UNAVAILABLE]
            commit = asyncio.create_task(uow.commit())
            await asyncio.sleep(0.5)
            await theirs()
            assert 3 == (await commit).operations
