"""
Tracked: a document of one unit of work and what will happen to it. It has two faces: an entity is the document itself, and one
of the application's own models (`own_documents`) has it beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from cosmos_outbox.documents import Document, entity_data, entity_document, json_bytes
from cosmos_outbox.domain.entities import Entity, altered_field, progress_of
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.progress import CommitEvents, Progress
from cosmos_outbox.errors import PreconditionFailed, UnstorableValue, UsageError
from cosmos_outbox.partition_key import KeyPaths, PartitionKey, identity

Stored = Mapping[str, Any]
Place = tuple[str, str, Hashable]  # type, id, partition key


class Change(StrEnum):
    """What the next commit does with a tracked document."""

    NONE = "none"  # it was only read, and is written if it was edited or recorded an event
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One document's part of a commit, kept until the commit is known to be written."""

    document: Tracked
    partition_key: PartitionKey
    change: Change  # never NONE
    version: int
    taken: CommitEvents
    revision: int = 0  # how many changes the unit of work had asked for by then


@functools.cache
def _hides_state(kind: type[BaseModel]) -> bool:
    """Say whether a computed field may be all that is stored of a value that the caller changed."""
    private = kind.__private_attributes__.keys() - Entity.__private_attributes__.keys()
    return bool(private) or any(field.exclude for field in kind.model_fields.values())


class Tracked:
    """
    An entity that a unit of work tracks. Where the model is not its own document, a subclass says what is stored of it.
    """

    __slots__ = ("added_by", "change", "id", "model", "progress", "revision", "state", "stored_under")

    def __init__(self, model: Any, progress: Progress | None = None, document_id: str | None = None) -> None:
        self.model = model
        self.progress = progress_of(model) if progress is None else progress
        self.id: str = model.id if document_id is None else document_id
        self.change = Change.NONE
        self.revision = 0  # counts the changes that were asked for
        self.state: bytes | None = None  # as it was read; None if it was not, or has been written since
        self.stored_under: PartitionKey | None = None  # the key of the stored document; None if there is none
        self.added_by: str | None = None  # the event handler that read or created it

    def __str__(self) -> str:
        return f"{self.kind} {self.id!r}"

    @property
    def kind(self) -> str:
        """Return the `type` of the document."""
        return str(self.model.entity_type)

    @property
    def partition_key(self) -> PartitionKey:
        """Return the partition key, as the model has it now."""
        key: PartitionKey = self.model.partition_key
        return key

    def document(self, version: int, paths: KeyPaths) -> Document:
        """Return what the commit with this version stores."""
        return entity_document(self.model, version=version, paths=paths)

    def altered(self, document: Stored) -> str | None:
        """
        Return the name of a field that a read of this document would give another value than the model has; None if there is none.
        """
        return altered_field(self.model, type(self.model).model_validate(document["data"]))

    def content(self, stored: Stored | None = None) -> Any:
        """
        Return the part of a document that the model says: of a stored one, else of what would be stored now.
        """
        return entity_data(self.model) if stored is None else stored["data"]

    def counted(self, version: int) -> int | None:
        """
        Return the version for consumers after the commit with this one; None if the document does not count.
        """
        return version

    def created_event(self) -> DomainEvent | None:
        """Return the event that a new document raises first, if it raises one."""
        event: DomainEvent | None = self.model.created_event()
        return event

    def record(self, event: DomainEvent) -> None:
        """Record that something happened to it."""
        self.progress.record(event, kind=self.kind, document_id=self.id)

    @property
    def place(self) -> Place:
        return self.kind, self.id, identity(self.partition_key)

    @property
    def is_new(self) -> bool:
        return self.progress.version == 0

    @property
    def etag(self) -> str | None:
        return self.progress.shown_etag

    @property
    def events(self) -> tuple[DomainEvent, ...]:
        return self.progress.taken(self.created_event).events

    @property
    def asked_for(self) -> bool:
        if self.change is Change.DELETE:
            return not self.is_new  # what was never stored needs no deletion
        return self.change is not Change.NONE or self.is_new or bool(self.progress.recorded)

    @property
    def pending(self) -> bool:
        asked_for = self.asked_for
        if asked_for or self.change is Change.DELETE:
            return asked_for
        before, stored = self.state, self.progress.stored
        if before is None and stored is not None:
            # Compared as JSON, since for Python, True is 1.
            before = json_bytes(self._fields(self.content(stored)))
        return before is not None and self.state_now() != before

    def state_now(self) -> bytes | None:
        """Return what it would store, to compare with a later state; None if that cannot be written."""
        try:
            return json_bytes(self._fields(self.content()))
        except (PydanticSerializationError, ValueError, UnstorableValue):
            return None

    @property
    def may_follow_the_clock(self) -> bool:
        """Say whether it may differ from what was read although its caller changed nothing."""
        kind: Any = type(self.model)
        return bool(getattr(kind, "model_computed_fields", None)) and _hides_state(kind)

    def _fields(self, content: Any) -> Any:
        """Return content without what is computed: a value that follows the clock is no change."""
        kind: Any = type(self.model)
        computed = getattr(kind, "model_computed_fields", None)
        if not computed or _hides_state(kind):
            return content
        names = {field.alias or name for name, field in computed.items()}
        return {name: value for name, value in content.items() if name not in names}

    def merge(self, change: Change) -> None:
        """
        Add one more change to be done.

        A commit whose outcome is unknown may hold the earlier state; the revision distinguishes the two.
        """
        if self.change is Change.DELETE and not (self.is_new and change is Change.CREATE):
            if change is not Change.DELETE:
                raise UsageError(f"{self} was deleted in this unit of work.")
            return
        self.revision += 1
        # Created, then updated: still created
        if self.change is not Change.CREATE or change is Change.DELETE:
            self.change = change

    def part(self) -> Part:
        """
        Return this document's part of the next commit.

        Raises:
            UsageError: the partition key differs from the one that the document is stored under.
        """
        partition_key = self.partition_key
        if self.stored_under is not None and identity(self.stored_under) != identity(partition_key):
            raise UsageError(
                f"The partition key of {self} was {self.stored_under!r} and is now {partition_key!r}; a stored document cannot "
                "change it. Delete the entity and create another one.",
                document_id=self.id,
                partition_key=self.stored_under,
            )
        return Part(
            document=self,
            partition_key=partition_key,
            change=Change.UPDATE if self.change is Change.NONE else self.change,
            version=self.progress.version + 1,
            taken=self.progress.taken(self.created_event),
            revision=self.revision,
        )

    def settle(self, part: Part, *, stored_under: PartitionKey) -> None:
        """Note that the part of a commit was written; what was asked for or edited since stays to be done."""
        self.stored_under, self.state = stored_under, None
        if self.revision == part.revision:
            self.change = Change.NONE
        elif self.change is not Change.DELETE:
            self.change = Change.UPDATE

    def check_etag(self, etag: str | None) -> None:
        """
        Check the etag that a caller gives, if it gives one.

        Raises:
            PreconditionFailed: the document was read with another one.
        """
        if etag is not None and etag != self.etag:
            raise PreconditionFailed(
                expected=etag, actual=self.etag, document_id=self.id, partition_key=self.partition_key
            )
