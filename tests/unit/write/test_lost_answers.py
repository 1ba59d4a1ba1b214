"""
Whatever requests and answers are lost, a commit is written once or not at all, and its caller is never told the opposite.

Three units of work append tokens to the same few logs (`lost_answers_model.py`). They commit over a network that loses, delays and
repeats requests (`tests/support/faulty_store.py`), while the relay sends events and deletes them. After each step:

- a log has its tokens in the order of its events, each once;
- of each batch all tokens are written, or none;
- the store contains everything that a commit reported as written, and nothing that a commit refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cosmos_outbox import (
    CommitOutcomeUnknown,
    Conflict,
    NotFound,
    Outbox,
    PreconditionFailed,
    StoreUnavailable,
    TooManyRequests,
    UnitOfWork,
)
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import CommitResult, Write, WriteKind
from cosmos_outbox.relay.deletion import DEFAULT_KEEP
from cosmos_outbox.write import commit
from cosmos_outbox.write.commit import ABSENCE_PROVES_FOR
from tests.support.faulty_store import CommitFault, FaultyStore, ReadFault
from tests.unit.write.lost_answers_model import (
    EVENTS,
    AppendedAndIndexed,
    Batch,
    DictLog,
    Found,
    Log,
    TokenKind,
    Unit,
    event_of,
)
from tests.unit.write.store_under_test import Backend, StoreUnderTest, run_on

F = CommitFault
commit_faults = st.one_of(
    st.just([]),
    st.just([]),
    st.lists(st.none() | st.sampled_from(CommitFault), min_size=1, max_size=4),
    st.sampled_from([F.LOST_AFTER, F.LOST_BEFORE, F.THROTTLED, F.REFUSED]).map(lambda fault: [fault] * 40),
    st.just([F.LATE] + [F.LOST_BEFORE] * 40),
    # No answer comes, so the attempt is given up late. By then an event with a short time to live has expired.
    st.just([F.HANGING_AFTER]),
    st.sampled_from([[F.ASLEEP], [F.ASLEEP, F.LOST_BEFORE], [F.LOST_BEFORE, F.ASLEEP, F.THROTTLED]]),
)
read_faults = st.one_of(
    st.just([]),
    st.just([ReadFault.UNAVAILABLE]),
    st.lists(st.none() | st.sampled_from(ReadFault), max_size=3),
    st.just([ReadFault.UNAVAILABLE] * 40),
)
units = st.sampled_from([0, 0, 0, 1, 2])
places = st.integers(0, 3)
kinds = st.sampled_from(TokenKind)


class WatchedStore(FaultyStore):
    """A store that shows each request to the model of the expected outcomes, before a fault can lose the request."""

    watch: Callable[[Sequence[Write]], None]

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        self.watch(writes)
        return await super().commit(partition_key, writes)


class LostAnswers(RuleBasedStateMachine):
    backend: ClassVar[Backend]

    def __init__(self) -> None:
        super().__init__()
        self.under_test = StoreUnderTest(self.backend)
        self.run, self.loop = self.under_test.run, self.under_test.loop
        self.network = WatchedStore(self.under_test.store, late_seconds=self.backend.late_seconds)
        self.network.watch, self.network.sleep = self._watch, self._sleep
        self.asleep = 0.0  # seconds that the machine slept, which the loop's clock does not count
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(commit, "suspended_seconds", lambda: self.asleep)
        outbox = Outbox(self.network, retries=self.backend.retries)
        outbox.on(AppendedAndIndexed, self._index)
        self.units = [Unit(uow=outbox.unit_of_work()) for _ in range(3)]
        self.committing = self.units[0]
        self.serial = 0
        self.names = ["log-0", "dict-0"]
        self.batches: list[Batch] = []
        self.written: list[Batch] = []
        self.never: set[str] = set()  # tokens of refused or rolled back changes, which must not be stored
        self.sent: list[tuple[str, str]] = []  # events that the relay sent and deleted
        self.deleted: dict[str, str] = {}  # by the id of a deleted `Log`: its last text
        self.found = Found(texts={}, events=[])  # what the store contained when the test last read it
        self.indexed: list[str] = []  # the `token` of each event that the event handler got

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    # Changes

    @rule(unit=units, place=places, kind=kinds)
    def append(self, unit: int, place: int, kind: TokenKind) -> None:
        chosen, name = self.units[unit], self.names[place % 2]
        log = chosen.logs.get(name) or self._read_or_create(chosen, name)
        if name in chosen.deletes or (chosen.batch and name in chosen.batch.deletes):
            return
        token = f"{self.next_serial()}{kind}"
        log.text += f"{token} "
        if isinstance(log, DictLog):
            chosen.uow.save(log.stored)
        self._record(chosen, log, token)

    def _record(self, unit: Unit, log: Log | DictLog, token: str) -> None:
        if (kind := TokenKind(token[-1])) in EVENTS:
            log.record(EVENTS[kind](log_id=log.id, token=token))
        unit.tokens.add(token)

    def _read_or_create(self, unit: Unit, name: str) -> Log | DictLog:
        uow, key, exists = unit.uow, self.backend.key, name in self.found.texts
        log: Log | DictLog
        if name.startswith("dict"):
            new = {"id": name, **self.under_test.store.key_paths.fields(key), "type": "dict", "text": ""}
            read = uow.documents().read
            log = DictLog(uow, self.run(read(name, partition_key=key)) if exists else uow.save(new))
        elif exists:
            log = self.run(uow.repository(Log).read(name, partition_key=key))
        else:
            log = uow.repository(Log).create(Log(id=name, key=key))
        if exists:
            unit.texts[name] = log.text
        unit.logs[name] = log
        return log

    def _index(self, event: AppendedAndIndexed, uow: UnitOfWork) -> None:
        self.indexed.append(event.token)
        uow.repository(Log).create(Log(id=f"index-{event.token}", key=self.backend.key))

    @rule(unit=units, place=places, kind=st.sampled_from([TokenKind.EVENT, TokenKind.SILENT]))
    def delete(self, unit: int, place: int, kind: TokenKind) -> None:
        """
        Delete a log for good.

        A creation that arrives after the deletion would create the log again, which is a known limit of the library. So this rule first
        waits until late requests have arrived, and it does nothing while the outcome of another unit's commit is unknown.
        """
        chosen, name = self.units[unit], self.names[place % 2]
        others = [other for other in self.units if other is not chosen]
        if any(other.batch or (name in other.logs and name not in other.texts) for other in others):
            return
        self.run(self.network.arrived())
        if name not in chosen.logs and name not in self.look().texts:
            return
        log = chosen.logs.get(name) or self._read_or_create(chosen, name)
        if chosen.tokens or (name not in chosen.texts and chosen.batch is None):
            return
        if kind is TokenKind.EVENT:
            self._record(chosen, log, f"{self.next_serial()}{kind}")
        if isinstance(log, DictLog):
            chosen.uow.documents().delete(log.stored)
        else:
            delete = chosen.uow.repository(Log).delete
            self.run(delete(name, partition_key=self.backend.key, hard=True))
        chosen.deletes.add(name)
        self.names[place % 2] = f"{name.partition('-')[0]}-{self.serial}"

    @rule(unit=units, sure=st.integers(0, 2))
    def roll_back(self, unit: int, sure: int) -> None:
        if sure == 0:  # seldom (for one value of three): a rollback discards the changes that the test checks
            self.units[unit].uow.rollback()
            self._forget(self.units[unit])

    def _forget(self, unit: Unit) -> None:
        self.never |= unit.tokens
        unit.forget()

    # Rules for the passing of time and for the relay

    @rule(seconds=st.sampled_from([0.5, 2]))
    def let_time_pass(self, seconds: float) -> None:
        if self.backend.virtual_time:
            self.run(asyncio.sleep(seconds))

    @rule()
    def let_the_relay_delete_what_it_sent(self) -> None:
        if self.backend.virtual_time:
            self.run(asyncio.sleep(DEFAULT_KEEP.total_seconds()))
            self.run(self._delete_events())

    async def _sleep(self) -> None:
        self.asleep += DEFAULT_KEEP.total_seconds()
        await self._delete_events()

    async def _delete_events(self) -> None:
        for document in await self.under_test.documents():
            if document["type"] == "domainEvent":
                delete = Write(kind=WriteKind.DELETE, id=document["id"])
                await self.under_test.store.commit(self.backend.key, [delete])
                self.sent.append(event_of(document))

    def _let_late_ones_arrive(self) -> None:
        if not self.backend.virtual_time:
            self.run(self.network.arrived())

    # Commits

    @rule(unit=units, faults=commit_faults, stale=read_faults)
    def commit(self, unit: int, faults: list[CommitFault | None], stale: list[ReadFault | None]) -> None:
        self.committing = chosen = self.units[unit]
        if chosen.batch is None and not chosen.tokens and not chosen.deletes:
            self.append(unit, place=len(stale), kind=TokenKind.EVENT)
        if chosen.deletes:  # see `delete`
            faults = [F.LOST_BEFORE if fault is F.LATE else fault for fault in faults]
        self.network.commit_faults, self.network.read_faults = list(faults), list(stale)
        try:
            self.run(chosen.uow.commit())
        except CommitOutcomeUnknown:
            event("unknown")
            if not faults and not stale:
                self._give_up(chosen)
        except (Conflict, NotFound, PreconditionFailed) as refusal:
            event(type(refusal).__name__)
            self._refused(chosen, refusal.document_id)
        except (TooManyRequests, StoreUnavailable) as failure:
            event(type(failure).__name__)
            self._stays_to_be_written(chosen)
        else:
            if chosen.batch is not None:
                self._written(chosen)
            assert not chosen.tokens | chosen.deletes, "a change is forgotten"
        finally:
            self.network.commit_faults, self.network.read_faults = [], []
            self._let_late_ones_arrive()

    @rule(unit=units, place=places, kind=kinds, faults=commit_faults, stale=read_faults)
    def append_and_commit(
        self,
        unit: int,
        place: int,
        kind: TokenKind,
        faults: list[CommitFault | None],
        stale: list[ReadFault | None],
    ) -> None:
        self.append(unit, place, kind)
        self.commit(unit, faults, stale)

    @precondition(lambda self: any(unit.batch is not None for unit in self.units))
    @rule(place=places, kind=kinds, deletes=st.booleans())
    def change_what_is_in_doubt_and_commit(self, place: int, kind: TokenKind, *, deletes: bool) -> None:
        in_doubt = [number for number, unit in enumerate(self.units) if unit.batch is not None]
        for number in in_doubt[:1]:
            if deletes:
                self.delete_and_commit(number, place, [], [])
            else:
                self.append_and_commit(number, place, kind, [], [])

    @rule(unit=units, place=places, faults=commit_faults, stale=read_faults)
    def delete_and_commit(
        self, unit: int, place: int, faults: list[CommitFault | None], stale: list[ReadFault | None]
    ) -> None:
        self.delete(unit, place, TokenKind.EVENT)
        self.commit(unit, faults, stale)

    def _watch(self, writes: Sequence[Write]) -> None:
        unit = self.committing
        if unit.batch is None or unit.batch.writes is not writes:
            if unit.batch is not None:
                self._written(unit)  # a request with other writes shows that the previous batch was written
            self._begin(unit, writes)
        unproved = all(write.document is None or "meta" not in write.document for write in writes)
        # With RESENT, a request arrives twice, and its second copy is refused. Without an event in the commit, nothing would show that the
        # first copy was written. So such a commit gets no RESENT.
        if unproved and self.network.commit_faults[:1] == [F.RESENT]:
            self.network.commit_faults[0] = None

    def _begin(self, unit: Unit, writes: Sequence[Write]) -> None:
        unit.batch = Batch(
            writes=writes,
            tokens=frozenset(unit.tokens),
            deletes=frozenset(unit.deletes),
            texts={name: log.text for name, log in unit.logs.items() if name not in unit.deletes},
            unguarded=frozenset(name for name in unit.texts if unit.logs[name].etag is None),
            sent_at=self.loop.time() + self.asleep,
        )
        self.batches.append(unit.batch)
        for name in unit.deletes:
            self.deleted[name] = max(self.deleted.get(name, ""), unit.texts[name], key=len)
        unit.tokens, unit.deletes = set(), set()

    def _written(self, unit: Unit) -> None:
        assert unit.batch is not None
        self.written.append(unit.batch)
        unit.texts |= unit.batch.texts
        for name in unit.batch.deletes:
            del unit.logs[name], unit.texts[name]
        unit.batch = None

    def _refused(self, unit: Unit, document_id: str | None) -> None:
        assert unit.batch is not None
        assert document_id is not None
        stored = self.look().texts.get(document_id)
        in_the_way = stored != unit.texts.get(document_id) or document_id in unit.batch.unguarded
        assert in_the_way, "refused, and no other commit was in the way"
        self.never |= unit.batch.tokens
        self._forget(unit)

    def _stays_to_be_written(self, unit: Unit) -> None:
        assert unit.batch is not None
        self.batches.remove(unit.batch)
        assert unit.batch.tokens.isdisjoint(self.look().tokens({})), "it was written"
        unit.tokens |= unit.batch.tokens
        unit.deletes |= unit.batch.deletes
        unit.batch = None

    def _give_up(self, unit: Unit) -> None:
        assert unit.batch is not None
        elapsed = self.loop.time() + self.asleep - unit.batch.sent_at
        recent = elapsed < ABSENCE_PROVES_FOR.total_seconds()
        assert not (unit.batch.is_proved and recent), "its event tells, and so does the absence of its event"
        unit.uow.rollback()
        self._forget(unit)

    # Invariants, which hold after each step

    def look(self) -> Found:
        self._let_late_ones_arrive()
        self.found = Found.of(self.run(self.under_test.documents()), self.sent)
        return self.found

    @invariant()
    def each_commit_is_in_the_store_once_or_not_at_all(self) -> None:
        found = self.look()
        tokens = found.tokens(self.deleted)
        for batch in self.batches:
            assert not batch.tokens & tokens or batch.tokens <= tokens, "half of it was written"
        for batch in self.written:
            assert batch.tokens <= tokens, "nothing of it was written"
            assert batch.deletes.isdisjoint(found.texts), "it was not deleted"
        assert tokens.isdisjoint(self.never), "what was refused or rolled back was written"
        self.check_that_a_log_has_its_tokens_in_the_order_of_its_events_each_once()
        self.check_that_a_handler_is_told_of_an_event_once_and_its_log_is_written_with_it()

    def check_that_a_log_has_its_tokens_in_the_order_of_its_events_each_once(self) -> None:
        for name, text in self.found.texts.items():
            tokens, events = text.split(), [token for log, token in self.found.events if log == name]
            assert sorted(set(tokens)) == sorted(tokens)
            assert [token for token in tokens if token in events] == events
            lasting = (TokenKind.EVENT, TokenKind.INDEXED)
            assert {token for token in tokens if token[-1] in lasting} <= set(events)

    def check_that_a_handler_is_told_of_an_event_once_and_its_log_is_written_with_it(self) -> None:
        assert sorted(set(self.indexed)) == sorted(self.indexed)
        indexed = {f"index-{token}" for _, token in self.found.events if token.endswith(TokenKind.INDEXED)}
        assert indexed == {name for name in self.found.texts if name.startswith("index-")}

    def teardown(self) -> None:
        self.run(self.network.arrived())
        try:
            self.each_commit_is_in_the_store_once_or_not_at_all()
        finally:
            self.patch.undo()
            self.under_test.close()


@pytest.mark.parametrize(
    ("backend", "few", "many", "steps"),
    [
        ("memory", 16, 160, 40),
        ("memory, three paths", 4, 40, 30),
        ("emulator", 2, 10, 15),
        ("emulator, three paths", 2, 10, 10),
    ],
)
def test_a_commit_with_a_lost_answer_is_written_at_most_once(
    backend: str, few: int, many: int, steps: int
) -> None:
    run_on(backend, LostAnswers, few=few, many=many, steps=steps)
