"""What the write side has to do, as a model sees it: documents, events, what units of work hold, and what commits became of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from cosmos_outbox import (
    DomainEvent,
    UnitOfWork,
)
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import Document, Write, WriteKind
from cosmos_outbox.write.change_tracking import Tracked
from tests.support import notes
from tests.support.notes import NoteEvent, Remark

# The partition keys of the books that a machine writes, one on `/partitionKey` and one on three paths.
KEYS: dict[str, PartitionKey] = {"book": "book", "shelved": ("shelf", 5, True)}
SHELVES = ("/shelf", "/place/number", "/lent")
IMPLIED = ("NoteChanged", "NoteTagged")


class Skimmed(NoteEvent):
    ttl = timedelta(seconds=1)  # gone within the time of one attempt


class Perused(NoteEvent):
    ttl = timedelta(minutes=30)  # outlives the test


class Passage(Remark):
    @property
    def partition_key(self) -> PartitionKey:
        return KEYS[self.book]


class Line(notes.Line):
    @property
    def partition_key(self) -> PartitionKey:
        return KEYS[self.book]


class Memo:
    """A dict of the application's own shape in a unit of work, as far as the model asks entities."""

    version = 0  # it does not count

    def __init__(self, unit: UnitOfWork, model: dict[str, Any]) -> None:
        self.unit, self.model, self.id = unit, model, str(model["id"])

    @property
    def text(self) -> str:
        return str(self.model["text"])

    @text.setter
    def text(self, text: str) -> None:
        self.model["text"] = text

    @property
    def own(self) -> Tracked:
        return self.unit._entities.require(self.model)

    @property
    def etag(self) -> str | None:
        return self.own.progress.shown_etag

    @property
    def events(self) -> Sequence[DomainEvent]:
        return tuple(self.own.progress.recorded)

    @property
    def is_new(self) -> bool:
        return self.own.progress.version == 0

    def record(self, event: DomainEvent) -> None:
        self.unit.record(event, about=self.model)


Data = tuple[str, str, bool]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """One state of a document; two of them are the same only if they are one object, as etags are."""

    kind: str
    version: int
    text: str
    tag: str = ""
    deleted: bool = False

    @property
    def data(self) -> Data:
        return self.text, self.tag, self.deleted


@dataclass(frozen=True)
class Told:
    entity_id: str
    version: int
    action: str
    value: str
    expires_at: float = field(default=float("inf"), compare=False)


@dataclass(kw_only=True)
class Held:
    """An entity as one unit of work holds it."""

    entity: Passage | Line | Memo
    base: Stored | None = None  # what it was read as; None: it is new
    shown: Data | None = None  # what it was read or last written with
    recorded: list[tuple[int, str, str]] = field(default_factory=list)  # serial, action, value
    asked: int = 0  # when a write was last asked for
    done: int = 0  # up to when that is settled
    purged: bool = False

    @property
    def pending(self) -> bool:
        if self.purged:
            return self.base is not None
        return self.base is None or self.asked > self.done or bool(self.recorded) or self.edited

    @property
    def edited(self) -> bool:
        after = self.after()
        return self.shown is not None and after is not None and after.data != self.shown

    @property
    def version(self) -> int:
        if isinstance(self.entity, Memo):
            return 0
        return self.base.version + 1 if self.base else 1

    def events(self) -> list[tuple[int | None, str, str]]:
        if self.base is not None or isinstance(self.entity, Line | Memo):
            return list(self.recorded)
        created = (None, "NoteWritten", self.entity.text)
        return [created, *(one for one in self.recorded if one[1] not in IMPLIED)]

    def after(self) -> Stored | None:
        if self.purged:
            return None
        version = self.version
        if isinstance(self.entity, Memo):
            return Stored(kind="memo", version=0, text=self.entity.text)
        if isinstance(self.entity, Line):
            return Stored(kind="line", version=version, text=self.entity.text)
        entity = self.entity
        return Stored(
            kind="passage", version=version, text=entity.text, tag=entity.tag, deleted=entity.deleted
        )


class Status(StrEnum):
    OPEN = "open"
    WRITTEN = "written"
    NOT_WRITTEN = "not written"


@dataclass(kw_only=True)
class Part:
    held: Held
    base: Stored | None
    after: Stored | None
    settles: frozenset[int]
    asked: int


@dataclass(kw_only=True)
class Snapshot:
    """What one commit has to write, as the model sees it, and what became of it."""

    parts: list[Part]
    told: list[Told]  # once applied, with the time at which the store forgets them
    writes: Sequence[Write]  # also keeps their id() from being given to others
    sent_at: float
    status: Status = Status.OPEN
    applied: bool = False

    @property
    def lasts(self) -> bool:
        return any(told.action != "Skimmed" for told in self.told)

    @property
    def ids(self) -> list[str]:
        return [part.held.entity.id for part in self.parts]


@dataclass(kw_only=True)
class Unit:
    real: UnitOfWork
    held: dict[str, Held] = field(default_factory=dict)
    # Objects whose deletion for good was committed
    graves: list[Passage | Line] = field(default_factory=list)
    handled: set[int] = field(default_factory=set)
    current: Snapshot | None = None  # the one in doubt, or on its way


def told_by(document: Document) -> Told:
    meta, data = document["meta"], document["data"]
    value = data.get("text") or data.get("tag") or ""
    return Told(meta["entityId"], meta.get("entityVersion", 0), data["action"], value)


def described(document: Document) -> tuple[Any, ...]:
    if document["type"] == "memo":
        return ("memo", 0, document["text"], "", False)
    data = document["data"]
    return (
        document["type"],
        document["version"],
        data["text"],
        data.get("tag", ""),
        data.get("deleted", False),
    )


def state(stored: Stored) -> tuple[Any, ...]:
    return stored.kind, stored.version, stored.text, stored.tag, stored.deleted


def documents(snapshot: Snapshot) -> list[tuple[Any, ...]]:
    kinds = {
        (True, False): WriteKind.CREATE,
        (False, False): WriteKind.REPLACE,
        (False, True): WriteKind.DELETE,
    }
    return [
        (
            kinds[part.base is None, part.after is None],
            part.held.entity.id,
            part.after and state(part.after),
        )
        for part in snapshot.parts
    ]


def read_back(writes: Sequence[Write]) -> tuple[list[Told], list[tuple[Any, ...]]]:
    events = [w.document for w in writes if w.document is not None and w.document["type"] == "domainEvent"]
    others = [w for w in writes if w.document is None or w.document["type"] != "domainEvent"]
    return (
        [told_by(dict(document)) for document in events],
        [
            (write.kind, write.id, None if write.document is None else described(dict(write.document)))
            for write in others
        ],
    )
