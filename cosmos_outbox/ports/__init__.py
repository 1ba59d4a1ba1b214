"""
The ports: the protocols for what the library needs from outside, such as stores and topics, with the guarantees of every implementation.

The implementations are in `cosmos_outbox.adapters`: for Azure, and in memory for tests and simulation. Each port has a suite of tests, its
contract, which runs over all its implementations. To test your own publisher or subscription, use the contracts in
`cosmos_outbox_testing.contracts`. Documents cross a port as stored JSON, so that fields of other programs survive.
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
