"""
ContainerContext: the entities of one unit of work, tracked by identity, and what is to be done with each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from cosmos_outbox.documents import is_edited
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.identifiers import check_id, check_partition_key
from cosmos_outbox.errors import IdentityConflict, MixedPartitionKeys, SharedUnitOfWork, UsageError
from cosmos_outbox.write.batch import Change, PendingCommit, PendingEntity, pending_commit


@dataclass(slots=True)
class Tracked:
    """
    An entity and what will happen to it.
    """

    entity: Entity
    change: Change
    revision: int = 0  # counts what was asked for
    stored_under: str | None = None  # the partition key of the document, where there is one
    outdated: bool = False  # a commit was refused because of what somebody else wrote

    @property
    def pending(self) -> bool:
        if self.change is Change.DELETE:
            return not self.entity.is_new  # what was never stored needs no deletion
        return self.change is not Change.NONE or self.entity.has_events

    def merge(self, change: Change) -> None:
        """
        Take note of one more thing to be done.

        A commit whose outcome is unknown may hold the state before it, so the revision tells the two apart.
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

    def settle(self, part: PendingEntity, *, edited: bool) -> None:
        """
        Take note that the part of a commit was written; what was asked for or edited since stays to be done.
        """
        if self.revision == part.revision and not edited:
            self.change = Change.NONE
        elif self.change is not Change.DELETE:
            self.change = Change.UPDATE


class Exclusive:
    """
    The time that one task uses a context; the same task may nest it.
    """

    __slots__ = ("_depth", "_user")

    def __init__(self) -> None:
        self._user: asyncio.Task[object] | None = None
        self._depth = 0

    def __enter__(self) -> None:
        task = _current_task()
        if self._depth and self._user is not task:
            raise SharedUnitOfWork
        self._user = task
        self._depth += 1

    def check(self) -> None:
        """
        Raise SharedUnitOfWork inside another task's block; enough for what does not await.
        """
        if self._depth and self._user is not _current_task():
            raise SharedUnitOfWork

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._user = None


