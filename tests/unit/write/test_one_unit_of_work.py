"""
A unit of work reads and writes what a simple model says, while another program writes the same documents.

The model has two dicts of rows: the stored ones, and those that the unit of work holds. No request fails here, because `test_lost_answers.py`
tests failures. After each step the store contains the stored rows with their versions. An entity that the unit of work holds is always
the same object. A page has the same entities as single reads. A commit writes what was created, changed, updated or deleted, or nothing
if the other program wrote first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmos_outbox import (
    Commit,
    Conflict,
    NotFound,
    Outbox,
    PreconditionFailed,
    SoftDeletable,
    UsageError,
)
from cosmos_outbox.ports import Document
from tests.unit.write.store_under_test import Backend, StoreUnderTest, TextOnKey, run_on


class Letter(SoftDeletable, TextOnKey):
    """A soft-deletable entity: it is marked as deleted, unless it is deleted with `hard=True`."""


class Stamp(TextOnKey):
    """An entity that is always deleted for good."""


@dataclass(frozen=True, kw_only=True)
class Row:
    version: int
    text: str
    deleted: bool = False


@dataclass(kw_only=True)
class Held:
    """An entity that the unit of work holds, and the values that the store should have for it."""

    entity: Letter | Stamp
    row: Row | None  # the stored values, as last read or written; None for a new entity
    must_write: bool = False  # the next commit writes the entity even if it was not changed
    purged: bool = False  # the entity was deleted for good

    @property
    def is_marked_as_deleted(self) -> bool:
        return isinstance(self.entity, Letter) and self.entity.deleted

    @property
    def is_gone(self) -> bool:
        return self.purged or self.is_marked_as_deleted

    @property
    def is_pending(self) -> bool:
        if self.row is None:
            return not self.purged
        return self.must_write or (self.entity.text, self.is_marked_as_deleted) != (
            self.row.text,
            self.row.deleted,
        )

    def row_after_commit(self) -> Row | None:
        if self.purged:
            return None
        version = self.row.version + 1 if self.row else 1
        return Row(version=version, text=self.entity.text, deleted=self.is_marked_as_deleted)


ids = st.sampled_from(["letter-0", "letter-1", "stamp-0"])


class OneUnitOfWork(RuleBasedStateMachine):
    backend: ClassVar[Backend]

    def __init__(self) -> None:
        super().__init__()
        self.under_test = StoreUnderTest(self.backend)
        self.run = self.under_test.run
        self.outbox = Outbox(self.under_test.store)
        self.uow = self.outbox.unit_of_work()
        self.stored: dict[str, Row] = {}
        self.held: dict[str, Held] = {}
        self.purged: list[Letter | Stamp] = []  # objects whose deletion for good was committed
        self.serial = 0

    def new_text(self) -> str:
        self.serial += 1
        return f"text {self.serial}"

    @rule(name=ids)
    def create(self, name: str) -> None:
        if name not in self.held:
            entity = kind_of(name)(id=name, key=self.backend.key, text=self.new_text())
            self.uow.repository(type(entity)).create(entity)
            self.held[name] = Held(entity=entity, row=None)

    @rule(name=ids)
    def read(self, name: str) -> None:
        held, row = self.held.get(name), self.stored.get(name)
        exists = not held.is_gone if held else row is not None and not row.deleted
        try:
            read = self.uow.repository(kind_of(name)).read
            entity = self.run(read(name, partition_key=self.backend.key))
        except NotFound:
            assert not exists
        else:
            assert exists
            self._check_and_hold(entity)

    @rule()
    def read_a_page(self) -> None:
        page = self.run(self.uow.repository(Letter).page_of_all_keys(100))
        for letter in page.entities:
            self._check_and_hold(letter)
        expected = {
            name
            for name, row in self.stored.items()
            if name.startswith("letter")
            and not row.deleted
            and not (name in self.held and self.held[name].is_gone)
        }
        assert expected == {letter.id for letter in page.entities}

    def _check_and_hold(self, entity: Letter | Stamp) -> None:
        if entity.id in self.held:
            assert self.held[entity.id].entity is entity
        else:
            row = self.stored[entity.id]
            assert (row.version, row.text) == (entity.version, entity.text)
            self.held[entity.id] = Held(entity=entity, row=row)

    @rule(name=ids, update=st.booleans(), sets_a_field=st.booleans())
    def change(self, name: str, update: bool, sets_a_field: bool) -> None:
        held = self.held.get(name)
        if held is None or held.purged:
            return
        if sets_a_field:
            held.entity.text = self.new_text()
        if update:
            self.uow.repository(kind_of(name)).update(held.entity)
            held.must_write = True

    @rule(name=ids, hard=st.booleans())
    def delete(self, name: str, hard: bool) -> None:
        held, row = self.held.get(name), self.stored.get(name)
        exists = (held is not None or row is not None) and (
            hard or not (held.is_gone if held else row is not None and row.deleted)
        )
        repository = self.uow.repository(kind_of(name))
        try:
            entity = self.run(repository.delete(name, partition_key=self.backend.key, hard=hard))
        except NotFound:
            assert not exists
            return
        assert exists
        held = self.held.setdefault(name, Held(entity=entity, row=row))
        assert held.entity is entity
        held.must_write, held.purged = True, held.purged or hard or isinstance(entity, Stamp)

    @rule()
    def create_again_what_was_deleted_for_good(self) -> None:
        for entity in self.purged:
            repository = self.uow.repository(type(entity))
            if entity.id not in self.held:
                with pytest.raises(UsageError, match="neither read nor created"):
                    repository.update(entity)
                repository.create(entity)
                self.held[entity.id] = Held(entity=entity, row=None)
                self.purged.remove(entity)
                return

    @rule()
    def roll_back(self) -> None:
        self.uow.rollback()
        self.held, self.purged = {}, []

    @rule()
    def commit(self) -> None:
        pending = {name: held for name, held in self.held.items() if held.is_pending}
        in_the_way = {name for name, held in pending.items() if self.stored.get(name) is not held.row}
        try:
            commit = self.run(self.uow.commit())
        except (Conflict, NotFound, PreconditionFailed) as refusal:
            event(type(refusal).__name__)
            self.held, self.purged, refused = {}, [], refusal.document_id
            with pytest.raises(type(refusal)):  # each commit is refused until a read begins a new attempt
                self.run(self.uow.commit())
            self.read_a_page()
        else:
            self._written(commit, pending)
            refused = None
        assert refused in in_the_way if in_the_way else refused is None, (
            "only the other program is in the way"
        )

    def _written(self, commit: Commit, pending: dict[str, Held]) -> None:
        assert len(pending) == commit.operations - len(commit.events)
        for name, held in pending.items():
            held.row, held.must_write = held.row_after_commit(), False
            if held.row is None:
                del self.stored[name], self.held[name]
                self.purged.append(held.entity)
            else:
                self.stored[name] = held.row

    @rule(name=ids)
    def change_and_commit(self, name: str) -> None:
        self.read(name)
        self.change(name, update=False, sets_a_field=True)
        self.commit()

    @rule(name=ids, hard=st.booleans())
    def let_the_other_program_write(self, name: str, hard: bool) -> None:
        other, row = self.outbox.unit_of_work(), self.stored.get(name)
        repository = other.repository(kind_of(name))
        if row is None:
            self.stored[name] = Row(version=1, text=self.new_text())
            repository.create(kind_of(name)(id=name, key=self.backend.key, text=self.stored[name].text))
        elif hard:
            self.run(repository.delete(name, partition_key=self.backend.key, hard=True))
            del self.stored[name]
        else:
            entity = self.run(repository.read(name, partition_key=self.backend.key, include_deleted=True))
            entity.text = self.new_text()
            self.stored[name] = Row(version=row.version + 1, text=entity.text, deleted=row.deleted)
        self.run(other.commit())

    @invariant()
    def the_documents_in_the_store_are_the_models(self) -> None:
        documents = self.run(self.under_test.documents())
        entities = {one["id"]: row_of(one) for one in documents if one["type"] != "domainEvent"}
        assert self.stored == entities
        for held in self.held.values():
            assert (held.row is None) == held.entity.is_new

    def teardown(self) -> None:
        self.under_test.close()


def kind_of(name: str) -> type[Letter | Stamp]:
    return Stamp if name.startswith("stamp") else Letter


def row_of(document: Document) -> Row:
    data = document["data"]
    return Row(version=document["version"], text=data["text"], deleted=data.get("deleted", False))


@pytest.mark.parametrize(
    ("backend", "few", "many", "steps"),
    [("memory", 10, 100, 40), ("memory, three paths", 5, 40, 40), ("emulator, three paths", 2, 10, 20)],
)
def test_a_unit_of_work_behaves_as_a_simple_model(backend: str, few: int, many: int, steps: int) -> None:
    run_on(backend, OneUnitOfWork, few=few, many=many, steps=steps)
