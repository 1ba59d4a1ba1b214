"""
The interfaces (ports) to the change feed of a container, and to a handler of its changes. `adapters/cosmos/feed.py`
reads the change feed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from cosmos_outbox.partition_key import ON_PARTITION_KEY, FeedRange, KeyPaths
from cosmos_outbox.stored_documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredContainer:
    """The container whose change feed is read: the names that its leases' ids contain, and its partition key paths."""

    account_host: str
    database_rid: str
    container_rid: str
    key_paths: KeyPaths = ON_PARTITION_KEY


class StartFrom(StrEnum):
    """Where a worker begins to read a range for which no position (continuation) is stored."""

    BEGINNING = "beginning"
    NOW = "now"


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class ChangePage:
    """
    One page of the change feed of one range.

    documents: the changed documents; there may be none. Each has its `_lsn`. Documents of one transactional batch have the same `_lsn`
        and are always in one page, so a page may be longer than was asked for.
    continuation: where the next page begins. It is always valid; save it even if `documents` is empty.
    latest_lsn: the newest LSN of the physical partition when the page was read, if the service returned it.
    skipped: whether the page is empty only because all its changes were filtered out: they belong to other ranges, or are older than
        `start`. More changes may follow, so read on at once.
    range_id: the id of the physical partition, if the service returned it.
    size: the size of the page in bytes of JSON, if known.
    dropped, lag: set by the processor: how many changes it dropped because its handler does not want them, and how many
        transactions of the partition are newer than the page (0 if the page is the last, None if unknown).
    """

    documents: tuple[Document, ...]
    continuation: str
    latest_lsn: int | None
    skipped: bool = False
    range_id: str | None = None
    request_charge: float = 0.0
    size: int | None = None
    dropped: int = 0
    lag: int | None = None


class ChangeFeed(Protocol):
    """The change feed of one container in latest-version mode, read one range at a time."""

    async def describe(self) -> MonitoredContainer:
        """
        Return the container as it is now.

        Raises:
            ConfigurationError: the container is missing, or has a partition key that an outbox cannot use.
        """
        ...

    async def physical_ranges(self) -> tuple[FeedRange, ...]:
        """
        Return the ranges of the physical partitions as they are now, never from a cache. Together they cover each key once.
        """
        ...

    async def partition_id(self, feed_range: FeedRange) -> str:
        """
        Return the id of the physical partition that serves a range. .NET's leases of version 0 have it as `LeaseToken`.

        The id is never taken from a cache, because after a split and a merge the same bounds have another id.

        Raises:
            RangeGone: the range is not served by one physical partition.
            StoreError: the request to this partition was refused or failed.
        """
        ...

    async def read_page(
        self,
        feed_range: FeedRange,
        *,
        container_rid: str,
        continuation: str | None,
        start: StartFrom | datetime,
        max_items: int,
    ) -> ChangePage:
        """
        Return the changes of the range after a continuation, or from `start` if there is none.

        Changes of one partition key come in the order in which they were committed.

        Args:
            feed_range: the range to read.
            container_rid: the resource id of the container, as `describe` returned it when the first continuation was read.
            continuation: the `continuation` of the page before; None to begin at `start`.
            start: where to begin without a continuation. A time is rounded down to its second, because `_ts` has whole seconds.
            max_items: about how many documents the page has at most.

        Raises:
            RangeGone: the range is no longer served by one physical partition.
            ContainerRecreated: the container was deleted and created again under this name; nothing was read.
            StoreError: the service refused or failed; see `retriable`. No change is lost: read the page again.
        """
        ...


@dataclass(slots=True)
class Notes:
    """
    The note that a handler leaves in a lease for the lease's next owner: one text, or None.

    The write that saves a checkpoint also saves the note, and the worker that acquires the lease reads it. So an owner knows what was noted
    about every page before the checkpoint. The note may be newer than the checkpoint, and be about a page that no checkpoint covers yet.
    Keep the note short: a lease is one document of at most 2 MB, which is written several times a second.
    """

    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """
    One page of changes of one lease, as a handler gets it: never empty, and in the order of the feed.

    tenure: the number of the tenure, which is the time for which a worker holds the lease. If the worker acquires the lease again, the
        number is another one. What the handler remembers of the lease may be out of date by then, because another worker may have had it.
    page: the number of the batch within the tenure, from 1. After a `LeaseCheckpointed` with that number or a higher one, no worker gets
        the batch again.
    notes: the text that the handler keeps in the lease; the same object for all batches of a tenure.
    moving: a function. A slow handler calls it whenever a part of the batch is done, so that the lease does not count as stalled.
    processor, container_rid, key_paths: the name of the processor, the container that was read, and where its documents keep
        their partition key.
    """

    lease: str
    documents: tuple[Document, ...]
    tenure: int = 0
    page: int = 0
    processor: str = ""
    container_rid: str = ""
    key_paths: KeyPaths = ON_PARTITION_KEY
    notes: Notes = field(default_factory=Notes)
    moving: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)


class ChangeHandler(Protocol):
    """An async function that handles changes. When it returns, the whole batch is done, and the position after it may be saved."""

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Handle a batch. After an error, a crash or a lost lease, this worker or another one gets the same batch again.

        The call is cancelled when the lease was not renewed in time, because another worker may own it soon. The handler must
        then stop at once.
        """
        ...
