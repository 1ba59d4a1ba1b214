"""
A commit is written once, and its caller learns its true outcome, whatever happens to requests and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

import pytest

from cosmos_outbox import (
    CommitOutcomeUnknown,
    Conflict,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    StoreUnavailable,
    TooManyRequests,
    UnitOfWork,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.errors import InvalidRequest
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from cosmos_outbox.stored_documents import SET_BY_THE_SERVICE
from cosmos_outbox.write import commit
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import (
    Line,
    Note,
    NoteDeleted,
    actions,
    changed_by_another_caller,
    events,
    stored,
    written,
)

F = CommitFault


@pytest.mark.parametrize("fault", list(CommitFault))
async def test_a_creation_with_a_fault_writes_one_entity_and_one_event(fault: CommitFault):
    container = MemoryContainer()
    store = FaultyStore(container, [fault])
    async with Outbox(store).unit_of_work() as uow:
        note = uow.repository(Note).create(Note(text="hello"))
        commit = await uow.commit()
    await store.arrived()

    document = await container.read(note.id, note.id)
    assert [commit.events[0].id] == [event["id"] for event in events(container)]
    assert (1, document["_etag"]) == (note.version, note.etag)
    assert (1, "hello") == (document["version"], document["data"]["text"])


APPLIED = [F.LOST_AFTER, F.HANGING_AFTER, F.ASLEEP]  # the write is applied, and its answer is lost
NOT_APPLIED = [fault for fault in F if fault not in (*APPLIED, F.RESENT)]


@pytest.mark.parametrize("fault", NOT_APPLIED)
async def test_a_commit_without_events_is_repeated_if_it_was_not_executed(fault: CommitFault):
    container = MemoryContainer()
    store = FaultyStore(container, [fault, None, fault, None, fault])
    async with Outbox(store).unit_of_work() as uow:
        lines = uow.repository(Line)
        line, other = lines.create(Line(book="b", text="one")), lines.create(Line(book="b"))
        await uow.commit()
        line.text = "two"
        lines.update(line)
        await uow.commit()
        await lines.delete(other.id, partition_key="b")
        await uow.commit()
    await store.arrived()

    assert [(2, "two")] == [(d["version"], d["data"]["text"]) for d in stored(container, "line")]


@pytest.mark.parametrize("part", ["document", "data"])
async def test_a_change_of_another_program_after_a_lost_answer_is_not_overwritten(part: str):
    container = MemoryContainer()
    store = FaultyStore(container, [F.LOST_AFTER] * 40, [ReadFault.UNAVAILABLE] * 40)
    uow = Outbox(store, retries=RetryOptions(deadline_seconds=3, attempt_seconds=1)).unit_of_work()
    note = uow.repository(Note).create(Note(id="n", text="first"))
    with pytest.raises(CommitOutcomeUnknown):
        await uow.commit()
    store.commit_faults, store.read_faults = [], []

    document = await container.read("n", "n")
    added = {name: value for name, value in document.items() if name not in SET_BY_THE_SERVICE}
    (added if part == "document" else added["data"])["by"] = "them"  # the other writer keeps `version`
    write = Write(kind=WriteKind.REPLACE, id="n", document=added, etag=document["_etag"])
    await container.commit("n", [write])
    await uow.commit()
    note.change("second")
    with pytest.raises(PreconditionFailed):
        await uow.commit()
    assert added.items() <= (await container.read("n", "n")).items()


@pytest.mark.parametrize("change", ["create", "update", "delete"])
@pytest.mark.parametrize("fault", APPLIED)
async def test_a_commit_without_events_has_an_unknown_outcome_after_a_lost_answer(
    fault: CommitFault, change: str
):
    """Each further call of `commit` raises CommitOutcomeUnknown again, until the caller rolls back."""
    container = MemoryContainer()
    if change != "create":
        await written(container, Line(id="l", book="b"))
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        lines = uow.repository(Line)
        if change == "create":
            lines.create(Line(id="l", book="b"))
        elif change == "update":
            lines.update(await lines.read("l", partition_key="b"))
        else:
            await lines.delete("l", partition_key="b")
        store.commit_faults = [fault]
        for _ in range(2):
            with pytest.raises(CommitOutcomeUnknown):
                await uow.commit()

        uow.rollback()
        assert 0 == (await uow.commit()).operations

    versions = {"create": [1], "update": [2], "delete": []}
    assert versions[change] == [document["version"] for document in stored(container, "line")]


async def test_the_outcome_of_a_commit_without_events_is_unknown_if_its_retry_is_refused():
    await written(container := MemoryContainer(), Line(id="l", book="b"))
    async with Outbox(FaultyStore(container, [F.LOST_BEFORE])).unit_of_work() as uow:
        lines = uow.repository(Line)
        lines.update(await lines.read("l", partition_key="b"))
        await changed_line(container, "theirs")
        with pytest.raises(CommitOutcomeUnknown) as told:
            await uow.commit()

    text = str(told.value)
    assert f"It is commit {told.value.commit_id} of partition key 'b'." in text
    assert "within a minute; later, or if the commit has no event, roll back" in text
    assert "  " not in text
    assert "b" == told.value.partition_key
    assert ["theirs"] == [d["data"]["text"] for d in stored(container, "line")]


@pytest.mark.parametrize(
    ("fault", "reads", "commits"),
    # What happens to the commit's request, what happens to the reads after it, and how often the commit is sent
    [
        (F.LOST_AFTER, [], 1),  # the read finds the commit, so the commit is sent only once
        # A stale replica does not show the commit, so the commit is sent twice.
        (F.LOST_AFTER, [ReadFault.STALE, ReadFault.STALE], 2),
        (F.HANGING_AFTER, [ReadFault.HANGING], 2),  # the read shows nothing, so the commit is repeated
    ],
)
async def test_a_commit_finds_out_by_a_read_whether_it_was_written(
    fault: CommitFault, reads: list[ReadFault], commits: int
):
    container = MemoryContainer()
    store = FaultyStore(container, [fault], reads)
    async with Outbox(store, retries=RetryOptions(attempt_seconds=1)).unit_of_work() as uow:
        note = uow.repository(Note).create(Note())
        await uow.commit()

    assert (commits, ["NoteWritten"], 1) == (store.commits, actions(container), note.version)


async def test_a_commit_with_a_lost_answer_succeeds_although_another_caller_wrote_since():
    """After that, the entity in the unit of work has no etag, so its next change is refused."""
    await written(container := MemoryContainer(), note := Note())
    store = Overtaken(container, F.LOST_AFTER, lambda: changed_by_another_caller(container, note.id))
    async with Outbox(store).unit_of_work() as uow:
        mine = await uow.repository(Note).read(note.id)
        mine.change("mine")
        await uow.commit()
        assert (2, None) == (mine.version, mine.etag)

        mine.change("too late")
        with pytest.raises(PreconditionFailed):
            await uow.commit()

    assert [1, 2, 3] == [event["meta"]["entityVersion"] for event in events(container)]


async def test_throttling_beyond_the_deadline_is_raised_with_its_retry_delay():
    store = FaultyStore(MemoryContainer(), [F.THROTTLED] * 1000)
    began = asyncio.get_running_loop().time()
    async with Outbox(store, retries=RetryOptions(deadline_seconds=5)).unit_of_work() as uow:
        uow.repository(Note).create(Note())
        with pytest.raises(TooManyRequests) as caught:
            await uow.commit()
        assert 0.2 == caught.value.retry_after
        assert asyncio.get_running_loop().time() - began <= 5

        store.commit_faults.clear()  # the next commit writes the pending changes
        assert 1 == (await uow.commit()).attempts


async def test_the_next_commit_finds_out_an_unknown_outcome():
    container = MemoryContainer()
    store = FaultyStore(container, [F.LOST_AFTER] * 1000, [ReadFault.UNAVAILABLE] * 1000)
    async with Outbox(store).unit_of_work() as uow:
        note = uow.repository(Note).create(Note(text="first"))
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
        assert note.is_new

        store.commit_faults.clear()
        store.read_faults.clear()
        note.change("second")
        commit = await uow.commit()

    assert ["NoteWritten", "NoteChanged"] == actions(container)
    assert ["NoteWritten", "NoteChanged"] == [event.action for event in commit.events]
    assert [1, 2] == [event["meta"]["entityVersion"] for event in events(container)]
    assert "first" == events(container)[0]["data"]["text"]


@asynccontextmanager
async def creation_in_doubt() -> AsyncIterator[tuple[MemoryContainer, UnitOfWork, Line]]:
    """
    Yield a unit of work that created a line and an event, and whose commit has an unknown outcome, because the answer was lost.
    """
    container = MemoryContainer()
    store = FaultyStore(container, [F.LOST_AFTER], [ReadFault.UNAVAILABLE] * 1000)
    async with Outbox(store).unit_of_work() as uow:
        line = uow.repository(Line).create(Line(id="l", book="b", text="old"))
        line.record(NoteDeleted(note_id="l"))
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
        store.read_faults.clear()
        yield container, uow, line


@pytest.mark.parametrize(
    ("how", "lost"),
    [
        *((how, F.LOST_BEFORE) for how in ("created", "updated", "told", "glanced at")),
        *((how, F.LOST_AFTER) for how in ("created", "told")),
    ],
)
async def test_an_edit_after_an_unknown_outcome_is_written_by_the_next_commit(how: str, lost: CommitFault):
    container = MemoryContainer()
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        notes = uow.repository(Note)
        note = notes.create(Note(text="old"))
        if how != "created":
            await uow.commit()
        if how == "updated":
            notes.update(note)
        elif how != "created":
            note.change("told") if how == "told" else note.glance()
        store.commit_faults, store.read_faults = [lost] * 40, [ReadFault.UNAVAILABLE] * 40
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
        store.commit_faults, store.read_faults = [], []
        version = note.version
        note.text = "new"
        commit = await uow.commit()
        assert 0 == (await uow.commit()).operations
    assert (version + 2, "new") == (note.version, stored(container, "note")[0]["data"]["text"])
    assert commit.operations == (2 if how == "updated" else 3)


async def test_a_refused_edit_does_not_undo_an_earlier_commit_with_an_unknown_outcome():
    async with creation_in_doubt() as (container, uow, line):
        await changed_line(container, "theirs")
        line.text = "mine"
        with pytest.raises(PreconditionFailed):
            await uow.commit()
        assert 1 == line.version
        assert "theirs" == (await uow.repository(Line).read("l", partition_key="b")).text

    assert ["theirs"] == [d["data"]["text"] for d in stored(container, "line")]


@pytest.mark.parametrize("rest", [F.LOST_BEFORE, F.THROTTLED, F.REFUSED])
async def test_a_lost_request_that_may_still_arrive_has_an_unknown_outcome(
    rest: CommitFault,
):
    container = MemoryContainer()
    store = FaultyStore(container, [F.LATE] + [rest] * 1000, late_seconds=60)
    async with Outbox(store).unit_of_work() as uow:
        note = uow.repository(Note).create(Note())
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
        await store.arrived()
        store.commit_faults.clear()
        assert 0 == (await uow.commit()).attempts

    assert (1, ["NoteWritten"]) == (note.version, actions(container))


async def changed_line(container: MemoryContainer, text: str) -> None:
    async with Outbox(container).unit_of_work() as uow:
        line = await uow.repository(Line).read("l", partition_key="b")
        line.text = text
        uow.repository(Line).update(line)
        await uow.commit()


class Overtaken(FaultyStore):
    """
    A store that calls `happens` after the first commit, before the library can find out whether that commit was written.
    """

    def __init__(
        self, container: MemoryContainer, fault: CommitFault, happens: Callable[[], Awaitable[None]]
    ):
        super().__init__(container, [fault])
        self._happens: Callable[[], Awaitable[None]] | None = happens

    async def read(self, document_id: str, partition_key: str, **options: bool):
        await self._overtake()
        return await super().read(document_id, partition_key, **options)

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        await self._overtake()
        return await super().commit(partition_key, writes)

    async def _overtake(self) -> None:
        if self.commits == 1 and self._happens is not None:
            happens, self._happens = self._happens, None
            await happens()


async def test_after_an_unexpected_error_the_next_commit_finds_out_what_was_written():
    class Broken(FaultyStore):
        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            result = await super().commit(partition_key, writes)
            if self.commits == 1:
                raise RuntimeError("a fault of the SDK")
            return result

    container = MemoryContainer()
    async with Outbox(Broken(container)).unit_of_work() as uow:
        uow.repository(Note).create(Note())
        with pytest.raises(RuntimeError):
            await uow.commit()
        await uow.commit()

    assert ["NoteWritten"] == actions(container)


async def test_a_missing_event_does_not_prove_a_failed_commit_if_the_machine_slept(
    monkeypatch: pytest.MonkeyPatch,
):
    slept = [0.0]
    await written(container := MemoryContainer(), note := Note())
    monkeypatch.setattr(commit, "suspended_seconds", lambda: slept[0])

    class Asleep(FaultyStore):
        """
        A store that loses the answer while the machine sleeps and the relay sends and deletes the event.
        """

        async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
            try:
                return await super().commit(partition_key, writes)
            except StoreUnavailable:
                slept[0] = 600.0
                for event in events(container):
                    await container.commit(partition_key, [Write(kind=WriteKind.DELETE, id=event["id"])])
                raise

    async with Outbox(Asleep(container, [F.LOST_AFTER])).unit_of_work() as uow:
        (await uow.repository(Note).read(note.id)).change("second")
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()
    assert "second" == stored(container, "note")[0]["data"]["text"]


async def test_an_invalid_request_error_after_a_lost_answer_is_an_unknown_outcome():
    class Confused(FaultyStore):
        async def commit(self, partition_key, writes):
            if self.commits == 1:
                self.commits += 1
                raise InvalidRequest
            return await super().commit(partition_key, writes)

    store = Confused(MemoryContainer(), [F.LOST_AFTER], [ReadFault.UNAVAILABLE])
    async with Outbox(store).unit_of_work() as uow:
        uow.repository(Note).create(Note())
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()


async def test_the_next_commit_finds_out_whether_a_cancelled_commit_was_written():
    container = MemoryContainer()
    store = FaultyStore(container, [F.HANGING_AFTER])
    async with Outbox(store).unit_of_work() as uow:
        note = uow.repository(Note).create(Note(text="x"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await uow.commit()
        await uow.commit()

    assert (1, ["NoteWritten"]) == (note.version, actions(container))


async def test_a_conflict_at_the_first_attempt_of_a_commit_is_reported_without_another_read():
    await written(container := MemoryContainer(), note := Note())
    store = FaultyStore(container)
    async with Outbox(store).unit_of_work() as uow:
        (await uow.repository(Note).read(note.id)).change("mine")
        await changed_by_another_caller(container, note.id)
        with pytest.raises(PreconditionFailed):
            await uow.commit()
    assert 1 == store.reads


class Nameless(FaultyStore):
    """A store whose refusals name neither the document nor its etag."""

    names = False

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        try:
            return await super().commit(partition_key, writes)
        except (Conflict, PreconditionFailed) as refusal:
            raise type(refusal)(document_id=refusal.document_id if self.names else None) from refusal


# `look` is the fault of the read that looks for the event. A read that fails does not prove that the event is missing.
@pytest.mark.parametrize("look", [None, ReadFault.UNAVAILABLE])
async def test_a_commit_succeeds_if_the_store_refuses_a_second_copy_of_its_request(look: ReadFault | None):
    """
    The SDK or a proxy sent the request twice. The store refuses the second copy, because the first one was written, so the commit
    succeeds.
    """
    container = MemoryContainer()
    async with Outbox(Nameless(container, [F.RESENT], [look])).unit_of_work() as uow:
        note = uow.repository(Note).create(Note())
        await uow.commit()
    assert (1, ["NoteWritten"]) == (note.version, actions(container))


@pytest.mark.parametrize(("names", "stale", "reads"), [(False, None, 2), (True, ReadFault.UNAVAILABLE, 2)])
async def test_an_overtaken_commit_is_refused_although_the_current_etag_is_unknown(
    names: bool, stale: ReadFault | None, reads: int
):
    await written(container := MemoryContainer(), note := Note())
    store = Nameless(container, reads=[None, stale])
    store.names = names
    async with Outbox(store).unit_of_work() as uow:
        (await uow.repository(Note).read(note.id)).change("mine")
        await changed_by_another_caller(container, note.id)
        with pytest.raises(PreconditionFailed) as caught:
            await uow.commit()
    assert (None, reads) == (caught.value.actual, store.reads)


@pytest.mark.parametrize("ids", [["taken"], ["", "taken"]])
async def test_an_event_id_that_another_commit_used_is_a_conflict(ids: list[str]):
    container = MemoryContainer()
    for expected in (nullcontext(), pytest.raises(Conflict, match="'taken'")):
        async with Outbox(container).unit_of_work() as uow:
            line = uow.repository(Line).create(Line(book="b"))
            for event_id in ids:
                line.record(NoteDeleted(note_id=line.id, **({"id": event_id} if event_id else {})))
            with expected:
                await uow.commit()
    assert 1 == len(stored(container, "line"))


async def test_an_unanswered_commit_has_an_unknown_outcome_if_its_entities_are_gone():
    container = MemoryContainer()
    await written(container, *(Line(id=line_id, book="b") for line_id in "ac"))

    async def theirs() -> None:
        await container.commit("b", [Write(kind=WriteKind.DELETE, id=line_id) for line_id in "ac"])

    async with Outbox(Overtaken(container, F.LOST_BEFORE, theirs)).unit_of_work() as uow:
        lines = uow.repository(Line)
        lines.update(await lines.read("a", partition_key="b"))
        await lines.delete("c", partition_key="b")
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()


async def test_a_conflict_with_a_document_that_cannot_be_read_is_not_a_success():
    class Vanishing(MemoryContainer):
        """A store whose conflicting document expires after the refusal, before the commit can read it."""

        async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
            raise Conflict(document_id=writes[0].id)

    container = Vanishing()
    async with Outbox(container, retries=RetryOptions(deadline_seconds=5)).unit_of_work() as uow:
        uow.repository(Note).create(Note(text="hello"))
        with pytest.raises(CommitOutcomeUnknown):
            await uow.commit()

    assert () == container.documents()
