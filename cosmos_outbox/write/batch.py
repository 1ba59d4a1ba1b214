"""
PendingCommit: everything that one commit writes, assembled once and frozen, so that every attempt sends the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cosmos_outbox.documents import (
    Document,
    copied_size,
    event_document,
    event_meta,
    event_with_claim,
    payload_document,
)
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.identifiers import check_id, check_partition_key
from cosmos_outbox.domain.sources import new_id
from cosmos_outbox.errors import BatchTooLarge, EventTooLarge, MixedPartitionKeys, UsageError
from cosmos_outbox.messages import content_bytes
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, PartitionKey, identity
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_EVENT_BYTES, Write, WriteKind
from cosmos_outbox.write.storable import OPERATION_OVERHEAD_BYTES, UNWRITABLE, size_of, storable, unwritable
from cosmos_outbox.write.tracked import Change, Part

MAX_STANDARD_MESSAGE_BYTES = 256 * 1024  # Service Bus, Standard tier: with all properties
_MESSAGE_OVERHEAD_BYTES = 2 * 1024  # ids, annotations, AMQP's frames, and what CloudEvents adds
# Of all ids and trace headers. A message carries properties of 32 KB each and 64 KB in all, the relay's own included.
_LONGEST_CORRELATION = 24 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSizes:
    """
    What becomes of large events: a payload may be stored as a document of its own, in the same batch, and the message carries its
    address (claim check).

    max_message_bytes   the largest message that the topics take; default: 256 KB, as Service Bus Standard does.
    claim_check         True: a payload that would be larger is stored beside the event. False: the commit is refused.
    """

    max_message_bytes: int = MAX_STANDARD_MESSAGE_BYTES
    claim_check: bool = False

    def __post_init__(self) -> None:
        if self.max_message_bytes < 2 * _MESSAGE_OVERHEAD_BYTES:
            raise UsageError(
                f"max_message_bytes is {self.max_message_bytes}; a message needs {2 * _MESSAGE_OVERHEAD_BYTES} at least."
            )

    def fitted(self, document: Document, *, size_bytes: int, partition_key: Any) -> list[Document]:
        """
        Return what to store of an event: its document and, if its payload goes into one of its own, that one.

        Args:
            document: of the event.
            size_bytes: of its JSON, which is never less than that of its message without the overhead.
            partition_key: of the event.

        Raises:
            EventTooLarge: its message would be too large, and there is no claim check.
        """
        limit = self.max_message_bytes - _MESSAGE_OVERHEAD_BYTES
        if size_bytes <= limit or (size := content_bytes(document["data"], document["meta"])) <= limit:
            return [document]
        if not self.claim_check:
            raise EventTooLarge(
                f"The message of {document['data']['action']} {document['id']!r} of partition key {partition_key!r} would "
                f"have {size + _MESSAGE_OVERHEAD_BYTES} bytes; this outbox sends {self.max_message_bytes}, and Service Bus Standard "
                f"takes {MAX_STANDARD_MESSAGE_BYTES}. Have the payload stored beside the event (claim_check=True), put a "
                "reference into the event or, on Premium, raise max_message_bytes.",
                document_id=document["id"],
                partition_key=partition_key,
            )
        return [event_with_claim(document, partition_key=partition_key), payload_document(document)]


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
    batch, commit_id = _Batch(partition_key, paths, sizes), new_id()
    for part in parts:
        if identity(part.partition_key) != identity(partition_key):
            handler = part.document.added_by
            advice = handler and (
                f"the handler {handler} added the second, and what it adds is part of the commit that it runs in. Let it record an event, "
                "and have a consumer of that event write the other key"
            )
            raise MixedPartitionKeys(partition_key, part.partition_key, advice=advice)
        written = part.document
        if not part.taken.events:
            continue
        version = written.counted(part.version)
        meta = event_meta(
            written.kind, written.id, version=version, commit_id=commit_id, correlation=correlation
        )
        for own in part.taken.events:
            for event in published.get(own.id, (own,)):
                batch.add_event(event, meta)
    if batch.events and correlation:
        _check_correlation(correlation)
    part_writes = tuple([batch.part_write(part) for part in parts])
    if record is not None:
        batch.writes.append(_create(record.document))
        batch.size += copied_size(record.document) + len(record.id) + OPERATION_OVERHEAD_BYTES
    writes = (*batch.writes, *part_writes, *batch.payloads)
    _check_identities(writes, batch.events, partition_key)
    _check_batch_size(writes, batch.size, partition_key)
    return PendingCommit(
        commit_id=commit_id,
        partition_key=partition_key,
        writes=writes,
        events=tuple(batch.events),
        parts=tuple(parts),
        part_writes=part_writes,
    )


class _Batch:
    """A batch that grows, and the bytes of it that the SDK sends."""

    def __init__(self, partition_key: PartitionKey, paths: KeyPaths, sizes: EventSizes) -> None:
        self._key, self._paths, self._sizes = partition_key, paths, sizes
        self.events: list[DomainEvent] = []
        self.writes: list[Write] = []
        self.payloads: list[Write] = []
        self.size = 0

    def add_event(self, event: DomainEvent, meta: Document) -> None:
        check_id(event.id, of=f"the event {event.action}")
        place, key = len(self.events), self._key
        try:
            document = event_document(event, partition_key=key, meta=meta, sequence=place, paths=self._paths)
        except UNWRITABLE as error:
            raise unwritable(event, key, error) from error
        size = size_of(_create(document), event, key)
        stored, *payload = map(_create, self._sizes.fitted(document, size_bytes=size, partition_key=key))
        if payload:
            self.size += size_of(stored, event, key)
        elif size > MAX_EVENT_BYTES:
            raise EventTooLarge(
                f"{event.action} {event.id!r} of partition key {key!r} takes {size} bytes; an event of more than {MAX_EVENT_BYTES} "
                "cannot be parked if the topic refuses it. Store the data elsewhere, and a reference in the event.",
                document_id=event.id,
                partition_key=key,
            )
        self.size += size
        self.events.append(event)
        self.writes.append(stored)
        self.payloads += payload

    def part_write(self, part: Part) -> Write:
        document, etag = part.document, part.document.progress.etag
        if part.change is Change.CREATE:
            return self._measured(_create(storable(part, self._paths)), part)
        if etag is None:
            raise UsageError(
                f"{document} has no etag, so it is not known which stored state it follows. Read it and change that object.",
                document_id=document.id,
                partition_key=part.partition_key,
            )
        stored = self._paths.key_of(document.progress.stored or {})
        if stored is not None and identity(stored) != identity(part.partition_key):
            raise UsageError(
                f"{document} is stored under the partition key {stored!r} ({self._paths}), but its class makes "
                f"{part.partition_key!r} of it. Correct the property `partition_key` of {type(document.model).__name__}."
            )
        if part.change is Change.DELETE:
            return self._measured(Write(kind=WriteKind.DELETE, id=document.id, etag=etag), part)
        kept = storable(part, self._paths)
        return self._measured(Write(kind=WriteKind.REPLACE, id=document.id, document=kept, etag=etag), part)

    def _measured(self, write: Write, part: Part) -> Write:
        self.size += size_of(write, part.document, self._key)
        return write


def _create(document: Document) -> Write:
    return Write(kind=WriteKind.CREATE, id=document["id"], document=document)


def _check_identities(writes: Sequence[Write], events: Sequence[DomainEvent], key: PartitionKey) -> None:
    # In a batch that names a document twice, the second write fails on the first, which looks like a repeated commit.
    ids = [write.id for write in writes]
    if len(set(ids)) < len(ids):
        twice = next(document_id for document_id in ids if ids.count(document_id) > 1)
        recorded = [event.action for event in events if event.id == twice]
        if len(recorded) > 1:
            raise UsageError(
                f"The event {recorded[0]} {twice!r} of partition key {key!r} was recorded {len(recorded)} times: make a "
                "new event each time, which has an id of its own.",
                document_id=twice,
                partition_key=key,
            )
        raise UsageError(
            f"One commit would write two documents with the id {twice!r} of partition key {key!r}; all entities and "
            "events of one partition key need different ids, whatever their types: give one of them another id.",
            document_id=twice,
            partition_key=key,
        )


def _check_correlation(correlation: Mapping[str, str]) -> None:
    sizes = {name: len(value.encode()) for name, value in correlation.items()}
    if sum(sizes.values()) > _LONGEST_CORRELATION:
        raise EventTooLarge(
            f"{' and '.join(sizes)} have {sum(sizes.values())} bytes in all; a message carries {_LONGEST_CORRELATION}. Pass on shorter "
            "ones."
        )


def _check_batch_size(writes: Sequence[Write], size: int, partition_key: PartitionKey) -> None:
    if len(writes) <= MAX_BATCH_OPERATIONS and size <= MAX_BATCH_BYTES:
        return
    sizes = {write.id: copied_size(write.document) for write in writes if write.document}
    largest = max(sizes, key=sizes.__getitem__, default="")
    alone = sizes.get(largest, 0) + OPERATION_OVERHEAD_BYTES > MAX_BATCH_BYTES
    advice = "Split it into several commits."
    if alone:
        advice = f"The document {largest!r} alone has {sizes[largest]} bytes: store what is large elsewhere, and a reference in the document."
    raise BatchTooLarge(
        f"The commit of partition key {partition_key!r} has {len(writes)} operations and {size} bytes; one transactional batch holds at "
        f"most {MAX_BATCH_OPERATIONS} operations and {MAX_BATCH_BYTES} bytes. {advice}",
        document_id=largest if alone else None,
        partition_key=partition_key,
    )
