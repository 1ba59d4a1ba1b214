"""
One entity in two units of work: the second one refuses it while the first one has uncommitted changes of the entity.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cosmos_outbox import Outbox, TooManyRequests, UnitOfWork, UsageError
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import CommitResult, Write
from cosmos_outbox.retries import RetryOptions
from tests.support.notes import Note


class Throttled(MemoryContainer):
    """A container that refuses commits while `busy` is set."""

    busy = False

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        if self.busy:
            raise TooManyRequests
        return await super().commit(partition_key, writes)


@pytest.fixture
def container() -> Throttled:
    return Throttled()


@pytest.fixture
def outbox(container: Throttled) -> Outbox:
    return Outbox(container, retries=RetryOptions(deadline_seconds=0.1, attempt_seconds=0.1))


async def test_a_failed_creation_can_be_repeated_in_another_unit_of_work(
    outbox: Outbox, container: Throttled
):
    note, failures = Note(id="n"), []
    container.busy = True
    for _ in range(2):
        unit = outbox.unit_of_work()  # without `async with`, so no block ends it
        unit.repository(Note).create(note)
        try:
            await unit.commit()
        except TooManyRequests as error:
            failures.append((unit, error))  # keeps the failed unit of work in memory
        container.busy = False
    assert 1 == len(failures)
    assert "n" == (await outbox.unit_of_work().repository(Note).read("n")).id


async def test_a_committed_entity_can_be_changed_in_a_second_unit_of_work(outbox: Outbox):
    async with outbox.unit_of_work() as first:
        note = first.repository(Note).create(Note(id="n"))
        await first.commit()
        note.change("in the background")
        async with outbox.unit_of_work() as second:
            second.repository(Note).update(note)
            await second.commit()
    assert "in the background" == (await outbox.unit_of_work().repository(Note).read("n")).text


async def test_an_entity_with_uncommitted_changes_is_refused_by_another_unit_of_work(outbox: Outbox):
    async with outbox.unit_of_work() as first:
        first.repository(Note).create(Note(id="n"))
        await first.commit()
    async with outbox.unit_of_work() as reader, outbox.unit_of_work() as other:
        note = await reader.repository(Note).read("n")
        note.text = "changed"
        with pytest.raises(UsageError, match="still open and has not committed it"):
            other.repository(Note).update(note)
        await reader.commit()
        other.repository(Note).update(note)


async def test_an_entity_object_whose_document_was_deleted_cannot_overwrite_a_new_document(outbox: Outbox):
    async with outbox.unit_of_work() as first:
        first.repository(Note).create(Note(id="n"))
        await first.commit()
    reader, other = outbox.unit_of_work(), outbox.unit_of_work()
    note = await reader.repository(Note).read("n")
    other.repository(Note).update(note)
    await other.repository(Note).delete("n", hard=True)
    await other.commit()
    await outbox.run(lambda unit: recreated(unit, "of another program"))
    with pytest.raises(UsageError, match="has no etag"):
        await reader.commit()
    assert "of another program" == (await outbox.unit_of_work().repository(Note).read("n")).text


async def recreated(unit: UnitOfWork, text: str) -> None:
    unit.repository(Note).create(Note(id="n", text=text))
