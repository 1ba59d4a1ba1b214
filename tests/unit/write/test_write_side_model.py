"""
The write side against a model: whatever is done, committed, lost and repeated, by several units of work on the same
entities, the documents in the store are the model's and the events are those that were raised, in order, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import looptime
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cosmos_outbox import (
    Backoff,
    CommitOutcomeUnknown,
    Conflict,
    NotFound,
    Outbox,
    PreconditionFailed,
    RetryOptions,
    Store,
    StoreUnavailable,
    TooManyRequests,
    UnitOfWork,
    UsageError,
)
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import ChangeFeed, CommitResult, Document, StartFrom, Write, WriteKind
from cosmos_outbox.relay.deletion import DEFAULT_KEEP
from cosmos_outbox.write import commit
from cosmos_outbox.write.commit import ABSENCE_PROVES_FOR
from tests.support.backends import opened
from tests.support.effort import examples
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.support.notes import NoteEvent, NoteTagged
from tests.unit.write.write_model import (
    KEYS,
    SHELVES,
    Held,
    Line,
    Memo,
    Part,
    Passage,
    Perused,
    Skimmed,
    Snapshot,
    Status,
    Stored,
    Told,
    Unit,
    described,
    documents,
    read_back,
    state,
    told_by,
)

F = CommitFault


class Recorder:
    """
    Next to the real store: tells in which order commits were applied, also those no caller waits for any more.
    """

    def __init__(
        self,
        store: Store,
        applied: Callable[[Sequence[Write]], None],
        brings_back: Callable[[Sequence[Write]], bool],
    ) -> None:
        self._store, self._applied, self._brings_back = store, applied, brings_back
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[CommitResult]] = set()
        self.read, self.query, self.list = store.read, store.query, store.list
        self.key_paths = store.key_paths

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        task = asyncio.create_task(self._commit(partition_key, writes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        async with self._one_at_a_time:
            if self._brings_back(writes):
                raise StoreUnavailable  # lost at last
            result = await self._store.commit(partition_key, writes)
            self._applied(writes)
            return result

    async def idle(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Watched(FaultyStore):
    """Tells what the unit of work sends, before anything can get lost."""

    sends: Callable[[Sequence[Write]], None]

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        self.sends(writes)
        return await super().commit(partition_key, writes)


commit_faults = st.one_of(
    st.just([]),
    st.just([]),
    st.lists(st.none() | st.sampled_from(CommitFault), min_size=1, max_size=4),
    st.sampled_from([F.LOST_AFTER, F.LOST_BEFORE, F.THROTTLED, F.REFUSED]).map(lambda fault: [fault] * 40),
    st.just([F.LATE] + [F.LOST_BEFORE] * 40),
    st.just([F.HANGING_AFTER]),  # what soon expires has expired when it is given up
    st.sampled_from([[F.ASLEEP], [F.ASLEEP, F.LOST_BEFORE], [F.LOST_BEFORE, F.ASLEEP, F.THROTTLED]]),
)
read_faults = st.one_of(
    st.just([]),
    st.just([ReadFault.UNAVAILABLE]),
    st.lists(st.none() | st.sampled_from(ReadFault), max_size=3),
    st.just([ReadFault.UNAVAILABLE] * 40),
)
units = st.sampled_from([0, 0, 0, 1, 2])
whats = st.sampled_from(["change", "tag", "skim", "peruse", "set", "edit"])
places = st.integers(0, 3)


class WriteSide(RuleBasedStateMachine):
    book: ClassVar[str] = "book"
    paths: ClassVar[tuple[str, ...]] = ("/partitionKey",)
    new_loop: ClassVar[Callable[[], asyncio.AbstractEventLoop]] = looptime.new_event_loop
    retries: ClassVar[RetryOptions] = RetryOptions(deadline_seconds=3, attempt_seconds=1)
    late_seconds: ClassVar[float] = 5.0  # behind everybody's deadline
    skimmed: ClassVar[type[NoteEvent]] = Skimmed
    waits_for_late_ones: ClassVar[bool] = False

    def opened(self) -> AbstractAsyncContextManager[tuple[Store, ChangeFeed]]:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored] = {}
        self.told: list[Told] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.purged: set[str] = set()
        self.broken: list[str] = []
        self.serial = 0
        self.names = ["n0", "n1"]
        self.loop = type(self).new_loop()
        self._closing = asyncio.Event()
        ready: asyncio.Future[tuple[Store, ChangeFeed]] = self.loop.create_future()
        self._host = self.loop.create_task(self._hosted(ready))
        store, self.feed = self.run(asyncio.wait_for(ready, 20))
        self.store = store
        self.recorder = Recorder(store, self._applied, self._brings_back)
        self.faulty = Watched(self.recorder, late_seconds=self.late_seconds)
        self.faulty.sends, self.faulty.sleep = self._sends, self._sleep
        self.slept = 0.0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(commit, "suspended_seconds", lambda: self.slept)
        outbox = Outbox(self.faulty, retries=self.retries)
        outbox.on(NoteTagged, self._index)
        self.units = [Unit(real=outbox.unit_of_work()) for _ in range(3)]
        self.committing = self.units[0]

    async def _hosted(self, ready: asyncio.Future[tuple[Store, ChangeFeed]]) -> None:
        async with self.opened() as backend:
            ready.set_result(backend)
            await self._closing.wait()

    def run(self, work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    # What is done to entities

    @rule(unit=units, place=st.integers(0, 1))
    def create_passage(self, unit: int, place: int) -> None:
        held, name = self.units[unit].held, self.names[place]
        if name not in held:
            passage = Passage(id=name, book=self.book, text=f"created {self.next_serial()}")
            self.units[unit].real.repository(Passage).create(passage)
            held[name] = Held(entity=passage)

    @rule(unit=units)
    def create_line(self, unit: int) -> None:
        line = Line(id=f"line-{self.next_serial()}", book=self.book, text="new")
        self.units[unit].real.repository(Line).create(line)
        self.units[unit].held[line.id] = Held(entity=line)

    @rule(unit=units)
    def create_memo(self, unit: int) -> None:
        place = self.store.key_paths.fields(KEYS[self.book])
        real, name = self.units[unit].real, f"memo-{self.next_serial()}"
        model = real.save({"id": name, **place, "type": "memo", "text": "new"})
        self.units[unit].held[name] = Held(entity=Memo(real, model))

    @rule(unit=units, place=places, newest=st.booleans())
    def read(self, unit: int, place: int, newest: bool) -> None:
        self._settle_late_ones()
        candidates = sorted(self.stored) or self.names
        name = candidates[-1 - place % len(candidates)] if newest else self.names[place % len(self.names)]
        kind = Memo if "m" in name else Line if "l" in name else Passage
        self._read(self.units[unit], kind, name)

    @rule(unit=units)
    def page_of_all_keys(self, unit: int) -> None:
        self._settle_late_ones()
        held = self.units[unit].held
        page = self.run(self.units[unit].real.repository(Passage).page_of_all_keys(100))
        for passage in page.entities:
            there = self.stored[passage.id]
            if passage.id in held:
                assert passage is held[passage.id].entity
            else:
                held[passage.id] = Held(entity=passage, base=there, shown=there.data)
        expected = {
            name
            for name, there in self.stored.items()
            if there.kind == "passage"
            and not there.deleted
            and not (name in held and (held[name].purged or held[name].entity.deleted))
        }
        assert expected == {passage.id for passage in page.entities}

    @rule(unit=units, place=places, what=whats)
    def change(self, unit: int, place: int, what: str) -> None:
        chosen = self._changeable(unit, place)
        if not chosen:
            return
        held, number = chosen[place % len(chosen)], self.next_serial()
        entity, text = held.entity, f"text {number}"
        if what == "edit":
            entity.text = text
        elif what in ("skim", "peruse"):
            seen = self.skimmed if what == "skim" else Perused
            entity.record(seen(note_id=entity.id))
            held.recorded.append((number, seen.action, ""))
        elif isinstance(entity, Memo):
            entity.text = text
            entity.unit.save(entity.model)
            held.asked = number
        elif isinstance(entity, Line) or what == "set":
            entity.text = text
            self.units[unit].real.repository(type(entity)).update(entity)
            held.asked = number
        elif what == "change":
            entity.change(text)
            held.recorded.append((number, "NoteChanged", text))
        else:
            entity.tag_as(str(number))
            tagged = (number, "NoteTagged", str(number))
            actions = [action for _, action, _ in held.recorded]
            at = actions.index("NoteTagged") if "NoteTagged" in actions else len(actions)
            held.recorded[at : at + 1] = [tagged]

    def _changeable(self, unit: int, place: int) -> list[Held]:
        if not self.units[unit].held:
            name = self.names[place % 2]
            if name in self.stored:
                self._settle_late_ones()
                self._read(self.units[unit], Passage, name)
            else:
                self.create_passage(unit, place % 2)
        return [held for held in self.units[unit].held.values() if not held.purged]

    @rule(unit=units, place=places, hard=st.booleans())
    def delete(self, unit: int, place: int, hard: bool) -> None:
        self._settle_late_ones()
        chosen = list(self.units[unit].held.values()) or self._changeable(unit, place)
        if not chosen:
            return
        held = chosen[place % len(chosen)]
        entity_id, kind = held.entity.id, type(held.entity)
        if hard and any(
            h.base is None for u in self.units for h in u.held.values() if h.entity.id == entity_id
        ):
            return  # an id that is created, deleted for good and created again has a beginning of its own
        found = self._read(self.units[unit], kind, entity_id, deletes=True, include_deleted=hard)
        if found is None:
            return
        number = self.next_serial()
        told = "NoteDeleted" in [action for _, action, _ in found.recorded]
        if isinstance(found.entity, Passage) and not told and not (found.base and found.base.deleted):
            found.recorded.append((number, "NoteDeleted", ""))
        found.asked = number
        found.purged = hard or isinstance(found.entity, Line | Memo)
        if found.purged and entity_id in self.names:
            self.names[self.names.index(entity_id)] = f"n{number}"

    @rule(unit=units, place=places)
    def revive(self, unit: int, place: int) -> None:
        self._settle_late_ones()
        chosen = self.units[unit]
        if not chosen.graves:
            return
        entity = chosen.graves[place % len(chosen.graves)]
        repository = chosen.real.repository(type(entity))
        if entity.id in chosen.held:
            return
        with pytest.raises(UsageError, match="neither read nor created"):
            repository.update(entity)
        if entity.id in self.stored or any(
            entity.id in (*other.held, *(other.current.ids if other.current else ())) for other in self.units
        ):
            return  # see `delete`
        repository.create(entity)
        chosen.graves.remove(entity)
        chosen.held[entity.id] = Held(entity=entity)

    @rule(seconds=st.sampled_from([0.5, 2]))
    def time_passes(self, seconds: float) -> None:
        if not self.waits_for_late_ones:
            self.run(asyncio.sleep(seconds))

    @rule()
    def what_was_sent_is_deleted(self) -> None:
        if self.waits_for_late_ones:
            return
        self.run(asyncio.sleep(DEFAULT_KEEP.total_seconds()))
        self.run(self._delete_events())

    async def _sleep(self) -> None:
        self.slept += DEFAULT_KEEP.total_seconds()
        await self._delete_events()

    async def _delete_events(self) -> None:
        for document in await _all_documents(self.feed):
            if document["type"] == "domainEvent":
                key = self.store.key_paths.key_of(document)
                assert key is not None
                await self.store.commit(key, [Write(kind=WriteKind.DELETE, id=document["id"])])
        for snapshot in self.snapshots.values():
            if snapshot.applied:
                snapshot.told = [replace(told, expires_at=0.0) for told in snapshot.told]
        self.told = []

    @rule(unit=units, sure=st.integers(0, 2))
    def roll_back(self, unit: int, sure: int) -> None:
        if sure:  # most of the time there is more to be seen without it
            return
        self.units[unit].real.rollback()
        self._forget(self.units[unit])

    # Commits

    @rule(unit=units, faults=commit_faults, stale=read_faults)
    def commit(self, unit: int, faults: list[CommitFault | None], stale: list[ReadFault | None]) -> None:
        self.committing = chosen = self.units[unit]
        if chosen.current is None and not any(held.pending for held in chosen.held.values()):
            self.change(unit, place=0, what="skim" if len(stale) % 2 else "change")
        self.faulty.commit_faults, self.faulty.read_faults = list(faults), list(stale)
        disturbed = bool(faults or stale)
        settled: list[Snapshot] = [] if chosen.current is None else [chosen.current]
        try:
            commit = self.run(chosen.real.commit())
        except CommitOutcomeUnknown:
            self._unknown(chosen, disturbed=disturbed)
        except (Conflict, NotFound, PreconditionFailed) as refusal:
            event(type(refusal).__name__)
            self._refused(chosen, refusal.document_id)
        except (TooManyRequests, StoreUnavailable) as failure:
            event(type(failure).__name__)
            self._not_written(chosen)
        else:
            if chosen.current is not None and chosen.current not in settled:
                settled.append(chosen.current)
            if chosen.current is not None:
                self._written(chosen, chosen.current)
            assert [told.action for one in settled for told in one.told] == [
                event.action for event in commit.events
            ]
            assert sum(len(one.writes) for one in settled) == commit.operations
            event(f"{len(settled)} written after {min(commit.attempts, 3)} attempts")
        finally:
            self.faulty.commit_faults, self.faulty.read_faults = [], []
            self._settle_late_ones()

    @rule(unit=units, place=places, what=whats, faults=commit_faults, stale=read_faults)
    def change_and_commit(
        self,
        unit: int,
        place: int,
        what: str,
        faults: list[CommitFault | None],
        stale: list[ReadFault | None],
    ) -> None:
        self.change(unit, place, what)
        self.commit(unit, faults, stale)

    @rule(unit=units, place=places, hard=st.booleans(), what=whats, faults=commit_faults, stale=read_faults)
    def delete_and_commit(
        self,
        unit: int,
        place: int,
        *,
        hard: bool,
        what: str,
        faults: list[CommitFault | None],
        stale: list[ReadFault | None],
    ) -> None:
        self.change(unit, place, what)
        self.delete(unit, place, hard)
        self.commit(unit, faults, stale)

    @precondition(lambda self: any(unit.current is not None for unit in self.units))
    @rule(place=places, what=whats)
    def change_and_settle(self, place: int, what: str) -> None:
        unit = next(number for number, unit in enumerate(self.units) if unit.current is not None)
        self.change_and_commit(unit, place, what, [], [])

    def _sends(self, writes: Sequence[Write]) -> None:
        unit = self.committing
        if id(writes) in self.snapshots:
            assert self.snapshots[id(writes)] is unit.current
        else:
            if unit.current is not None:
                self._written(unit, unit.current)  # or it would not be followed by another one
            unit.current = self.snapshots[id(writes)] = self._snapshot(unit, writes)
            assert read_back(writes) == (unit.current.told, documents(unit.current))
        if not unit.current.told and self.faulty.commit_faults[:1] == [F.RESENT]:
            self.faulty.commit_faults[0] = None  # without an event nothing tells our own write from another's

    def _snapshot(self, unit: Unit, writes: Sequence[Write]) -> Snapshot:
        for held in list(unit.held.values()):
            for serial, action, value in held.events() if held.pending or not held.purged else ():
                if serial is not None and action == "NoteTagged" and serial not in unit.handled:
                    unit.handled.add(serial)
                    line = unit.real._entities.find(("line",), f"line-of-{value}")
                    assert line is not None
                    unit.held[line.id] = Held(entity=line.model)
        pending = [held for held in unit.held.values() if held.pending]
        told = [
            Told(held.entity.id, held.version, action, value)
            for held in pending
            for _, action, value in held.events()
        ]
        parts = [
            Part(
                held=held,
                base=held.base,
                after=held.after(),
                settles=frozenset(serial for serial, _, _ in held.recorded),
                asked=held.asked,
            )
            for held in pending
        ]
        return Snapshot(parts=parts, told=told, writes=writes, sent_at=self.loop.time() + self.slept)

    def _applied(self, writes: Sequence[Write]) -> None:
        snapshot = self.snapshots[id(writes)]
        if snapshot.applied or snapshot.status is Status.NOT_WRITTEN:
            self.broken.append(f"applied though {snapshot.status}, applied before: {snapshot.applied}")
        snapshot.applied = True
        for part in snapshot.parts:
            name = part.held.entity.id
            if self.stored.get(name) is not part.base:
                self.broken.append(f"{name} was overwritten: {self.stored.get(name)} by {part.after}")
            self.stored.pop(name, None)
            if part.after is None:
                self.purged.add(name)
            else:
                self.stored[name] = part.after
        snapshot.told = [self._dated(told) for told in snapshot.told]
        self.told += snapshot.told

    def _dated(self, told: Told) -> Told:
        short = told.action == Skimmed.action
        return replace(told, expires_at=int(self.loop.time()) + 1) if short else told

    def _kept(self, told: Sequence[Told]) -> list[Told]:
        return [one for one in told if self.loop.time() < one.expires_at]

    def _brings_back(self, writes: Sequence[Write]) -> bool:
        """
        Say whether this is what decision 5 owns up to: a creation that comes so late that it undoes a deletion for good.
        """
        snapshot = self.snapshots[id(writes)]
        creates = {part.held.entity.id for part in snapshot.parts if part.base is None}
        over = snapshot.status is Status.NOT_WRITTEN or (snapshot.applied and not self._kept(snapshot.told))
        return over and not creates.isdisjoint(self.purged)

    def _unknown(self, unit: Unit, *, disturbed: bool) -> None:
        assert unit.current is not None
        elapsed = self.loop.time() + self.slept - unit.current.sent_at
        recent = elapsed < ABSENCE_PROVES_FOR.total_seconds()
        if disturbed:
            event("unknown")
            return
        event("unknown, and nothing failed")
        assert not (unit.current.lasts and recent), "an event that lasts tells, and so does its absence"
        unit.real.rollback()
        self._forget(unit)

    def _written(self, unit: Unit, snapshot: Snapshot) -> None:
        assert snapshot.applied, "nothing of it was written"
        snapshot.status, unit.current = Status.WRITTEN, None
        for part in snapshot.parts:
            held = part.held
            held.recorded = [one for one in held.recorded if one[0] not in part.settles]
            held.done = part.asked
            if part.after is None:
                unit.held.pop(held.entity.id, None)
                if not isinstance(held.entity, Memo):
                    unit.graves.append(held.entity)
            else:
                held.shown = part.after.data
                # under an unknown etag it is like no state there ever was
                held.base = replace(part.after) if held.entity.etag is None else part.after
                current = self.stored.get(held.entity.id)
                if (
                    isinstance(held.entity, Memo)
                    and held.entity.etag
                    and current
                    and current.data == held.shown
                ):
                    held.base = (
                        current  # another commit may have written the same again: only its content shows that
                    )

    def _not_written(self, unit: Unit) -> None:
        assert unit.current is not None
        assert not unit.current.applied, "it was written"
        unit.current.status, unit.current = Status.NOT_WRITTEN, None

    def _refused(self, unit: Unit, document_id: str | None) -> None:
        snapshot = unit.current
        self._not_written(unit)
        assert snapshot is not None
        in_the_way = [
            part.held.entity.id
            for part in snapshot.parts
            if self.stored.get(part.held.entity.id) is not part.base
        ]
        assert document_id in in_the_way, "refused though nothing was in the way"
        self._forget(unit)  # a refused attempt leaves nothing behind

    def _read(
        self,
        unit: Unit,
        kind: type[Passage | Line | Memo],
        name: str,
        *,
        deletes: bool = False,
        include_deleted: bool = False,
    ) -> Held | None:
        held, there = unit.held.get(name), self.stored.get(name)
        if held is not None:
            gone = held.purged or (isinstance(held.entity, Passage) and held.entity.deleted)
        else:
            gone = there is None or there.deleted
        shows_deleted = include_deleted and kind is not Memo
        expected = (held is not None or there is not None) and (shows_deleted or not gone)
        try:
            if kind is Memo:
                entity = self._read_memo(unit, name, deletes=deletes)
            elif deletes:
                entity = self.run(
                    unit.real.repository(kind).delete(
                        name, partition_key=KEYS[self.book], hard=include_deleted
                    )
                )
            else:
                entity = self.run(unit.real.repository(kind).read(name, partition_key=KEYS[self.book]))
        except NotFound:
            assert not expected
            return None
        assert expected
        if held is not None:
            assert entity is held.entity
            return held
        assert there is not None
        if not deletes:
            assert (there.text, there.version) == (entity.text, entity.version)
        unit.held[name] = Held(entity=entity, base=there, shown=there.data)
        return unit.held[name]

    def _read_memo(self, unit: Unit, name: str, *, deletes: bool) -> Memo:
        memos = unit.real.documents()
        model = self.run(memos.read(name, partition_key=KEYS[self.book]))
        if deletes:
            memos.delete(model)
        held = unit.held.get(name)
        if held is not None and isinstance(held.entity, Memo):
            assert model is held.entity.model
            return held.entity
        return Memo(unit.real, model)

    def _index(self, tagged: NoteTagged, uow: UnitOfWork) -> None:
        uow.repository(Line).create(Line(id=f"line-of-{tagged.tag}", book=self.book, text=tagged.tag))

    def _forget(self, unit: Unit) -> None:
        unit.held, unit.handled, unit.current, unit.graves = {}, set(), None, []

    def _settle_late_ones(self) -> None:
        if self.waits_for_late_ones:
            self.run(self.faulty.arrived())
            self.run(self.recorder.idle())

    # What holds at any time

    @invariant()
    def documents_and_events_in_the_store_are_the_models(self) -> None:
        self._settle_late_ones()
        assert [] == self.broken, self.broken
        documents = self.run(_all_documents(self.feed))
        entities = {d["id"]: described(d) for d in documents if d["type"] != "domainEvent"}
        assert {name: state(stored) for name, stored in self.stored.items()} == entities
        events = [document for document in documents if document["type"] == "domainEvent"]
        events.sort(key=lambda document: (document["_lsn"], document["meta"]["sequence"]))
        assert self._kept(self.told) == [told_by(document) for document in events]

    @invariant()
    def every_entity_has_the_events_that_it_raised_and_were_not_written(self) -> None:
        for unit in self.units:
            for held in unit.held.values():
                assert [action for _, action, _ in held.events()] == [
                    event.action for event in held.entity.events
                ]
                assert (held.base is None) == held.entity.is_new

    def teardown(self) -> None:
        self.run(self.faulty.arrived())
        self.run(self.recorder.idle())
        try:
            self.documents_and_events_in_the_store_are_the_models()
        finally:
            self.patch.undo()
            self.loop.call_soon(self._closing.set)
            self.run(self._host)
            self.run(self.loop.shutdown_asyncgens())
            self.loop.close()


async def _all_documents(feed: ChangeFeed) -> list[Document]:
    rid = (await feed.describe()).container_rid
    documents: list[Document] = []
    for physical in await feed.physical_ranges():
        continuation = None
        while True:
            page = await feed.read_page(
                physical,
                container_rid=rid,
                continuation=continuation,
                start=StartFrom.BEGINNING,
                max_items=1000,
            )
            if not page.documents:
                break
            documents += page.documents
            continuation = page.continuation
    return documents


class OnMemory(WriteSide):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Store, ChangeFeed]]:
        container = MemoryContainer(key_paths=self.paths, now=asyncio.get_running_loop().time)
        yield container, container


class OnThreePaths(OnMemory):
    book, paths = "shelved", SHELVES


class OnTheEmulator(WriteSide):
    new_loop = asyncio.new_event_loop
    retries = RetryOptions(
        deadline_seconds=0.4, attempt_seconds=0.2, backoff=Backoff(initial_seconds=0.01, maximum_seconds=0.05)
    )
    late_seconds = 0.1
    skimmed = Perused
    waits_for_late_ones = True

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Store, ChangeFeed]]:
        async with opened("emulator", key_paths=self.paths) as container:
            yield container.store, container.feed


class OnThreePathsOfTheEmulator(OnTheEmulator):
    book, paths = "shelved", SHELVES


@pytest.mark.parametrize(
    ("machine", "examples", "steps"),
    [
        pytest.param(OnMemory, examples(20, many=160), 40, id="memory"),
        pytest.param(OnThreePaths, examples(10, many=80), 40, id="memory, three paths"),
        pytest.param(OnTheEmulator, examples(3, many=10), 20, id="emulator"),
        pytest.param(OnThreePathsOfTheEmulator, examples(2, many=10), 20, id="emulator, three paths"),
    ],
)
def test_whatever_is_done_and_lost_the_store_holds_what_the_model_says(
    machine: type[WriteSide], examples: int, steps: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
