"""
IdentityMap: the documents of one unit of work, one object per type, id and partition key, and what is to be done with each.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy

from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.identifiers import check_id
from cosmos_outbox.errors import SharedUnitOfWork, StoreError, UsageError
from cosmos_outbox.partition_key import PartitionKey, identity
from cosmos_outbox.write.batch import PendingCommit
from cosmos_outbox.write.commit import WrittenCommit
from cosmos_outbox.write.tracked import Change, Place, Tracked

Snapshot = tuple[tuple[Place, Tracked, tuple[DomainEvent, ...]], ...]


class IdentityMap:
    """Each (type, id, partition key) is one object. Used by one task at a time: a second one is refused."""

    def __init__(self, kinds: dict[str, type[Entity]] | None = None) -> None:
        # The class of each type, as all units of an outbox know it
        self.kinds = {} if kinds is None else kinds
        self._tracked: dict[Place, Tracked] = {}
        self._reference = weakref.ref(self)
        self._user: asyncio.Task[object] | None = None  # inside an `alone` block
        self._ended = False
        self.refusal: StoreError | None = None  # of the last commit, until a new attempt begins
        self.acting: str | None = None  # the event handler that runs now
        self.failed = False  # the last commit raised, and nothing was asked for since

    @contextmanager
    def alone(self) -> Iterator[None]:
        """
        Let one task at a time into the block; the same task may nest them.

        Raises:
            SharedUnitOfWork, UsageError: see `check`.
        """
        self.check()
        outer, self._user = self._user, _current_task()
        try:
            yield
        finally:
            self._user = outer

    def check(self) -> None:
        """
        Check that the unit of work may be used now; enough for code that does not await.

        Raises:
            SharedUnitOfWork: another task is inside an `alone` block.
            UsageError: the unit of work has ended.
        """
        if self._ended:
            raise UsageError(
                "This unit of work has ended with its `async with` block, and what was not committed is forgotten. Open another one "
                "(`outbox.unit_of_work()`) and read the entities in it."
            )
        if self._user is not None and self._user is not _current_task():
            raise SharedUnitOfWork

    def find(
        self, types: Collection[str], document_id: str, partition_key: PartitionKey | None = None
    ) -> Tracked | None:
        """
        Return the tracked document of one of the types; None if there is none.

        Without a partition key it is the one whose id is its partition key, else the first with this id.
        """
        key = identity(document_id if partition_key is None else partition_key)
        places: list[Place] = [(kind, document_id, key) for kind in types]
        if partition_key is None:
            places += [place for place in self._tracked if place[0] in types and place[1] == document_id]
        return next((self._tracked[place] for place in places if place in self._tracked), None)

    def at(self, document_id: str, partition_key: PartitionKey) -> Iterator[Tracked]:
        """Yield what is tracked under an id and partition key, of whatever type."""
        wanted = document_id, identity(partition_key)
        return (tracked for (_, *place), tracked in self._tracked.items() if tuple(place) == wanted)

    def of(self, model: object) -> Tracked | None:
        """Return what is tracked of an object of the application; None if nothing is."""
        # By the object, as its partition key may have changed
        return next((tracked for tracked in self._tracked.values() if tracked.model is model), None)

    def required(self, model: object) -> Tracked:
        """
        Return what is tracked of an object of the application.

        Raises:
            UsageError: it was neither read nor saved here.
        """
        if (tracked := self.of(model)) is None:
            raise UsageError(
                f"This {type(model).__name__} was neither read nor saved in this unit of work: `save` it first."
            )
        return tracked

    def deletes(self, model: object) -> bool:
        """Say whether the next commit deletes a document for good."""
        tracked = self.of(model)
        return tracked is not None and tracked.change is Change.DELETE

    def awaits_commit_of(self, model: object) -> bool:
        """
        Say whether a commit is still to write what was done with an entity since it was read or created.
        """
        tracked = self.of(model)
        if tracked is None or self.failed or self._ended:
            return False
        return tracked.change is not Change.NONE or (tracked.state is not None and tracked.pending)

    def track(self, entity: Entity, change: Change = Change.NONE) -> None:
        """Track an entity; see `add`."""
        self.add(Tracked(entity), change)

    def add(self, document: Tracked, change: Change = Change.NONE) -> None:
        """
        Track a document, and merge the change with what was to be done before.

        Raises:
            UsageError: another object with the same type, id and partition key is tracked; the document was deleted in this unit of
                work; is to be updated and was never stored, or to be created and was; or another unit of work is still to commit it.
        """
        self.check()
        place, model = document.place, document.model
        known = self._tracked.get(place)
        if known is None or known.model is not model:
            known = self.of(model) or known
        if known is None:
            self._begin(document, place, change)
        elif known.model is not model:
            advice = "change the one that `read` or `create` returned first"
            if known.change is Change.DELETE:
                advice = "commit the deletion before you create it again, or change it instead of deleting it"
            raise UsageError(
                f"Two different objects are {document} in one unit of work: {advice}.",
                document_id=document.id,
                partition_key=known.partition_key,
            )
        elif change is not Change.NONE:
            self.failed = False
            known.merge(change)

    def _begin(self, document: Tracked, place: Place, change: Change) -> None:
        progress = document.progress
        self._check_free(document)
        if document.is_new:
            check_id(document.id, of=f"a new {document.kind}")
            if change is Change.UPDATE:
                # It would replace, under no etag, whatever is stored under that id.
                raise UsageError(
                    f"{document} cannot be updated: it was neither read nor created. Read it first and change that object, or create it."
                )
        elif change is Change.CREATE:
            raise UsageError(
                f"{document} cannot be created: a commit wrote it already, so its created event would be missing. Change it with "
                "`update`; for another container, make another object of its fields.",
                document_id=document.id,
                partition_key=document.partition_key,
            )
        self.refusal, self.failed = None, False
        progress.tracked_by, progress.closed = self._reference, None
        self._tracked[place] = document
        document.change, document.added_by = change, self.acting
        if not document.is_new:
            document.stored_under = document.partition_key
            document.state = document.state_now() if change is Change.NONE else None

    def changed(self) -> Sequence[Tracked]:
        """Return what a commit would write, in the order in which it was first tracked."""
        return [tracked for tracked in self._tracked.values() if tracked.pending]

    def left(self) -> Sequence[Tracked]:
        """Return the changes that the unit of work is about to forget unnoticed."""
        changed = [] if self.failed else self.changed()
        return [tracked for tracked in changed if tracked.asked_for or not tracked.may_follow_the_clock]

    def recorded(self) -> Iterator[DomainEvent]:
        """Yield the events that a commit would write, in order."""
        for tracked in list(self._tracked.values()):
            if tracked.asked_for:
                yield from tracked.events

    def recorded_by(self, event: DomainEvent) -> str:
        """Return what recorded an event, for a message."""
        for tracked in self.changed():
            if any(event.id == one.id for one in tracked.events):
                return f"{tracked} of partition key {tracked.partition_key!r}"
        return "an entity"

    def clear(self) -> None:
        """Forget everything; nothing of it is written."""
        self._tracked.clear()
        self.refusal, self.failed = None, False

    def end(self) -> None:
        """Have all entities refuse to record events, and the unit of work be used no more."""
        for tracked in self._tracked.values():
            tracked.progress.closed = "belongs to a unit of work that has ended"
        self._ended = True

    def snapshot(self) -> Snapshot:
        """Return what is to be done now, for `put_back`."""
        return tuple(
            (place, copy(tracked), tuple(tracked.progress.recorded))
            for place, tracked in self._tracked.items()
        )

    def put_back(self, snapshot: Snapshot) -> None:
        """Undo what was tracked, asked for and recorded since; fields that were set keep their values."""
        self._tracked = {place: kept for place, kept, _ in snapshot}
        for _, kept, recorded in snapshot:
            kept.progress.recorded, kept.progress.closed = list(recorded), None

    def undo(self, refusal: StoreError, raised: Collection[str]) -> None:
        """Forget a refused attempt, and take the events that handlers raised from its entities."""
        for tracked in self._tracked.values():
            progress = tracked.progress
            progress.recorded = [event for event in progress.recorded if event.id not in raised]
            progress.closed = "is of a commit that was refused and undone"
        self._tracked.clear()
        self.refusal = refusal

    def mark_written(self, commit: PendingCommit, written: WrittenCommit) -> None:
        """
        Note that a commit was written: its entities have their new version, and those deleted for good are new again and
        no longer tracked. What was edited while the outcome was in doubt stays to be written.
        """
        for part, write in zip(commit.parts, commit.part_writes, strict=True):
            document, deleted = part.document, part.change is Change.DELETE
            # With its old version, a deleted object would look like a stored one that no etag guards.
            version, etag = (0, None) if deleted else (part.version, written.etags.get(document.id))
            document.progress.committed(version=version, etag=etag, taken=part.taken, stored=write.document)
            if isinstance(document.model, dict) and "_etag" in document.model:
                # The caller read it with the SDK, and may give it to the next unit of work.
                document.model["_etag"] = etag
            tracked = self.of(document.model)
            if deleted:
                self._tracked = {
                    place: other for place, other in self._tracked.items() if other is not tracked
                }
            elif tracked is not None:
                tracked.settle(part, stored_under=commit.partition_key)

    def _check_free(self, document: Tracked) -> None:
        tracked_by = document.progress.tracked_by
        other: IdentityMap | None = None if tracked_by is None else tracked_by()
        if other is None or other is self or not other.awaits_commit_of(document.model):
            return
        instead = "Make another object here"
        if not document.is_new:
            instead = "Read it in this one and change that object"
        raise UsageError(
            f"{document} belongs to another unit of work, which is still open and has not committed it, so both would write it. "
            f"{instead}, or commit or end the other one first.",
            document_id=document.id,
            partition_key=document.partition_key,
        )


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs; entities may be added all the same
        return None
