"""
Change tracking: the documents that one unit of work has read or is to write. A `Tracked` object for each type, id and
partition key says what is known of the document, and what the next commit does with it. `commit_batch.py` makes the batch from this.

The state of a document between commits (etag, stored form, recorded events) is its `Progress`. An entity holds its own.
For a model of the application's own shape, the `Tracked` object holds it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from cosmos_outbox.domain.entities import Entity, find_altered_field, progress_of
from cosmos_outbox.domain.events import CommitEvents, DomainEvent, Progress
from cosmos_outbox.errors import PreconditionFailed, SharedUnitOfWork, StoreError, UsageError
from cosmos_outbox.partition_key import KeyPaths, PartitionKey, check_id, check_partition_key, identity
from cosmos_outbox.stored_documents import (
    Document,
    comparable,
    entity_data,
    entity_document,
    first_error,
    may_follow_the_clock,
)
from cosmos_outbox.write.unstorable_values import UNWRITABLE, refusal, unwritable

_logger = logging.getLogger("cosmos_outbox.unit_of_work")
Stored = Mapping[str, Any]
Place = tuple[str, str, Hashable]  # a document's type, id and partition key
Snapshot = tuple[tuple[Place, "Tracked", tuple[DomainEvent, ...]], ...]


class Change(StrEnum):
    """The change that the next commit makes to a tracked document."""

    NONE = "none"  # the document was only read; the commit writes it if it was edited or recorded an event
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one commit does with one document. It is kept until the commit is known to be written."""

    tracked: Tracked
    partition_key: PartitionKey
    change: Change  # never NONE
    counted: int | None  # the version for consumers; None if the document counts no versions
    taken: CommitEvents
    document: Document | None  # None if the document is to be deleted
    revision: int  # `tracked.revision` at this commit. If it has grown since, later changes are pending.


@dataclass(slots=True, eq=False)
class Tracked:
    """
    A document that a unit of work tracks. `application_documents` has a subclass for models of the application's own
    shape.
    """

    model: Any
    progress: Progress
    kind: str  # the `type` of the document
    id: str
    key: PartitionKey  # the key when the document was first tracked, or last written
    created_event: Callable[[], DomainEvent | None] | None = None
    change: Change = Change.NONE
    revision: int = 0  # grows with each change that the application asks for
    # The stored form when the document was read, to find out whether it was edited. None if the document was
    # not read, or a commit has written it since.
    state: bytes | None = None
    added_by: str | None = None  # the name of the event handler that read or created the document

    def __str__(self) -> str:
        return f"{self.kind} {self.id!r}"

    def misuse(self, text: str) -> UsageError:
        """Return a UsageError with this text, and with the document's id and partition key."""
        return UsageError(text, document_id=self.id, partition_key=self.key)

    def now(self) -> tuple[Any, Document | None, int | None]:
        """
        Return three values: the model's present partition key; the document's content, or None if the model itself
        has the key; the version after the next commit, or None if the document counts no versions.
        """
        return self.model.partition_key, None, self.progress.version + 1

    def render(self, content: Document | None, key_fields: Document) -> tuple[Document, str | None]:
        """
        Return the document that the next commit stores, and the name of a field that would be read back as another
        value, if there is one.
        """
        progress = self.progress
        document = entity_document(
            self.model, progress.stored, version=progress.version + 1, key_fields=key_fields
        )
        return document, find_altered_field(self.model, document["data"])

    def content(self) -> Document:
        """Return the model's part of the document, as the next commit would store it."""
        return entity_data(self.model, self.progress.stored)

    def part(self, paths: KeyPaths) -> Part:
        """
        Return this document's part of the next commit.

        Raises:
            UsageError: the container does not take its partition key; or the document is stored under another partition
                key, or has no etag.
            UnstorableValue: a value would be read back as another value.
        """
        key, content, counted = self.now()
        check_partition_key(key, paths, of=self)
        progress, document = self.progress, None
        # Check each document that was stored before. If a document has version 0 and is not to be created, another
        # unit of work has deleted it meanwhile. The check then refuses it, because it has no etag.
        if progress.version > 0 or self.change is not Change.CREATE:
            self._check_stored(key, paths)
        if self.change is not Change.DELETE:
            try:
                document, altered = self.render(content, paths.fields(key, progress.stored))
            except ValidationError as error:
                raise refusal(self.model, self.id, key, *first_error(error)) from error
            except UNWRITABLE as error:
                raise unwritable(self.model, self.id, key, error) from error
            if altered is not None:
                raise refusal(self.model, self.id, key, altered)
        return Part(
            tracked=self,
            partition_key=key,
            change=Change.UPDATE if self.change is Change.NONE else self.change,
            counted=counted,
            taken=progress.take(self.created_event),
            document=document,
            revision=self.revision,
        )

    def _check_stored(self, key: PartitionKey, paths: KeyPaths) -> None:
        stored = paths.key_of(self.progress.stored or {})
        stored = self.key if stored is None else stored
        if identity(stored) != identity(key):
            raise self.misuse(
                f"{self} is stored under the partition key {stored!r}, and its {type(self.model).__name__} has {key!r} now; a stored "
                f"document cannot change it. Correct the partition key of this {type(self.model).__name__}, or delete it and create another one."
            )
        if self.progress.etag is None:
            raise self.misuse(
                f"{self} has no etag, so the commit could overwrite newer changes. Read it and change that object."
            )

    @property
    def asked_for(self) -> bool:
        if self.change is Change.DELETE:
            return self.progress.version > 0  # a document that was never stored needs no deletion
        return self.change is not Change.NONE or self.progress.version == 0 or bool(self.progress.recorded)

    @property
    def pending(self) -> bool:
        asked_for = self.asked_for
        if asked_for or self.change is Change.DELETE:
            return asked_for
        if (before := self.state) is None and self.progress.stored is None:
            return False
        now = self.state_now()
        if before is None:
            stored: Any = self.progress.stored
            before = comparable(self.model, stored["data"] if isinstance(self.model, Entity) else stored)
        return now != before

    def state_now(self) -> bytes | None:
        """
        Return the stored form as it is now, to find out later whether the model was edited. Return None if the model
        cannot be converted to a document.
        """
        try:
            return comparable(self.model, self.content())
        except Exception:  # noqa: BLE001 - a property or mapper of the application raised; the commit will raise it
            return None

    def merge(self, change: Change) -> None:
        """
        Merge one more change into the change that the next commit is to make.

        A commit whose outcome is still unknown may have stored the state before this change. The counter `revision` shows
        later that this change is still to be written.
        """
        if self.change is Change.DELETE and not (self.progress.version == 0 and change is Change.CREATE):
            if change is not Change.DELETE:
                raise self.misuse(f"{self} was deleted in this unit of work.")
            return
        self.revision += 1
        # A document that was created and then updated is still to be created. Only a deletion replaces this change.
        if self.change is not Change.CREATE or change is Change.DELETE:
            self.change = change


