"""
Tests of the log line that a unit of work writes if it ends with uncommitted changes. It logs nothing if the caller got an exception.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import PrivateAttr, computed_field

from cosmos_outbox import Entity, Outbox, UnitOfWork
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.errors import MixedPartitionKeys
from tests.support.notes import Line, Note

Work = Callable[[UnitOfWork], Awaitable[Any]]


async def said_of(work: Work, caplog: pytest.LogCaptureFixture) -> list[str]:
    """
    Run the work in a unit of work, with a note 'n' and a line 'l' in the store, and return what is logged.
    """
    outbox = Outbox(MemoryContainer())
    for entity in (Note(id="n"), Line(id="l", book="n", text="old")):
        stores = outbox.unit_of_work()
        stores.repository(type(entity)).create(entity)
        await stores.commit()
    caplog.clear()
    async with outbox.unit_of_work() as uow:
        await work(uow)
    return [record.getMessage() for record in caplog.records]


async def note_of(uow: UnitOfWork) -> Note:
    return await uow.repository(Note).read("n")


async def creates(uow: UnitOfWork) -> None:
    uow.repository(Note).create(Note(id="new"))


async def sets_a_field(uow: UnitOfWork) -> None:
    (await note_of(uow)).text = "edited"


async def sets_a_field_after_the_commit(uow: UnitOfWork) -> None:
    note = await note_of(uow)
    note.change("first")
    await uow.commit()
    note.text = "second"


async def changes_an_own_document(uow: UnitOfWork) -> None:
    own = uow.save({"id": "own", "partitionKey": "n", "counts": [1]})
    await uow.commit()
    own["counts"].append(2)


async def records(uow: UnitOfWork) -> None:
    (await note_of(uow)).glance()


async def deletes(uow: UnitOfWork) -> None:
    await uow.repository(Line).delete("l", partition_key="n")


async def creates_after_a_failure(uow: UnitOfWork) -> None:
    await was_told_by_the_commit(uow)
    await creates(uow)


@pytest.mark.parametrize(
    ("work", "first"),
    [
        (sets_a_field, "note 'n' of partition key 'n'"),
        (sets_a_field_after_the_commit, "note 'n' of partition key 'n'"),
        (changes_an_own_document, "dict 'own' of partition key 'n'"),
        (creates, "note 'new' of partition key 'new'"),
        (records, "note 'n' of partition key 'n'"),
        (deletes, "line 'l' of partition key 'n'"),
    ],
)
async def test_uncommitted_changes_are_logged_in_one_line(
    work: Work, first: str, caplog: pytest.LogCaptureFixture
):
    (said,) = await said_of(work, caplog)
    assert said.startswith(f"unit_of_work.left 1 changed document(s), the first of them {first}: ")
    assert "`await uow.commit()` writes them, `rollback()` discards them" in said


async def commits(uow: UnitOfWork) -> None:
    await sets_a_field(uow)
    await uow.commit()


async def was_told_by_the_commit(uow: UnitOfWork) -> None:
    uow.repository(Note).create(Note(id="a"))
    uow.repository(Note).create(Note(id="b"))
    with suppress(MixedPartitionKeys):
        await uow.commit()


async def fails(uow: UnitOfWork) -> None:
    await creates(uow)
    raise LookupError


async def test_a_change_after_a_failed_commit_is_logged_if_it_is_not_committed(
    caplog: pytest.LogCaptureFixture,
):
    (said,) = await said_of(creates_after_a_failure, caplog)
    assert said.startswith("unit_of_work.left 3 changed document(s), the first of them note 'a'")


@pytest.mark.parametrize(
    "work",
    [
        note_of,
        commits,
        was_told_by_the_commit,
        fails,
    ],
)
async def test_nothing_is_logged_without_uncommitted_changes(work: Work, caplog: pytest.LogCaptureFixture):
    """Nothing is logged either if the caller got an exception, because the exception tells of the failure."""
    said: list[str] = []
    with suppress(LookupError):
        said = await said_of(work, caplog)
    assert ([], []) == (said, caplog.records)


async def test_a_changing_computed_field_is_not_logged_as_an_uncommitted_change(
    caplog: pytest.LogCaptureFixture,
):
    ticks = itertools.count()

    class Clock(Entity):
        _hidden: int = PrivateAttr(default=0)

        @computed_field
        def tick(self) -> int:
            return next(ticks)

    outbox = Outbox(MemoryContainer())
    async with outbox.unit_of_work() as uow:
        uow.repository(Clock).create(Clock(id="c"))
        await uow.commit()
    async with outbox.unit_of_work() as uow:
        await uow.repository(Clock).read("c")
    assert [] == caplog.records
