"""
CommitBatch: all writes of one commit, assembled once and frozen, so that every attempt sends the same batch. `commit.py` sends it and finds
out whether it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cosmos_outbox.domain.events import DomainEvent, find_lost_part, new_id
from cosmos_outbox.errors import BatchTooLarge, MixedPartitionKeys, UsageError
from cosmos_outbox.partition_key import KeyPaths, PartitionKey, check_id, check_partition_key, identity
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Write, WriteKind
from cosmos_outbox.stored_documents import Document, event_document, event_meta, size_on_wire
from cosmos_outbox.write.change_tracking import Change, Part
from cosmos_outbox.write.event_sizes import MESSAGE_OVERHEAD_BYTES, EventSizes, check_correlation
from cosmos_outbox.write.unstorable_values import UNWRITABLE, no_json, refusal, unwritable

_OPERATION_OVERHEAD_BYTES = 64  # the JSON around a document in a batch, without its id and etag
_KINDS = {Change.CREATE: WriteKind.CREATE, Change.UPDATE: WriteKind.REPLACE, Change.DELETE: WriteKind.DELETE}
Created = Callable[[DomainEvent, Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """
    A new document that says which message or request a commit handles. Its id is made from that message or request, so
    a second commit for the same one cannot create it, and fails.

    elsewhere: advice for the error that is raised if the commit also changes a document under another partition key.
    """

    partition_key: PartitionKey
    document: Document
    elsewhere: str | None = None

    @property
    def id(self) -> str:
        return str(self.document["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBatch:
    """
    The transactional batch of one commit: events first, then the record, then entities.

    The order decides which write is refused first, and so what a refusal proves. If an earlier attempt has already
    written the commit, the id of an event is refused, which proves that the commit was written. A refused etag would
    prove nothing. If another process has already committed the effect of the same message or request, the record (of
    the consumer's inbox or the idempotency key) is refused, even if entities of the batch were changed too.
    """

    commit_id: str
    partition_key: PartitionKey
    writes: tuple[Write, ...]
    events: tuple[DomainEvent, ...]
    parts: tuple[Part, ...]

    @property
    def proof(self) -> DomainEvent | None:
        """
        Return the event with the longest time to live. As long as that event is stored, it proves that the commit was
        written. Return None if the commit has no event.
        """
        return max(self.events, key=lambda event: event.ttl, default=None)


def assemble(
    parts: Sequence[Part],
    *,
    correlation: Mapping[str, str],
    published: Mapping[str, Sequence[DomainEvent]],
    sizes: EventSizes,
    paths: KeyPaths,
    record: CommitRecord | None = None,
    created: Created | None = None,
) -> CommitBatch:
    """
    Return the batch that writes a commit: its events, its record, and its entities and documents.

    Args:
        parts: the entities and documents; at least one if there is no record.
        correlation: the correlation ids and trace headers to store with every event.
        published: by the id of a domain event, the events to write in its place.
        sizes: the rules for large events.
        paths: the paths at which the container's documents have their partition key.
        record: the document that says which message or request the commit handles. Defaults to none.
        created: a function that starts a span for an event, and returns the correlation to store with that event.
            Defaults to storing `correlation`.

    Raises:
        MixedPartitionKeys, BatchTooLarge: one transactional batch cannot hold the commit.
        EventTooLarge: an event could not be parked, or its message could never be sent.
        UnstorableValue: a value of an entity or event would be read back as another value.
        UsageError: two documents have the same id, or the container takes no such partition key or event id.
    """
    commit_id = new_id()
    if record is not None:  # the keys of entities and documents (`parts`) have been checked already
        check_partition_key(record.partition_key, paths, of="the record of an effect")
    key = parts[0].partition_key if record is None else record.partition_key
    for part in parts:
        if part.partition_key is not key and identity(part.partition_key) != identity(key):
            raise _error_of_mixed_keys(part, key, record.elsewhere if record else None)
    recorded = [
        (part, event, part.tracked.progress.deliver_at.get(own.id))
        for part in parts
        for own in part.taken.events
        for event in published.get(own.id, (own,))
    ]
    for _, event, _ in recorded:
        check_id(event.id, of=f"the event {event.action}")
    batch = _Batch(key, paths.fields(key), sizes)
    if recorded:
        batch.add_events(recorded, commit_id, correlation, created)
    if record is not None:
        write = Write(kind=WriteKind.CREATE, id=record.id, document=record.document)
        batch.writes.append(write)
        batch.size += size_on_wire(record.document) + len(write.id) + _OPERATION_OVERHEAD_BYTES
    batch.add_parts(parts)
    writes = (*batch.writes, *batch.payloads)
    events = tuple([event for _, event, _ in recorded])
    ids = [write.id for write in writes]
    # Refuse two writes with the same id. In Cosmos DB the second write would conflict with the first, which
    # would look like a commit that an earlier attempt had written.
    if len(set(ids)) < len(ids):
        raise _duplicate_id(ids, events, key)
    if len(writes) > MAX_BATCH_OPERATIONS or batch.size > MAX_BATCH_BYTES:
        raise _too_large(writes, batch.size, key)
    return CommitBatch(
        commit_id=commit_id,
        partition_key=key,
        writes=writes,
        events=events,
        parts=tuple(parts),
    )


@dataclass
class _Batch:
    """A batch while it is filled, with the number of bytes that the SDK will send for it."""

    key: PartitionKey
    key_fields: Document
    sizes: EventSizes
    writes: list[Write] = field(default_factory=list)
    payloads: list[Write] = field(default_factory=list)
    size: int = 0

    def add_events(
        self,
        recorded: Sequence[tuple[Part, DomainEvent, datetime | None]],
        commit_id: str,
        correlation: Mapping[str, str],
        created: Created | None,
    ) -> None:
        key = self.key
        if correlation:
            check_correlation(correlation)
        for place, (part, event, deliver_at) in enumerate(recorded):
            of = part.tracked
            stored = correlation if created is None else created(event, correlation)
            meta = event_meta(of.kind, of.id, version=part.counted, commit_id=commit_id, correlation=stored)
            try:
                document = event_document(
                    event, key_fields=self.key_fields, meta=meta, sequence=place, deliver_at=deliver_at
                )
            except UNWRITABLE as error:
                raise unwritable(event, event.id, key, error) from error
            if (lost := find_lost_part(event)) is not None:
                raise refusal(event, event.id, key, lost)
            try:
                size = size_on_wire(document, finite=True) + len(event.id) + _OPERATION_OVERHEAD_BYTES
            except ValueError as error:
                raise no_json(event, event.id, key, document, error) from error
            self.size += size
            if size > MESSAGE_OVERHEAD_BYTES:  # a smaller event fits into any message
                document, *payload = self.sizes.fit(document, size_bytes=size, partition_key=key)
                if payload:
                    self.size += size_on_wire(document) + len(event.id) + _OPERATION_OVERHEAD_BYTES
                self.payloads += [Write(kind=WriteKind.CREATE, id=one["id"], document=one) for one in payload]
            self.writes.append(Write(kind=WriteKind.CREATE, id=event.id, document=document))

    def add_parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            of, document = part.tracked, part.document
            etag = None if part.change is Change.CREATE else of.progress.etag
            self.writes.append(Write(kind=_KINDS[part.change], id=of.id, document=document, etag=etag))
            self.size += len(of.id) + len(etag or "") + _OPERATION_OVERHEAD_BYTES
            try:
                self.size += size_on_wire(document, finite=True) if document is not None else 0
            except ValueError as error:
                raise no_json(of.model, of.id, self.key, document or {}, error) from error


def _error_of_mixed_keys(second: Part, key: PartitionKey, advice: str | None) -> MixedPartitionKeys:
    if advice is None and (handler := second.tracked.added_by):
        advice = (
            f"the handler {handler} added the second, and what it adds is part of the commit that it runs in. Let it record an event, "
            "and have a consumer of that event write the other key"
        )
    return MixedPartitionKeys(key, second.partition_key, advice=advice)


def _duplicate_id(ids: Sequence[str], events: Sequence[DomainEvent], key: PartitionKey) -> UsageError:
    twice = next(document_id for document_id in ids if ids.count(document_id) > 1)
    recorded = [event.action for event in events if event.id == twice]
    if len(recorded) > 1:
        return UsageError(
            f"The event {recorded[0]} {twice!r} of partition key {key!r} was recorded {len(recorded)} times: make a "
            "new event each time, which has an id of its own.",
            document_id=twice,
            partition_key=key,
        )
    return UsageError(
        f"One commit would write two documents with the id {twice!r} of partition key {key!r}; all entities and "
        "events of one partition key need different ids, whatever their types: give one of them another id.",
        document_id=twice,
        partition_key=key,
    )


def _too_large(writes: Sequence[Write], size: int, partition_key: PartitionKey) -> BatchTooLarge:
    sizes = {write.id: size_on_wire(write.document) for write in writes if write.document}
    largest = max(sizes, key=sizes.__getitem__, default="")
    alone = sizes.get(largest, 0) + _OPERATION_OVERHEAD_BYTES > MAX_BATCH_BYTES
    advice = "Split it into several commits."
    if alone:
        advice = f"The document {largest!r} alone has {sizes[largest]} bytes: store what is large elsewhere, and a reference in the document."
    return BatchTooLarge(
        f"The commit of partition key {partition_key!r} has {len(writes)} operations and {size} bytes; one transactional batch holds at "
        f"most {MAX_BATCH_OPERATIONS} operations and {MAX_BATCH_BYTES} bytes. {advice}",
        document_id=largest if alone else None,
        partition_key=partition_key,
    )
