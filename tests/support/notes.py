"""A small domain for tests: notes that are written, changed, tagged, filed and deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cosmos_outbox import DomainEvent, Entity, Outbox, SoftDeletable
from cosmos_outbox.adapters.memory.container import MemoryContainer


class NoteEvent(DomainEvent):
    note_id: str


class NoteWritten(NoteEvent):
    text: str


class NoteChanged(NoteEvent):
    implied_by_creation = True
    text: str


class NoteTagged(NoteEvent):
    coalesce = True
    implied_by_creation = True
    tag: str


class NoteFiled(NoteEvent):
    folder: str


class NoteGlanced(NoteEvent):
    implied_by_creation = True
    ttl = timedelta(seconds=5)


class NoteDeleted(NoteEvent):
    pass


class Note(SoftDeletable):
    text: str = ""
    tag: str = ""

    def created_event(self) -> NoteWritten:
        return NoteWritten(note_id=self.id, text=self.text)

    def change(self, text: str) -> None:
        self.text = text
        self.record(NoteChanged(note_id=self.id, text=text))

    def tag_as(self, tag: str) -> None:
        self.tag = tag
        self.record(NoteTagged(note_id=self.id, tag=tag))

    def file_as(self, folder: str) -> None:
        self.record(NoteFiled(note_id=self.id, folder=folder))

    def glance(self) -> None:
        self.record(NoteGlanced(note_id=self.id))

    def delete(self) -> None:
        super().delete()
        self.record(NoteDeleted(note_id=self.id))


class Remark(Note):
    """A note on a book, stored in the partition key of the book."""

    book: str

    @property
    def partition_key(self) -> str:
        return self.book


class Line(Entity):
    """
    A part of a book. It has the partition key of the book, records no event when it is created, and its document is really deleted.
    """

    book: str
    text: str = ""

    @property
    def partition_key(self) -> str:
        return self.book


async def written(container: MemoryContainer, *entities: Entity) -> None:
    """Create several entities, each in a separate commit."""
    for entity in entities:
        async with Outbox(container).unit_of_work() as uow:
            uow.repository(type(entity)).create(entity)
            await uow.commit()


async def changed_by_another_caller(container: MemoryContainer, note_id: str = "n") -> None:
    async with Outbox(container).unit_of_work() as uow:
        (await uow.repository(Note).read(note_id)).change("theirs")
        await uow.commit()


def stored(container: MemoryContainer, document_type: str) -> list[dict[str, Any]]:
    return [document for document in container.documents() if document.get("type") == document_type]


def events(container: MemoryContainer, partition_key: str | None = None) -> list[dict[str, Any]]:
    """Return the event documents in the order in which the relay sends them."""
    found = [
        document
        for document in stored(container, "domainEvent")
        if partition_key in (None, document["partitionKey"])
    ]
    return sorted(found, key=lambda document: (document["_lsn"], document["meta"]["sequence"]))


def actions(container: MemoryContainer, partition_key: str | None = None) -> list[str]:
    return [document["data"]["action"] for document in events(container, partition_key)]
