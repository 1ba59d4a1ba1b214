"""
Commit records, such as the inbox record of a message: a record is written in one batch with the changes, and never twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from cosmos_outbox import Conflict, Outbox
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import BatchTooLarge, MixedPartitionKeys
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import CommitResult, Write
from cosmos_outbox.write.commit_batch import CommitRecord
from cosmos_outbox.write.unit_of_work import commit_with
from tests.support.faulty_store import CommitFault, FaultyStore
from tests.support.notes import Remark


class Watched(MemoryContainer):
    """A container that remembers the writes of the last batch, for the test."""

    writes: Sequence[Write] = ()

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        self.writes = writes
        return await super().commit(partition_key, writes)


def record(key: PartitionKey = "b", document_id: str = "r") -> CommitRecord:
    return CommitRecord(partition_key=key, document={"id": document_id, "partitionKey": key, "type": "done"})


async def test_a_commit_record_comes_between_the_events_and_the_entities():
    store = Watched()
    async with Outbox(store).unit_of_work() as uow:
        remark = uow.repository(Remark).create(Remark(id="n", book="b"))
        commit = await commit_with(uow, record())
        assert await uow.documents().find("r", partition_key="b")

    assert ["domainEvent", "done", "remark"] == [(write.document or {})["type"] for write in store.writes]
    assert (3, 1, remark.version) == (commit.operations, len(commit.events), 1)


async def test_a_commit_record_is_written_without_other_changes():
    async with Outbox(store := Watched()).unit_of_work() as uow:
        assert await uow.documents().find("r", partition_key="b") is None
        await commit_with(uow, record())
    assert ["r"] == [document["id"] for document in store.documents()]


async def test_a_second_commit_with_the_same_commit_record_is_a_conflict():
    outbox = Outbox(store := MemoryContainer())
    for _ in range(2):
        async with outbox.unit_of_work() as uow:
            uow.repository(Remark).create(Remark(id="n", book="b"))
            if not store.documents():
                await commit_with(uow, record())
                continue
            with pytest.raises(Conflict) as refused:
                await commit_with(uow, record())
            assert "r" == refused.value.document_id
            uow.rollback()


@pytest.mark.parametrize("fault", [CommitFault.LOST_AFTER, CommitFault.RESENT])
async def test_a_commit_with_a_record_survives_a_lost_answer(fault: CommitFault):
    store = FaultyStore(container := MemoryContainer(), [fault])
    async with Outbox(store).unit_of_work() as uow:
        uow.repository(Remark).create(Remark(id="n", book="b"))
        await commit_with(uow, record())
    assert 3 == len(container.documents())


async def test_the_changes_of_a_commit_must_have_the_partition_key_of_its_record():
    async with Outbox(MemoryContainer()).unit_of_work() as uow:
        uow.repository(Remark).create(Remark(id="n", book="b"))
        with pytest.raises(MixedPartitionKeys) as refused:
            await commit_with(uow, record("c"))
        assert ("c", "b") == (refused.value.first, refused.value.second)
        uow.rollback()


async def test_a_commit_record_counts_towards_the_size_of_a_batch(monkeypatch: pytest.MonkeyPatch):
    async with Outbox(store := Watched()).unit_of_work() as uow:
        uow.repository(Remark).create(Remark(id="n", book="b"))
        with monkeypatch.context() as smaller:
            smaller.setattr("cosmos_outbox.write.commit_batch.MAX_BATCH_BYTES", 1)
            with pytest.raises(BatchTooLarge) as refused:
                await commit_with(uow, record())
        await commit_with(uow, record())
    named = sum(len(write.id) + 64 for write in store.writes)
    written = sum(len(json.dumps(write.document, separators=(",", ":"))) for write in store.writes)
    assert f"and {named + written} bytes;" in str(refused.value)
