"""
ContainerContext: the documents one unit of work will write, tracked by identity, in one partition key.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import TracebackType
from typing import Any

from pydantic_core import to_json

from cosmos_outbox.correlation import Correlation
from cosmos_outbox.documents import EventMeta, entity_document, event_document
from cosmos_outbox.entities import Entity, TakenEvents
from cosmos_outbox.errors import (
    BatchTooLarge,
    IdentityConflict,
    MixedPartitionKeys,
    SharedUnitOfWork,
    UsageError,
)
from cosmos_outbox.events import DomainEvent
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Write, WriteKind

# An event that lives shorter than this may be gone when a lost answer is resolved, so it proves nothing.
_PROVES_FOR = timedelta(hours=1)
_OPERATION_OVERHEAD_BYTES = 64  # {"operationType": "Create", "resourceBody": …}, beside ids and etags


class Change(StrEnum):
    """
    What the next commit does with a tracked entity.
    """

    NONE = "none"  # it was only read, and is written if it records an event
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(slots=True)
class Tracked:
    """
    An entity and what will happen to it.
    """

    entity: Entity
    change: Change

    @property
    def pending(self) -> bool:
        return self.change is not Change.NONE or self.entity.has_events


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEntity:
    """
    One entity's part of a commit: what to do with the object once the commit is known to be written.
    """

    entity: Entity
    change: Change
    version: int
    taken: TakenEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """
    All that one commit writes, frozen, so that every retry sends the same.

    Events come before entities: a repeated commit then fails on an event's id, which proves that the first was
    written, and never on an etag, which proves nothing. `marker` is the document to read where the answer was lost.
    """

    commit_id: str
    partition_key: str
    writes: tuple[Write, ...]
    events: tuple[DomainEvent, ...]
    entities: tuple[PendingEntity, ...]
    marker: str
    size_bytes: int

    @property
    def event_ids(self) -> frozenset[str]:
        return frozenset(event.id for event in self.events)

    @property
    def deletes_only(self) -> bool:
        return all(write.kind is WriteKind.DELETE for write in self.writes)


class Exclusive:
    """
    The time that one task uses a context.
    """

    __slots__ = ("_before", "_context")

    def __init__(self, context: ContainerContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        task, holder = _current_task(), self._context.user
        if holder is not None and holder is not task:
            raise SharedUnitOfWork
        self._before, self._context.user = holder, task

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._context.user = self._before


class ContainerContext:
    """
    An identity map: each (type, id) is one object. Used by one task at a time.
    """

    def __init__(self) -> None:
        self._tracked: dict[tuple[str, str], Tracked] = {}
        self.user: asyncio.Task[object] | None = None

    def exclusively(self) -> Exclusive:
        """
        Hold the context for the current task, as `with context.exclusively():`; the same task may nest it.

        Raises:
            SharedUnitOfWork: another task is in the middle of a call.
        """
        return Exclusive(self)

    def find(self, entity_type: str, entity_id: str) -> Entity | None:
        """
        Return the tracked entity, or None.
        """
        tracked = self._tracked.get((entity_type, entity_id))
        return None if tracked is None else tracked.entity

    def track(self, entity: Entity, change: Change = Change.NONE) -> None:
        """
        Track an entity, merging with what was to be done with it before.

        Raises:
            IdentityConflict: another object with the same type and id is tracked.
            UsageError: the entity was deleted in this unit of work.
        """
        with self.exclusively():
            key = (entity.entity_type, entity.id)
            known = self._tracked.get(key)
            if known is None:
                self._tracked[key] = Tracked(entity, change)
                return
            if known.entity is not entity:
                raise IdentityConflict(
                    f"Two different objects are {entity.entity_type} {entity.id!r} in one unit of work; "
                    "use the one that is already there."
                )
            if known.change is Change.DELETE and change is not Change.NONE:
                if change is Change.DELETE:
                    return
                raise UsageError(f"{entity.entity_type} {entity.id!r} was deleted in this unit of work.")
            if known.change is Change.CREATE and change is Change.DELETE:
                del self._tracked[key]
            elif known.change is not Change.CREATE and change is not Change.NONE:
                known.change = change

    @property
    def has_changes(self) -> bool:
        """
        Say whether a commit would write anything.
        """
        return any(tracked.pending for tracked in self._tracked.values())

    def tracked(self) -> tuple[Entity, ...]:
        """
        Return all tracked entities, in the order they were first seen.
        """
        return tuple(tracked.entity for tracked in self._tracked.values())

    def clear(self) -> None:
        """
        Forget everything; nothing of it is written.
        """
        self._tracked.clear()

    def pending_commit(
        self, *, correlation: Correlation, published: Mapping[str, DomainEvent | None]
    ) -> PendingCommit:
        """
        Return what a commit has to write; something has to, see `has_changes`.

        Args:
            correlation: what to store with every event.
            published: for the id of a domain event, the event to write in its place, or None to write none.

        Raises:
            MixedPartitionKeys, BatchTooLarge: one transactional batch cannot hold it.
        """
        pending = [tracked for tracked in self._tracked.values() if tracked.pending]
        partition_key = pending[0].entity.partition_key
        for tracked in pending:
            if tracked.entity.partition_key != partition_key:
                raise MixedPartitionKeys(partition_key, tracked.entity.partition_key)
        commit_id = str(uuid.uuid4())
        entities = tuple(_pending_entity(tracked) for tracked in pending)
        events: list[DomainEvent] = []
        writes: list[Write] = []
        for part in entities:
            for recorded in part.taken.events:
                event = published.get(recorded.id, recorded)
                if event is None:
                    continue
                meta = EventMeta(
                    entity_type=part.entity.entity_type,
                    entity_id=part.entity.id,
                    entity_version=part.version,
                    commit_id=commit_id,
                    sequence=len(events),
                    schema_version=event.schema_version,
                    correlation_id=correlation.correlation_id,
                    causation_id=correlation.causation_id,
                    traceparent=correlation.traceparent,
                    tracestate=correlation.tracestate,
                )
                events.append(event)
                document = event_document(event, partition_key=partition_key, meta=meta)
                writes.append(Write(kind=WriteKind.CREATE, id=event.id, document=document))
        proof = next((event for event in events if event.ttl >= _PROVES_FOR), None)
        writes.extend(_entity_write(part, None if proof else commit_id) for part in entities)
        return PendingCommit(
            commit_id=commit_id,
            partition_key=partition_key,
            writes=tuple(writes),
            events=tuple(events),
            entities=entities,
            marker=proof.id if proof else entities[-1].entity.id,
            size_bytes=_checked_size(writes),
        )

    def mark_written(self, commit: PendingCommit, etags: Mapping[str, str | None]) -> None:
        """
        Take note that a commit was written: its entities are at their new version, deleted ones are forgotten.
        """
        for part in commit.entities:
            entity, key = part.entity, (part.entity.entity_type, part.entity.id)
            entity.mark_committed(version=part.version, etag=etags.get(entity.id), taken=part.taken)
            tracked = self._tracked.get(key)
            if part.change is Change.DELETE:
                self._tracked.pop(key, None)
            elif tracked is not None and tracked.entity is entity and tracked.change is not Change.DELETE:
                tracked.change = Change.NONE


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here; entities may be added all the same
        return None


def _pending_entity(tracked: Tracked) -> PendingEntity:
    entity, change = tracked.entity, tracked.change
    if change is Change.NONE:
        change = Change.CREATE if entity.is_new else Change.UPDATE
    return PendingEntity(entity=entity, change=change, version=entity.version + 1, taken=entity.take_events())


def _entity_write(part: PendingEntity, commit_id: str | None) -> Write:
    entity = part.entity
    if part.change is Change.DELETE:
        return Write(kind=WriteKind.DELETE, id=entity.id, etag=entity.etag)
    document = entity_document(entity, version=part.version, commit_id=commit_id)
    if part.change is Change.CREATE:
        return Write(kind=WriteKind.CREATE, id=entity.id, document=document)
    return Write(kind=WriteKind.REPLACE, id=entity.id, document=document, etag=entity.etag)


def _checked_size(writes: list[Write]) -> int:
    size = _json_size([write.document for write in writes]) + sum(
        len(write.id) + len(write.etag or "") + _OPERATION_OVERHEAD_BYTES for write in writes
    )
    if len(writes) > MAX_BATCH_OPERATIONS or size > MAX_BATCH_BYTES:
        raise BatchTooLarge(
            operations=len(writes),
            size_bytes=size,
            max_operations=MAX_BATCH_OPERATIONS,
            max_bytes=MAX_BATCH_BYTES,
        )
    return size


def _json_size(documents: list[Mapping[str, Any] | None]) -> int:
    # The SDK sends compact JSON with non-ASCII characters escaped; pydantic's writer is faster but does not escape.
    written = to_json(documents)
    return len(written) if written.isascii() else len(json.dumps(documents, separators=(",", ":")))