class IdentityMap:
    """
    The documents that a unit of work tracks: one object for each type, id and partition key. Only one task at a time
    may use the unit of work. A second task gets SharedUnitOfWork.
    """

    def __init__(self, kinds: dict[str, type[Entity]] | None = None) -> None:
        # The entity class for each stored type. All units of work of an outbox share this dict.
        self.kinds = {} if kinds is None else kinds
        self._tracked: dict[Place, Tracked] = {}
        self._reference = weakref.ref(self)
        self._user: asyncio.Task[object] | None = None  # the task that is inside a block of `alone` now
        self._ended = False
        self.refusal: StoreError | None = None  # the refusal of the last commit, until a new attempt begins
        self.acting: str | None = None  # the event handler that runs now
        self.failed = False  # True if the last commit raised an error, and nothing was changed since
        self.committing = False

    @contextmanager
    def alone(self, *, commits: bool = False) -> Iterator[None]:
        """
        Let only one task at a time into the block. That task may enter the block again, but not to commit.

        Raises:
            SharedUnitOfWork: another task is inside the block.
            UsageError: the unit of work has ended, or an event handler commits.
        """
        self.check()
        if commits and self.committing:
            raise UsageError(
                "An event handler called commit(). Remove the call: the commit that runs the handler writes its changes too."
            )
        before = self._user, self.committing
        self._user, self.committing = _current_task(), commits or self.committing
        try:
            yield
        finally:
            self._user, self.committing = before

    def check(self) -> None:
        """
        Raise an error if the unit of work may not be used now. Code that does not await needs only this check, because
        no other task can run meanwhile.

        Raises:
            SharedUnitOfWork: another task is inside an `alone` block.
            UsageError: the unit of work has ended.
        """
        if self._ended:
            raise UsageError(
                "This unit of work has ended with its `async with` block, and its uncommitted changes are lost. Open "
                "another one (`outbox.unit_of_work()`) and read the entities in it."
            )
        if self._user is not None and self._user is not _current_task():
            raise SharedUnitOfWork

    def find(
        self, types: Collection[str], document_id: str, partition_key: PartitionKey | None = None
    ) -> Tracked | None:
        """
        Return the tracked document that has this id and partition key, and one of the types; None if there is none.

        Without a partition key, the document whose id is its partition key comes first, and then any document with this
        id.
        """
        key = identity(document_id if partition_key is None else partition_key)
        places: list[Place] = [(kind, document_id, key) for kind in types]
        if partition_key is None:
            places += [place for place in self._tracked if place[0] in types and place[1] == document_id]
        return next((self._tracked[place] for place in places if place in self._tracked), None)

    def at(self, document_id: str, partition_key: PartitionKey) -> Iterator[Tracked]:
        """Yield the documents of any type that are tracked under an id and partition key."""
        wanted = document_id, identity(partition_key)
        return (tracked for (_, *place), tracked in self._tracked.items() if tuple(place) == wanted)

    def of(self, model: object) -> Tracked | None:
        """Return the tracked document of an object of the application; None if the object is not tracked."""
        # Search by the object itself, not by its partition key, which the application may have changed.
        return next((tracked for tracked in self._tracked.values() if tracked.model is model), None)

    def require(self, model: object) -> Tracked:
        """
        Return the tracked document of an object of the application.

        Raises:
            UsageError: the object was neither read nor saved in this unit of work.
        """
        if (tracked := self.of(model)) is None:
            raise UsageError(
                f"This {type(model).__name__} was neither read nor saved in this unit of work: `save` it first."
            )
        return tracked

    def deletes(self, model: object) -> bool:
        """Return whether the next commit deletes a document for good."""
        tracked = self.of(model)
        return tracked is not None and tracked.change is Change.DELETE

    def awaits_commit_of(self, model: object) -> bool:
        """Return whether an entity has changes that the next commit of this unit of work would write."""
        tracked = self.of(model)
        if tracked is None or self.failed or self._ended:
            return False
        return tracked.change is not Change.NONE or (tracked.state is not None and tracked.pending)

    def track(self, entity: Entity, change: Change = Change.NONE, *, etag: str | None = None) -> None:
        """Track an entity, and a change that the next commit is to make to it; see `add`."""
        place = entity.entity_type, entity.id, entity.partition_key
        tracked = Tracked(entity, progress_of(entity), *place, created_event=entity.created_event)
        self.add(tracked, change, etag=etag)

    def add(self, document: Tracked, change: Change = Change.NONE, *, etag: str | None = None) -> None:
        """
        Track a document, and merge a change into the change that the next commit is to make to it.

        Raises:
            UsageError: another object with the same type, id and partition key is tracked; the document was deleted in
                this unit of work; a document to update was never stored, or one to create is stored already; or another
                unit of work has changes of it that are not committed.
            PreconditionFailed: the document was read with another etag than the caller gives.
        """
        self.check()
        progress = document.progress
        if etag is not None and etag != progress.shown_etag:
            raise PreconditionFailed(
                expected=etag,
                actual=progress.shown_etag,
                document_id=document.id,
                partition_key=document.key,
            )
        if (known := self.of(document.model)) is None:
            self._check_free(document)
        place = document.kind, document.id, identity(document.key)
        if (known := known or self._tracked.get(place)) is None:
            if progress.version == 0:
                check_id(document.id, of=f"a new {document.kind}")
            if change is (Change.CREATE if progress.version else Change.UPDATE):
                raise _cannot_be(document, change)
            self.refusal, self.failed = None, False
            progress.tracked_by, progress.closed = self._reference, None
            self._tracked[place] = document
            document.change, document.added_by = change, self.acting
            if progress.version and change is Change.NONE:
                document.state = document.state_now()
        elif known.model is not document.model:
            advice = "change the one that `read` or `create` returned first"
            if known.change is Change.DELETE:
                advice = "commit the deletion before you create it again, or change it instead of deleting it"
            raise document.misuse(f"Two different objects are {document} in one unit of work: {advice}.")
        elif change is not Change.NONE:
            self.failed = False
            known.merge(change)

    def _check_free(self, document: Tracked) -> None:
        tracked_by = document.progress.tracked_by
        other: IdentityMap | None = tracked_by() if tracked_by else None
        if other is None or other is self or not other.awaits_commit_of(document.model):
            return
        instead = "Make another object here"
        if document.progress.version:
            instead = "Read it in this one and change that object"
        raise document.misuse(
            f"{document} belongs to another unit of work, which is still open and has not committed it, so both would write it. "
            f"{instead}, or commit or end the other one first."
        )

    def changes(self) -> list[Tracked]:
        """Return the documents that a commit would write, in the order in which they were first tracked."""
        return [tracked for tracked in self._tracked.values() if tracked.pending]

    def each_event(self) -> Iterator[tuple[Tracked, DomainEvent]]:
        """Yield the events that a commit would write, in order, each with the document that recorded it."""
        for tracked in list(self._tracked.values()):
            if tracked.asked_for:
                for event in tracked.progress.take(tracked.created_event).events:
                    yield tracked, event

    def warn_of_what_is_left(self, commit: str) -> None:
        """
        Log a warning if there are changes that were neither committed nor rolled back. The warning names `commit`, the
        call that would have written them.
        """
        changed = [] if self.failed else self.changes()
        left = [one for one in changed if one.asked_for or not may_follow_the_clock(one.model)]
        if left:
            _logger.warning(
                "unit_of_work.left %d changed document(s), the first of them %s of partition key %r: the block of the unit of work "
                "has ended, and no commit wrote them. `%s` writes them, `rollback()` discards them.",
                len(left),
                left[0],
                left[0].key,
                commit,
                extra={"changed": len(left), "document": left[0].id},
            )

    def clear(self) -> None:
        """Forget all documents and their changes, without writing them."""
        self._tracked.clear()
        self.refusal, self.failed = None, False

    def end(self) -> None:
        """End the unit of work: it refuses any further use, and its entities refuse to record events."""
        for tracked in self._tracked.values():
            tracked.progress.closed = "belongs to a unit of work that has ended"
        self._tracked.clear()
        self._ended = True

    def snapshot(self) -> Snapshot:
        """Return the changes that are pending now, so that `put_back` can restore them."""
        return tuple((place, copy(one), tuple(one.progress.recorded)) for place, one in self._tracked.items())

    def put_back(self, snapshot: Snapshot) -> None:
        """
        Restore a snapshot: forget the documents, changes and events that were added since. Fields of models that were
        set since then keep their new values.
        """
        self._tracked = {place: kept for place, kept, _ in snapshot}
        for _, kept, recorded in snapshot:
            kept.progress.recorded, kept.progress.closed = list(recorded), None

    def undo(self, refusal: StoreError, raised: Collection[str]) -> None:
        """
        Forget all documents after the store refused a commit, and remove from entities the events that event handlers
        raised.
        """
        for tracked in self._tracked.values():
            progress = tracked.progress
            progress.recorded = [event for event in progress.recorded if event.id not in raised]
            progress.closed = "is of a commit that was refused and undone"
        self._tracked.clear()
        self.refusal = refusal

    def mark_written(
        self, parts: Sequence[Part], partition_key: PartitionKey, etags: Mapping[str, str | None]
    ) -> None:
        """
        Note that a commit was written. Its documents get their new version and etag. Documents that were deleted for
        good count as new again, and are no longer tracked. If a document was changed while the outcome of the commit
        was unknown, the next commit writes that change.
        """
        for part in parts:
            model, deleted = part.tracked.model, part.change is Change.DELETE
            # A deleted object gets version 0. With its old version and no etag, it would look like a stored
            # document that the next commit could overwrite.
            progress = part.tracked.progress
            version, etag = (0, None) if deleted else (progress.version + 1, etags.get(part.tracked.id))
            progress.note_commit(version=version, etag=etag, taken=part.taken, stored=part.document)
            if isinstance(model, dict) and "_etag" in model:
                # The caller read this dict with the SDK, and may save it again in another unit of work, which
                # needs the new etag.
                model["_etag"] = etag
            tracked = next(((place, one) for place, one in self._tracked.items() if one.model is model), None)
            if tracked is None:
                continue
            place, kept = tracked
            if deleted:
                del self._tracked[place]
                continue
            kept.key, kept.state = partition_key, None
            # If the application asked for further changes of this document while the commit ran, the next commit writes them.
            if kept.revision == part.revision:
                kept.change = Change.NONE
            elif kept.change is not Change.DELETE:
                kept.change = Change.UPDATE


def _cannot_be(document: Tracked, change: Change) -> UsageError:
    advice = (
        "cannot be created: a commit wrote it already, so its created event would be missing. Change it with `update`; for another "
        "container, make another object of its fields."
    )
    if change is Change.UPDATE:  # without an etag the write could replace another program's document
        advice = "cannot be updated: it was neither read nor created. Read it first and change that object, or create it."
    return document.misuse(f"{document} {advice}")


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs, and entities may be added without a loop
        return None
