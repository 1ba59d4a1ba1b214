"""A commit writes exactly those entities that the unit of work read and the caller changed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from cosmos_outbox import (
    Entity,
    NotFound,
    Outbox,
    UnitOfWork,
    UnstorableValue,
    UsageError,
)
from cosmos_outbox.adapters.memory import MemoryContainer
from tests.support.notes import Line, Note, stored, written


class Basket(Entity):
    owner: str = "ada"
    lines: list[str] = Field(default_factory=list)
    notes: dict[str, Any] = Field(default_factory=dict)


def data(container: MemoryContainer) -> dict[str, Any]:
    return stored(container, "basket")[0]["data"]


@pytest.fixture
async def container() -> MemoryContainer:
    await written(container := MemoryContainer(), Basket(id="b", lines=["x"], notes={"deep": {"at": 1}}))
    return container


async def test_changes_inside_lists_and_dicts_of_an_entity_are_written(container: MemoryContainer):
    async with Outbox(container).unit_of_work() as uow:
        basket = await uow.repository(Basket).read("b")
        basket.lines.append("y")
        await uow.commit()
        basket.notes["deep"]["at"] = True  # equal to the old value 1 in Python, but not in JSON
        await uow.commit()
    assert (["x", "y"], {"deep": {"at": True}}) == (data(container)["lines"], data(container)["notes"])
    assert 3 == stored(container, "basket")[0]["version"]


async def test_an_entity_that_was_only_read_is_not_written(container: MemoryContainer):
    document = stored(container, "basket")[0]
    await written(container, Basket(id="other"))
    async with Outbox(container).unit_of_work() as uow:
        baskets = uow.repository(Basket)
        basket = await baskets.read("b")
        other = await baskets.read("other")
        basket.owner = basket.owner
        basket.lines.append("y")
        basket.lines.pop()
        other.owner = "grace"
        assert 1 == (await uow.commit()).operations
    assert document == stored(container, "basket")[0]


async def test_an_unchanged_entity_stored_without_default_fields_is_not_written():
    await written(container := MemoryContainer(), Basket(id="b"))
    key = ("b", "b")
    [partition] = container._partitions
    partition.documents[key]["data"] = {"id": "b", "owner": "ada"}  # without the fields `lines` and `notes`
    async with Outbox(container).unit_of_work() as uow:
        await uow.repository(Basket).read("b")
        assert None is (await uow.commit()).id


async def test_a_list_omits_entities_that_the_unit_of_work_deleted():
    await written(container := MemoryContainer(), Line(id="l", book="b"), Note(id="n"))
    async with Outbox(container).unit_of_work() as uow:
        lines, notes = uow.repository(Line), uow.repository(Note)
        await lines.delete("l", partition_key="b")
        await notes.delete("n")
        assert () == (await lines.page_of_all_keys()).entities == (await notes.page_of_all_keys()).entities
        assert ["l"] == [line.id for line in (await lines.page_of_all_keys(include_deleted=True)).entities]
        with pytest.raises(NotFound):
            await lines.read("l", partition_key="b")


async def test_an_edit_to_a_value_that_cannot_be_stored_is_refused_with_its_field(container: MemoryContainer):
    async with Outbox(container).unit_of_work() as uow:
        basket = await uow.repository(Basket).read("b")
        basket.lines.append(object())  # type: ignore[arg-type]
        with pytest.raises(UnstorableValue, match="lines"):
            await uow.commit()


async def test_an_entity_cannot_record_events_after_its_unit_of_work_ended():
    outbox = Outbox(MemoryContainer())

    async def make(uow: UnitOfWork) -> Note:
        return uow.repository(Note).create(Note(id="n"))

    note = await outbox.run(make)
    with pytest.raises(UsageError, match=r"note 'n' belongs to a unit of work that has ended.*NoteChanged"):
        note.change("lost")
    async with outbox.unit_of_work() as uow:
        uow.repository(Note).update(note).change("written")
        await uow.commit()
    assert "written" == (await outbox.unit_of_work().repository(Note).read("n")).text
