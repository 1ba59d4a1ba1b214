"""
cosmos-outbox: the transactional outbox for Azure Cosmos DB and Azure Service Bus.
"""

from __future__ import annotations

from cosmos_outbox.correlation import correlated
from cosmos_outbox.documents import StoredEvent, claimed_payload, stored_event
from cosmos_outbox.domain.entities import Entity, SoftDeletable
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.own_documents import DocumentMapper
from cosmos_outbox.errors import (
    AccessDenied,
    BatchTooLarge,
    BrokerUnavailable,
    CommitOutcomeUnknown,
    ConfigurationError,
    Conflict,
    ContainerRecreated,
    EventHandlerCycle,
    EventTooLarge,
    IdentityConflict,
    InvalidRequest,
    KeyNotParked,
    LeaseLost,
    MessageRejected,
    MixedPartitionKeys,
    NotFound,
    NotModified,
    OutboxError,
    ParkingError,
    ParkingFull,
    PreconditionFailed,
    PublishError,
    RangeGone,
    ReleaseTakenOver,
    RequestTooLarge,
    SharedUnitOfWork,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
    TopicRefusesAll,
    TopicUnavailable,
    UnreadableDocument,
    UnstorableValue,
    UsageError,
)
from cosmos_outbox.partition_key import PartitionKey, key_text
from cosmos_outbox.ports import Store
from cosmos_outbox.retries import Backoff, RetryOptions
from cosmos_outbox.write.event_size import EventSizes
from cosmos_outbox.write.own_documents import Documents
from cosmos_outbox.write.repository import EntityPage, Repository
from cosmos_outbox.write.unit_of_work import Commit, Outbox, UnitOfWork

__all__ = [
    "AccessDenied",
    "Backoff",
    "BatchTooLarge",
    "BrokerUnavailable",
    "Commit",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "Conflict",
    "ContainerRecreated",
    "DocumentMapper",
    "Documents",
    "DomainEvent",
    "Entity",
    "EntityPage",
    "EventHandlerCycle",
    "EventSizes",
    "EventTooLarge",
    "IdentityConflict",
    "InvalidRequest",
    "KeyNotParked",
    "LeaseLost",
    "MessageRejected",
    "MixedPartitionKeys",
    "NotFound",
    "NotModified",
    "Outbox",
    "OutboxError",
    "ParkingError",
    "ParkingFull",
    "PartitionKey",
    "PreconditionFailed",
    "PublishError",
    "RangeGone",
    "ReleaseTakenOver",
    "Repository",
    "RequestTooLarge",
    "RetryOptions",
    "SharedUnitOfWork",
    "SoftDeletable",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "StoredEvent",
    "TooManyRequests",
    "TopicRefusesAll",
    "TopicUnavailable",
    "UnitOfWork",
    "UnreadableDocument",
    "UnstorableValue",
    "UsageError",
    "claimed_payload",
    "correlated",
    "key_text",
    "stored_event",
]
