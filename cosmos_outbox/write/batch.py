"""
PendingCommit: all that one commit writes, assembled once and frozen, so that every attempt sends the same.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from pydantic_core import to_json

from cosmos_outbox.documents import entity_document, event_document, origin_of
from cosmos_outbox.domain.entities import Entity, TakenEvents, guard_of
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.identifiers import check_id, new_id
from cosmos_outbox.errors import BatchTooLarge, EventTooLarge, IdentityConflict, UsageError
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_EVENT_BYTES, Write, WriteKind

# An event that lives shorter than this may be gone when a lost answer is resolved, so it proves nothing.
PROVES_FOR = timedelta(hours=1)
# Of all ids and trace headers; a message carries 64 KB of properties, its own included.
_LONGEST_CORRELATION = 48 * 1024
_OPERATION_OVERHEAD_BYTES = 64  # {"operationType": "Create", "resourceBody": …}, beside ids and etags


class Change(StrEnum):
    """
    What the next commit does with a tracked entity.
    """

    NONE = "none"  # it was only read, and is written if it records an event
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEntity:
    """
    One entity's part of a commit: what to do with the object once the commit is known to be written.
    """

    entity: Entity
    change: Change  # never NONE
    version: int
    taken: TakenEvents
    revision: int = 0  # of what the unit of work had asked for until then


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """
    One transactional batch.

    Events come before entities: a repeated commit then fails on an event's id, which proves that the first was
    written, and never on an etag, which proves nothing. `marker` is the document to read where the answer was lost.
    `size_bytes` is no less than what is sent.
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
    def traces(self) -> frozenset[str]:
        """
        Return the ids of the documents that tell of the commit while they are there.
        """
        if self.proved_by_event:
            return self.event_ids
        staying = (part.entity.id for part in self.entities if part.change is not Change.DELETE)
        return self.event_ids.union(staying)

    @property
    def proved_by_event(self) -> bool:
        """
        Say whether the marker is an event, which outlives every doubt; else the entities keep the commit's id.
        """
        return self.marker in self.event_ids

    @property
    def entity_writes(self) -> tuple[Write, ...]:
        return self.writes[len(self.events) :]

    @property
    def deletes_only(self) -> bool:
        return all(write.kind is WriteKind.DELETE for write in self.writes)


def pending_commit(
    parts: Sequence[PendingEntity],
    *,
    partition_key: str,
    correlation: Mapping[str, str],
    published: Mapping[str, DomainEvent | None],
) -> PendingCommit:
    """
    Return what a commit of these entities writes.

    Args:
        parts: the entities, at least one.
        partition_key: of all of them.
        correlation: what to store with every event.
        published: for the id of a domain event, the event to write in its place, or None to write none.

    Raises:
        IdentityConflict, BatchTooLarge: one transactional batch cannot hold it.
        EventTooLarge: an event could not be set aside, or its message never be sent.
        UsageError: an event has an id that no document can have, or a stored entity no etag.
    """
    commit_id = new_id()
    events: list[DomainEvent] = []
    writes: list[Write] = []
    for part in parts:
        origin = origin_of(part.entity, version=part.version, commit_id=commit_id, correlation=correlation)
        for recorded in part.taken.events:
            event = published.get(recorded.id, recorded)
            if event is None:
                continue
            check_id(event.id)
            document = event_document(event, partition_key=partition_key, origin=origin, sequence=len(events))
            events.append(event)
            writes.append(Write(kind=WriteKind.CREATE, id=event.id, document=document))
    if events:
        _check_correlation(correlation)
    proof = next((event for event in events if event.ttl >= PROVES_FOR), None)
    writes.extend(_entity_write(part, None if proof else commit_id) for part in parts)
    _check_identities(writes)
    return PendingCommit(
        commit_id=commit_id,
        partition_key=partition_key,
        writes=tuple(writes),
        events=tuple(events),
        entities=tuple(parts),
        marker=proof.id if proof else _last_that_stays(parts),
        size_bytes=_checked_size(writes, events=len(events)),
    )


