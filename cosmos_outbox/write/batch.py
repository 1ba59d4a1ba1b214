"""
PendingCommit: everything that one commit writes, assembled once and frozen, so that every attempt sends the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cosmos_outbox.documents import Document, copied_size, event_meta
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.identifiers import check_id, check_partition_key
from cosmos_outbox.domain.sources import new_id
from cosmos_outbox.errors import (
    BatchTooLarge,
    EventTooLarge,
    MixedPartitionKeys,
    UsageError,
)
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, PartitionKey, identity
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_EVENT_BYTES, Write, WriteKind
from cosmos_outbox.write.event_size import EventSizes
from cosmos_outbox.write.storable import OPERATION_OVERHEAD_BYTES, size_of, storable, storable_event
from cosmos_outbox.write.tracked import Change, Part

# Of all ids and trace headers. A message carries 64 KB of properties, the relay's own included.
_LONGEST_CORRELATION = 48 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """
    A new document that says what a commit is for, under an id that no two commits for the same thing can both create.
    """

    partition_key: PartitionKey
    document: Document

    @property
    def id(self) -> str:
        return str(self.document["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """
    One transactional batch.

    Events come before entities: a repeated commit then fails on an event's id, which proves that the first was
    written, and never on an etag, which proves nothing. A record comes between: where another process had the same effect, the
    batch fails on the record, whatever else stands against it.
    """

    commit_id: str
    partition_key: PartitionKey
    writes: tuple[Write, ...]
    events: tuple[DomainEvent, ...]
    parts: tuple[Part, ...]
    part_writes: tuple[Write, ...]  # those of `writes`, one for each part

    @property
    def proof(self) -> DomainEvent | None:
        """Return the event that lives longest; while it is stored, it proves that the commit was written."""
        return max(self.events, key=lambda event: event.ttl, default=None)


def assembled(
    parts: Sequence[Part],
    *,
    correlation: Mapping[str, str],
    published: Mapping[str, Sequence[DomainEvent]],
    sizes: EventSizes,
    record: CommitRecord | None = None,
    paths: KeyPaths = ON_PARTITION_KEY,
) -> PendingCommit:
    """
    Return what a commit of these entities writes.

    Args:
        parts: the entities; at least one, where there is no record.
        correlation: what to store with every event.
        published: for the id of a domain event, the events to write in its place.
        sizes: what becomes of large events.
        record: what the commit is for. Defaults to none.
        paths: where the container's documents keep their partition key.

    Raises:
        MixedPartitionKeys, BatchTooLarge: one transactional batch cannot hold it.
        EventTooLarge: an event could not be parked, or its message never be sent.
        UnstorableValue: a value of an entity or event could not be read back.
        UsageError: two documents have one id, the container takes no such partition key or event id, a stored entity has no etag,
            or its document lies under another partition key.
    """
    for first in parts[:1]:
        check_partition_key(first.partition_key, paths, of=str(first.document))
    partition_key = parts[0].partition_key if record is None else record.partition_key
    commit_id = new_id()
    events: list[DomainEvent] = []
    writes: list[Write] = []
    payloads: list[Write] = []
    size = 0
    for part in parts:
        if identity(part.partition_key) != identity(partition_key):
            raise MixedPartitionKeys(partition_key, part.partition_key)
        written = part.document
        meta = event_meta(
            written.kind,
            written.id,
            version=written.counted(part.version),
            commit_id=commit_id,
            correlation=correlation,
        )
        for event in (one for own in part.taken.events for one in published.get(own.id, (own,))):
            check_id(event.id, of=f"the event {event.action}")
            document = storable_event(
                event, partition_key=partition_key, meta=meta, sequence=len(events), paths=paths
            )
            event_size = size_of(_create(document), event, partition_key)
            size += event_size
            stored, *payload = sizes.fitted(document, size_bytes=event_size, partition_key=partition_key)
            write = _create(stored)
            if payload:
                size += size_of(write, event, partition_key)
            elif event_size > MAX_EVENT_BYTES:
                raise EventTooLarge(
                    f"{event.action} {event.id!r} of partition key {partition_key!r} takes {event_size} bytes; an event of more than "
                    f"{MAX_EVENT_BYTES} cannot be parked if the topic refuses it. Store the data elsewhere, and a reference in the "
                    "event.",
                    document_id=event.id,
                    partition_key=partition_key,
                )
            events.append(event)
            writes.append(write)
            payloads += map(_create, payload)
    if events and correlation:
        _check_correlation(correlation)
    part_writes = [_write_of(part, paths) for part in parts]
    for part, write in zip(parts, part_writes, strict=True):
        size += size_of(write, part.document, partition_key)
    if record is not None:
        writes.append(_create(record.document))
        size += copied_size(record.document) + len(record.id) + OPERATION_OVERHEAD_BYTES
    writes += [*part_writes, *payloads]
    _check_identities(writes, events, partition_key)
    _check_batch_size(writes, size, partition_key)
    return PendingCommit(
        commit_id=commit_id,
        partition_key=partition_key,
        writes=tuple(writes),
        events=tuple(events),
        parts=tuple(parts),
        part_writes=tuple(part_writes),
    )


def _create(document: Document) -> Write:
    return Write(kind=WriteKind.CREATE, id=document["id"], document=document)


def _write_of(part: Part, paths: KeyPaths) -> Write:
    document, etag = part.document, part.document.progress.etag
    if part.change is Change.CREATE:
        return Write(kind=WriteKind.CREATE, id=document.id, document=storable(part, paths))
    if etag is None:
        raise UsageError(
            f"{document} has no etag, so it is not known which stored state it follows. Read it and change that object.",
            document_id=document.id,
            partition_key=part.partition_key,
        )
    stored = paths.key_of(document.progress.stored or {})
    if stored is not None and identity(stored) != identity(part.partition_key):
        raise UsageError(
            f"{document} is stored under the partition key {stored!r} ({paths}), but its class makes {part.partition_key!r} of it. "
            f"Correct the property `partition_key` of {type(document.model).__name__}."
        )
    if part.change is Change.DELETE:
        return Write(kind=WriteKind.DELETE, id=document.id, etag=etag)
    return Write(kind=WriteKind.REPLACE, id=document.id, document=storable(part, paths), etag=etag)


def _check_identities(
    writes: Sequence[Write], events: Sequence[DomainEvent], partition_key: PartitionKey
) -> None:
    # In a batch that names a document twice, the second write fails on the first, which looks like a repeated commit.
    ids = [write.id for write in writes]
    if len(set(ids)) < len(ids):
        twice = next(document_id for document_id in ids if ids.count(document_id) > 1)
        recorded = [event.action for event in events if event.id == twice]
        if len(recorded) > 1:
            raise UsageError(
                f"The event {recorded[0]} {twice!r} of partition key {partition_key!r} was recorded {len(recorded)} times: make a "
                "new event each time, which has an id of its own.",
                document_id=twice,
                partition_key=partition_key,
            )
        raise UsageError(
            f"One commit would write two documents with the id {twice!r} of partition key {partition_key!r}; all entities and "
            "events of one partition key need different ids, whatever their types: give one of them another id.",
            document_id=twice,
            partition_key=partition_key,
        )


def _check_correlation(correlation: Mapping[str, str]) -> None:
    sizes = {name: len(value.encode("utf-8", "surrogatepass")) for name, value in correlation.items()}
    for name, size in sizes.items():
        if size > _LONGEST_CORRELATION // 2:
            raise EventTooLarge(
                f"The {name} has {size} bytes; a message carries {_LONGEST_CORRELATION // 2}. Pass on a shorter one."
            )
    if sum(sizes.values()) > _LONGEST_CORRELATION:
        raise EventTooLarge(
            f"{', '.join(sizes)} have {sum(sizes.values())} bytes in all; a message carries {_LONGEST_CORRELATION}. "
            "Pass on shorter ones."
        )


def _check_batch_size(writes: Sequence[Write], size: int, partition_key: PartitionKey) -> None:
    if len(writes) > MAX_BATCH_OPERATIONS or size > MAX_BATCH_BYTES:
        sizes = {write.id: copied_size(write.document) for write in writes if write.document}
        largest = max(sizes, key=sizes.__getitem__, default="")
        alone = sizes.get(largest, 0) + OPERATION_OVERHEAD_BYTES > MAX_BATCH_BYTES
        raise BatchTooLarge(
            document_id=largest if alone else None,
            document_bytes=sizes.get(largest, 0),
            operations=len(writes),
            size_bytes=size,
            max_operations=MAX_BATCH_OPERATIONS,
            max_bytes=MAX_BATCH_BYTES,
            partition_key=partition_key,
        )
