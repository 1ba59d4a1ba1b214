"""cosmos-outbox: the transactional outbox for Azure Cosmos DB and Azure Service Bus."""

from __future__ import annotations

from cosmos_outbox.correlation import correlated
from cosmos_outbox.domain.entities import Entity, SoftDeletable
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import (
    CommitOutcomeUnknown,
    ConfigurationError,
    Conflict,
    NotFound,
    NotModified,
    OutboxError,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
    UnreadableDocument,
    UnstorableValue,
    UsageError,
)
from cosmos_outbox.partition_key import PartitionKey, key_of_text, key_text
from cosmos_outbox.ports import Store
from cosmos_outbox.retries import Backoff, RetryOptions
from cosmos_outbox.stored_documents import StoredEvent, claimed_payload, stored_event
from cosmos_outbox.write.application_documents import DocumentMapper, Documents
from cosmos_outbox.write.event_sizes import EventSizes
from cosmos_outbox.write.idempotency import Answer, IdempotencyKey, answer_once
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.repository import EntityPage, Repository
from cosmos_outbox.write.unit_of_work import Commit, UnitOfWork

__all__ = [
    "Answer",
    "Backoff",
    "Commit",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "Conflict",
    "DocumentMapper",
    "Documents",
    "DomainEvent",
    "Entity",
    "EntityPage",
    "EventSizes",
    "IdempotencyKey",
    "NotFound",
    "NotModified",
    "Outbox",
    "OutboxError",
    "PartitionKey",
    "PreconditionFailed",
    "Repository",
    "RetryOptions",
    "SoftDeletable",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "StoredEvent",
    "TooManyRequests",
    "UnitOfWork",
    "UnreadableDocument",
    "UnstorableValue",
    "UsageError",
    "answer_once",
    "claimed_payload",
    "correlated",
    "key_of_text",
    "key_text",
    "stored_event",
]