def _entity_write(part: PendingEntity, commit_id: str | None) -> Write:
    entity = part.entity
    if part.change is Change.CREATE:
        document = entity_document(entity, version=part.version, commit_id=commit_id)
        return Write(kind=WriteKind.CREATE, id=entity.id, document=document)
    etag = guard_of(entity)
    if etag is None:
        raise UsageError(
            f"It is not known which state of {entity.entity_type} {entity.id!r} this one follows: it has no etag. "
            "Read it and change that object."
        )
    if part.change is Change.DELETE:
        return Write(kind=WriteKind.DELETE, id=entity.id, etag=etag)
    document = entity_document(entity, version=part.version, commit_id=commit_id)
    return Write(kind=WriteKind.REPLACE, id=entity.id, document=document, etag=etag)


def _last_that_stays(parts: Sequence[PendingEntity]) -> str:
    staying = [part for part in parts if part.change is not Change.DELETE]
    return (staying or parts)[-1].entity.id


def _check_identities(writes: Sequence[Write]) -> None:
    # A batch that names a document twice is refused by its own first half, which looks like a repeated commit.
    if len({write.id for write in writes}) == len(writes):
        return
    ids = [write.id for write in writes]
    twice = next(document_id for document_id in ids if ids.count(document_id) > 1)
    raise IdentityConflict(
        f"One commit would write two documents with the id {twice!r}; entities and events of one partition key need "
        "ids of their own, also where their types differ."
    )


def _check_correlation(correlation: Mapping[str, str]) -> None:
    if sum(map(len, correlation.values())) <= _LONGEST_CORRELATION // 8:
        return  # however many bytes a character takes
    sizes = {name: len(value.encode("utf-8", "surrogatepass")) for name, value in correlation.items()}
    for name, size in sizes.items():
        if size > _LONGEST_CORRELATION // 2:
            raise EventTooLarge(
                f"The {name} has {size} bytes; a message carries {_LONGEST_CORRELATION // 2}."
            )
    if sum(sizes.values()) > _LONGEST_CORRELATION:
        raise EventTooLarge(
            f"{', '.join(sizes)} have {sum(sizes.values())} bytes in all; a message carries {_LONGEST_CORRELATION}."
        )


def _checked_size(writes: list[Write], *, events: int) -> int:
    size = _roughly(writes)
    if size > MAX_EVENT_BYTES:
        size = _exactly(writes)
        for write in writes[:events] if size > MAX_EVENT_BYTES else ():
            if (of_event := _exactly([write])) > MAX_EVENT_BYTES:
                raise EventTooLarge(
                    f"Event {write.id!r} takes {of_event} bytes; {MAX_EVENT_BYTES} are the most that can be set aside where "
                    "its topic refuses it. Put the data elsewhere, and a reference into the event."
                )
    if len(writes) > MAX_BATCH_OPERATIONS or size > MAX_BATCH_BYTES:
        raise BatchTooLarge(
            operations=len(writes),
            size_bytes=_exactly(writes),
            max_operations=MAX_BATCH_OPERATIONS,
            max_bytes=MAX_BATCH_BYTES,
        )
    return size


def _roughly(writes: list[Write]) -> int:
    # Writing JSON only to measure it costs as much as all else here. Python's own binary form is written many times
    # faster, and no JSON is more than six times as long: "\u0001" is one byte there, and "false," is one too.
    try:
        written = marshal.dumps([(write.id, write.etag, write.document) for write in writes], 2)
    except ValueError:  # a document holds what is not plain JSON, such as a subclass of str
        return _exactly(writes)
    return 6 * len(written) + len(writes) * _OPERATION_OVERHEAD_BYTES


def _exactly(writes: list[Write]) -> int:
    documents = [write.document for write in writes]
    # The SDK sends compact JSON with non-ASCII characters escaped; pydantic's writer is faster but does not escape.
    written = to_json(documents)
    size = len(written) if written.isascii() else len(json.dumps(documents, separators=(",", ":")))
    return size + sum(len(write.id) + len(write.etag or "") + _OPERATION_OVERHEAD_BYTES for write in writes)
