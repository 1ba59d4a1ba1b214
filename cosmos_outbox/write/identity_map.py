"""
IdentityMap: the entities of one unit of work, one object per type, id and partition key, and what is to be done with each.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from cosmos_outbox.documents import state_of, stored_state
from cosmos_outbox.domain.entities import (
    Entity,
    close,
    keep_recorded,
    note_tracker,
    recorded_events,
    tracker_of,
)
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.identifiers import check_id
from cosmos_outbox.domain.own_documents import OwnDocument
from cosmos_outbox.errors import (
    IdentityConflict,
    PreconditionFailed,
    SharedUnitOfWork,
    StoreError,
    UsageError,
)
from cosmos_outbox.partition_key import PartitionKey, identity
from cosmos_outbox.write.batch import Change, PendingCommit, PendingEntity
from cosmos_outbox.write.commit import WrittenCommit


@dataclass(slots=True)
class Tracked:
    """
    An entity and what will happen to it.
    """

    entity: Entity
    change: Change
    revision: int = 0  # counts the changes that were asked for
    state: bytes | None = None  # as it was read; None if it was not, or has been written since
    stored_under: PartitionKey | None = None  # the key of the stored document; None if there is none
    added_by: str | None = None  # the event handler that read or created it

    @property
    def asked_for(self) -> bool:
        if self.change is Change.DELETE:
            return not self.entity.is_new  # what was never stored needs no deletion
        return self.change is not Change.NONE or self.entity.has_events

    @property
    def pending(self) -> bool:
        asked_for = self.asked_for
        if asked_for or self.change is Change.DELETE:
            return asked_for
        before = stored_state(self.entity) if self.state is None else self.state
        return before is not None and state_of(self.entity) != before

    def merge(self, change: Change) -> None:
        """
        Add one more change to be done.

        A commit whose outcome is unknown may hold the earlier state; the revision distinguishes the two.
        """
        if self.change is Change.DELETE and not (self.entity.is_new and change is Change.CREATE):
            if change is not Change.DELETE:
                raise UsageError(
                    f"{self.entity.entity_type} {self.entity.id!r} was deleted in this unit of work."
                )
            return
        self.revision += 1
        # Created, then updated: still created
        if self.change is not Change.CREATE or change is Change.DELETE:
            self.change = change

    def part(self) -> PendingEntity:
        """
        Return this entity's part of the next commit.

        Raises:
            UsageError: the partition key differs from the one that the document is stored under.
        """
        entity = self.entity
        if self.stored_under is not None and identity(self.stored_under) != identity(entity.partition_key):
            raise UsageError(
                f"The partition key of {entity.entity_type} {entity.id!r} was {self.stored_under!r} and is now "
                f"{entity.partition_key!r}; a stored document cannot change it. Delete the entity and create another one.",
                document_id=entity.id,
                partition_key=self.stored_under,
            )
        return PendingEntity(
            entity=entity,
            change=Change.UPDATE if self.change is Change.NONE else self.change,
            version=entity.version + 1,
            taken=entity.take_events(),
            revision=self.revision,
        )

    def settle(self, part: PendingEntity, *, stored_under: PartitionKey) -> None:
        """
        Note that the part of a commit was written; what was asked for or edited since stays to be done.
        """
        self.stored_under, self.state = stored_under, None
        if self.revision == part.revision:
            self.change = Change.NONE
        elif self.change is not Change.DELETE:
            self.change = Change.UPDATE


Place = tuple[str, str, Hashable]  # type, id, partition key
Snapshot = tuple[tuple[Place, Tracked, tuple[DomainEvent, ...]], ...]


class SingleTaskGuard:
    """
    Lets one task at a time into `with guard:` blocks; the same task may nest them.

    Raises:
        SharedUnitOfWork: on entering, another task is inside.
        UsageError: on entering, it is closed.
    """

    __slots__ = ("_depth", "_user", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._user: asyncio.Task[object] | None = None
        self._depth = 0

    def __enter__(self) -> None:
        self.check()
        self._user = _current_task()
        self._depth += 1

    def check(self) -> None:
        """
        Raise SharedUnitOfWork if another task is inside, UsageError if none may enter again; enough for code that does not await.
        """
        if self.closed:
            raise UsageError(
                "This unit of work has ended with its `async with` block, and what was not committed is forgotten. Open another one "
                "(`outbox.unit_of_work()`) and read the entities in it."
            )
        if self._depth and self._user is not _current_task():
            raise SharedUnitOfWork

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._user = None


class IdentityMap:
    """
    Each (type, id, partition key) is one object. Used by one task at a time, which `guard` holds.
    """

    def __init__(self) -> None:
        self._tracked: dict[Place, Tracked] = {}
        self._reference = weakref.ref(self)
        self.guard = SingleTaskGuard()
        self.refusal: StoreError | None = None  # of the last commit, until a new attempt begins
        self.acting: str | None = None  # the event handler that runs now
        self.failed = False  # the last commit raised, and nothing was asked for since

    def find(
        self, types: Collection[str], entity_id: str, partition_key: PartitionKey | None = None
    ) -> Entity | None:
        """
        Return the tracked entity of one of the types; None if there is none.

        Without a partition key it is the entity whose id is its partition key, else the first with this id.
        """
        key = identity(entity_id if partition_key is None else partition_key)
        for entity_type in types:
            if (tracked := self._tracked.get((entity_type, entity_id, key))) is not None:
                return tracked.entity
        if partition_key is None:
            for (entity_type, known_id, _), tracked in self._tracked.items():
                if known_id == entity_id and entity_type in types:
                    return tracked.entity
        return None

    def find_own(self, document_id: str, partition_key: PartitionKey) -> OwnDocument | None:
        """
        Return the tracked document of the application with this id; see `find`.
        """
        wanted = document_id, identity(partition_key)
        found = (tracked.entity for (_, *place), tracked in self._tracked.items() if tuple(place) == wanted)
        return next((entity for entity in found if isinstance(entity, OwnDocument)), None)

    def own(self, model: object) -> OwnDocument | None:
        """
        Return what stands for an object of the application here; None if nothing does.
        """
        owns = (tracked.entity for tracked in self._tracked.values())
        return next((own for own in owns if isinstance(own, OwnDocument) and own.model is model), None)

    def required(self, model: object) -> OwnDocument:
        """
        Return what stands for an object of the application here.

        Raises:
            UsageError: it was neither read nor saved here.
        """
        if (own := self.own(model)) is None:
            raise UsageError(
                f"This {type(model).__name__} was neither read nor saved in this unit of work: `save` it first."
            )
        return own

    def holds(self, entity: Entity) -> bool:
        """
        Say whether an object is tracked.
        """
        return self._entry(entity, _place(entity)) is not None

    def deletes(self, entity: Entity) -> bool:
        """
        Say whether the next commit deletes a tracked entity for good.
        """
        tracked = self._entry(entity, _place(entity))
        return tracked is not None and tracked.change is Change.DELETE

    def awaits_commit_of(self, entity: Entity) -> bool:
        """
        Say whether a commit is still to write what was done with an entity since it was read or created.
        """
        tracked = self._entry(entity, _place(entity))
        if tracked is None or self.failed or self.guard.closed:
            return False
        return tracked.change is not Change.NONE or (tracked.state is not None and tracked.pending)

    def track(self, entity: Entity, change: Change = Change.NONE) -> None:
        """
        Track an entity, and merge the change with what was to be done before.

        Raises:
            IdentityConflict: another object with the same type, id and partition key is tracked.
            UsageError: the entity was deleted in this unit of work; is to be updated and was never stored, or to be created and was;
                or another unit of work is still to commit it.
        """
        self.guard.check()
        place = _place(entity)
        known = self._entry(entity, place) or self._tracked.get(place)
        if known is None:
            self._check_free(entity)
            if entity.is_new:
                _check_new(entity, change)
            elif change is Change.CREATE:
                raise UsageError(
                    f"{entity.entity_type} {entity.id!r} cannot be created: a commit wrote it already, so its created event would be "
                    "missing. Change it with `update`; for another container, make another object of its fields.",
                    document_id=entity.id,
                    partition_key=entity.partition_key,
                )
            self.refusal, self.failed = None, False
            note_tracker(entity, self._reference)
            keep_recorded(entity, recorded_events(entity))
            tracked = self._tracked[place] = Tracked(entity, change, added_by=self.acting)
            if not entity.is_new:
                tracked.stored_under = entity.partition_key
                tracked.state = state_of(entity) if change is Change.NONE else None
            return
        if known.entity is not entity:
            advice = "change the one that `read` or `create` returned first"
            if known.change is Change.DELETE:
                advice = "commit the deletion before you create it again, or change it instead of deleting it"
            raise IdentityConflict(
                f"Two different objects are {entity.entity_type} {entity.id!r} in one unit of work: {advice}.",
                document_id=entity.id,
                partition_key=known.entity.partition_key,
            )
        if change is not Change.NONE:
            self.failed = False
            known.merge(change)

    def changed(self) -> Sequence[Tracked]:
        """
        Return what a commit would write, in the order in which it was first tracked.
        """
        return [tracked for tracked in self._tracked.values() if tracked.pending]

    def left(self) -> Sequence[Tracked]:
        """
        Return the changes that the unit of work is about to forget unnoticed: as `changed`, without fields that were only set.

        Comparing all fields would slow every unit of work that only reads; and where the stored form depends on the time, all differ.
        """
        return [] if self.failed else [tracked for tracked in self._tracked.values() if tracked.asked_for]

    def recorded(self) -> Iterator[DomainEvent]:
        """
        Yield the events that a commit would write, in order.
        """
        for tracked in list(self._tracked.values()):
            if tracked.asked_for:
                yield from tracked.entity.events

    def clear(self) -> None:
        """
        Forget everything; nothing of it is written.
        """
        self._tracked.clear()
        self.refusal, self.failed = None, False

    def end(self) -> None:
        """
        Have all entities refuse to record events, and the unit of work be used no more.
        """
        for tracked in self._tracked.values():
            close(tracked.entity, "belongs to a unit of work that has ended")
        self.guard.closed = True

    def snapshot(self) -> Snapshot:
        """
        Return what is to be done now, for `put_back`.
        """
        return tuple(
            (place, replace(tracked), recorded_events(tracked.entity))
            for place, tracked in self._tracked.items()
        )

    def put_back(self, snapshot: Snapshot) -> None:
        """
        Undo what was tracked, asked for and recorded since; fields that were set keep their values.
        """
        self._tracked = {place: kept for place, kept, _ in snapshot}
        for _, kept, recorded in snapshot:
            keep_recorded(kept.entity, recorded)

    def undo(self, refusal: StoreError, raised: Collection[str]) -> None:
        """
        Forget a refused attempt, and take the events that handlers raised from its entities.
        """
        for tracked in self._tracked.values():
            events = [event for event in recorded_events(tracked.entity) if event.id not in raised]
            keep_recorded(tracked.entity, events)
            close(tracked.entity, "is of a commit that was refused and undone")
        self._tracked.clear()
        self.refusal = refusal

    def mark_written(self, commit: PendingCommit, written: WrittenCommit) -> None:
        """
        Note that a commit was written: its entities have their new version, and those deleted for good are new again and
        no longer tracked. What was edited while the outcome was in doubt stays to be written.
        """
        for part, write in zip(commit.entities, commit.entity_writes, strict=True):
            entity, deleted = part.entity, part.change is Change.DELETE
            # With its old version, a deleted object would look like a stored one that no etag guards.
            version, etag = (0, None) if deleted else (part.version, written.etags.get(entity.id))
            entity.mark_committed(version=version, etag=etag, taken=part.taken, stored=write.document)
            tracked = self._entry(entity, _place(entity))
            if tracked is None:
                continue
            if deleted:
                self._tracked = {
                    place: other for place, other in self._tracked.items() if other is not tracked
                }
            else:
                tracked.settle(part, stored_under=commit.partition_key)

    def _check_free(self, entity: Entity) -> None:
        other: IdentityMap | None = tracker_of(entity)
        if other is None or other is self or not other.awaits_commit_of(entity):
            return
        instead = "Make another object here"
        if not entity.is_new:
            instead = "Read it in this one and change that object"
        raise UsageError(
            f"{entity.entity_type} {entity.id!r} belongs to another unit of work, which is still open and has not committed it, so both "
            f"would write it. {instead}, or commit or end the other one first.",
            document_id=entity.id,
            partition_key=entity.partition_key,
        )

    def _entry(self, entity: Entity, place: Place) -> Tracked | None:
        tracked = self._tracked.get(place)
        if tracked is not None and tracked.entity is entity:
            return tracked
        # Its partition key may have changed since
        return next((other for other in self._tracked.values() if other.entity is entity), None)


def _place(entity: Entity) -> Place:
    return entity.entity_type, entity.id, identity(entity.partition_key)


def check_etag(entity: Entity, etag: str | None) -> None:
    """
    Check the etag that a caller gives, if it gives one.

    Raises:
        PreconditionFailed: the entity was read with another one.
    """
    if etag is not None and etag != entity.etag:
        raise PreconditionFailed(
            expected=etag, actual=entity.etag, document_id=entity.id, partition_key=entity.partition_key
        )


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs; entities may be added all the same
        return None


def _check_new(entity: Entity, change: Change) -> None:
    check_id(entity.id, of=f"a new {entity.entity_type}")
    if change is Change.UPDATE:
        # It would replace, under no etag, whatever is stored under that id.
        raise UsageError(
            f"{entity.entity_type} {entity.id!r} cannot be updated: it was neither read nor created. Read it first and "
            "change that object, or create it."
        )