class ContainerContext:
    """
    An identity map: each (type, id) is one object. Used by one task at a time.
    """

    def __init__(self) -> None:
        self._tracked: dict[tuple[str, str], Tracked] = {}
        self._exclusive = Exclusive()

    def exclusively(self) -> Exclusive:
        """
        Hold the context for the current task, as `with context.exclusively():`.

        Raises:
            SharedUnitOfWork: another task is in the middle of a call.
        """
        return self._exclusive

    def check(self) -> None:
        """
        Raise SharedUnitOfWork where another task is in the middle of a call.
        """
        self._exclusive.check()

    def find(self, entity_type: str, entity_id: str) -> Entity | None:
        """
        Return the tracked entity, or None; also None for one that has to be read anew, see `mark_refused`.
        """
        tracked = self._tracked.get((entity_type, entity_id))
        return None if tracked is None or tracked.outdated else tracked.entity

    def deletes(self, entity: Entity) -> bool:
        """
        Say whether the next commit deletes a tracked entity for good.
        """
        tracked = self._tracked.get((entity.entity_type, entity.id))
        return tracked is not None and tracked.entity is entity and tracked.change is Change.DELETE

    def track(self, entity: Entity, change: Change = Change.NONE) -> None:
        """
        Track an entity, merging with what was to be done with it before.

        Raises:
            IdentityConflict: another object with the same type and id is tracked.
            UsageError: the entity was deleted in this unit of work, or is to be updated and was never stored.
        """
        self.check()
        key = (entity.entity_type, entity.id)
        known = self._tracked.get(key)
        if known is None or (known.outdated and known.entity is not entity):
            if entity.is_new:
                _check_new(entity, change)
                self._tracked[key] = Tracked(entity, change)
            else:
                self._tracked[key] = Tracked(entity, change, stored_under=entity.partition_key)
            return
        if known.entity is not entity:
            raise IdentityConflict(
                f"Two different objects are {entity.entity_type} {entity.id!r} in one unit of work; "
                "use the one that is already there."
            )
        if change is not Change.NONE:
            known.merge(change)

    def changed(self) -> list[Tracked]:
        """
        Return what a commit would write, in the order it was first seen.
        """
        return [tracked for tracked in self._tracked.values() if tracked.pending]

    def clear(self) -> None:
        """
        Forget everything; nothing of it is written.
        """
        self._tracked.clear()

    def pending_commit(
        self,
        pending: Sequence[Tracked],
        *,
        correlation: Mapping[str, str],
        published: Mapping[str, DomainEvent | None],
    ) -> PendingCommit:
        """
        Return what a commit of these, at least one, writes.

        Raises:
            MixedPartitionKeys, IdentityConflict, BatchTooLarge: one transactional batch cannot hold it.
            UsageError: a stored entity has another partition key than before, or none that Cosmos DB takes, or no etag.
        """
        partition_key = pending[0].entity.partition_key
        check_partition_key(partition_key)
        for tracked in pending:
            entity, key = tracked.entity, tracked.entity.partition_key
            if tracked.stored_under not in (None, key):
                raise UsageError(
                    f"The partition key of {entity.entity_type} {entity.id!r} was {tracked.stored_under!r} and is now "
                    f"{key!r}; a stored document cannot change it. Delete the entity and create another one."
                )
            if key != partition_key:
                raise MixedPartitionKeys(partition_key, key)
        return pending_commit(
            [_pending_entity(tracked) for tracked in pending],
            partition_key=partition_key,
            correlation=correlation,
            published=published,
        )

    def mark_written(
        self, commit: PendingCommit, etags: Mapping[str, str | None], *, in_doubt: bool = False
    ) -> None:
        """
        Take note that a commit was written: its entities are at their new version, those deleted for good are new
        again and forgotten. After it was `in_doubt`, they may have been edited since, and are still to be written then.
        """
        for part, write in zip(commit.entities, commit.entity_writes, strict=True):
            entity, key = part.entity, (part.entity.entity_type, part.entity.id)
            deleted = part.change is Change.DELETE
            # Under its old version, the object would pass for one that is stored, and has no etag that guards it.
            version, etag = (0, None) if deleted else (part.version, etags.get(entity.id))
            entity.mark_committed(version=version, etag=etag, taken=part.taken, stored=write.document)
            tracked = self._tracked.get(key)
            if tracked is None or tracked.entity is not entity:
                continue
            if deleted:
                del self._tracked[key]
            else:
                edited = in_doubt and write.document is not None and is_edited(entity, write.document)
                tracked.settle(part, edited=edited)
                tracked.stored_under = commit.partition_key

    def mark_refused(self, commit: PendingCommit, document_id: str | None) -> None:
        """
        Take note that a commit was refused because of a document: the next `read` fetches it anew.

        Until then the entity is still to be written, as everything else of the commit.
        """
        for part in commit.entities:
            tracked = self._tracked.get((part.entity.entity_type, part.entity.id))
            if tracked is not None and tracked.entity is part.entity and part.entity.id == document_id:
                tracked.outdated = True


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here; entities may be added all the same
        return None


def _check_new(entity: Entity, change: Change) -> None:
    check_id(entity.id)
    if change is Change.UPDATE:
        # It would be a replacement under no etag, of whatever is stored under that id.
        raise UsageError(
            f"{entity.entity_type} {entity.id!r} cannot be updated: it was neither read nor created. Read it first and "
            "change that object, or create it."
        )


def _pending_entity(tracked: Tracked) -> PendingEntity:
    entity, change = tracked.entity, tracked.change
    version = entity.version + 1
    if change is Change.NONE:
        change = Change.UPDATE
    return PendingEntity(
        entity=entity,
        change=change,
        version=version,
        taken=entity.take_events(),
        revision=tracked.revision,
    )
