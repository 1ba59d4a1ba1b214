"""
The ports: what the library needs from outside, with the guarantees that every implementation keeps.

Implementations live in `cosmos_outbox.adapters` (Azure, and `memory` for tests and simulation); one contract suite per port runs over
all of them: those of publishers and subscriptions, in `cosmos_outbox_testing.contracts`, over yours too. Documents cross a port as stored JSON, so that fields of other programs survive.
"""

from cosmos_outbox.ports.change_feed import (
    ChangeBatch,
    ChangeFeed,
    ChangeHandler,
    ChangePage,
    MonitoredContainer,
    Notes,
    StartFrom,
)
from cosmos_outbox.ports.lease_store import LeaseStore, Listing
from cosmos_outbox.ports.parked_store import ParkedStore
from cosmos_outbox.ports.publisher import Publisher
from cosmos_outbox.ports.store import (
    MAX_BATCH_BYTES,
    MAX_BATCH_OPERATIONS,
    MAX_EVENT_BYTES,
    CommitResult,
    Page,
    Store,
    Write,
    WriteKind,
)
from cosmos_outbox.ports.subscription import (
    Complete,
    DeadLetter,
    Defer,
    Retry,
    Session,
    Settlement,
    Subscription,
)
from cosmos_outbox.stored_documents import Document

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_OPERATIONS",
    "MAX_EVENT_BYTES",
    "ChangeBatch",
    "ChangeFeed",
    "ChangeHandler",
    "ChangePage",
    "CommitResult",
    "Complete",
    "DeadLetter",
    "Defer",
    "Document",
    "LeaseStore",
    "Listing",
    "MonitoredContainer",
    "Notes",
    "Page",
    "ParkedStore",
    "Publisher",
    "Retry",
    "Session",
    "Settlement",
    "StartFrom",
    "Store",
    "Subscription",
    "Write",
    "WriteKind",
]
