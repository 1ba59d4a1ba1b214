"""The change feed of a container, and what handles its changes."""

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
    """The names of a container in lease ids, and the paths of its partition key."""

    account_host: str
    database_rid: str
    container_rid: str
    key_paths: KeyPaths = ON_PARTITION_KEY


class StartFrom(StrEnum):
    """Where to begin with a range that has no continuation."""

    BEGINNING = "beginning"
    NOW = "now"


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class ChangePage:
    """
    One page of the change feed of one range.

    documents: may be empty. Each has its `_lsn`; documents of one transactional batch share it and are never cut over two
        pages, so a page may be longer than was asked for.
    continuation: always valid; save it even if `documents` is empty.
    latest_lsn: the newest LSN of the physical partition when the page was read, if the service returned it.
    skipped: the page is empty only because all its changes were filtered out (other ranges, or before `start`); read on at
        once, more may follow.
    range_id: the id of the physical partition, if the service returned it.
    size: bytes of JSON, if known.
    dropped, last_lsn: set by the processor: how many changes it dropped because its handler does not want them, and the LSN
        of the last change that was read, dropped or not.
    """

    documents: tuple[Document, ...]
    continuation: str
    latest_lsn: int | None
    skipped: bool = False
    range_id: str | None = None
    request_charge: float = 0.0
    size: int | None = None
    dropped: int = 0
    last_lsn: int | None = None


class ChangeFeed(Protocol):
    """The change feed of one container, latest version of each document, one range at a time."""

    async def describe(self) -> MonitoredContainer:
        """
        Return the container as it is now.

        Raises:
            ConfigurationError: it is missing, or partitioned so that no outbox can be in it.
        """
        ...

    async def physical_ranges(self) -> tuple[FeedRange, ...]:
        """
        Return the ranges of the physical partitions as they are now, never from a cache; together they cover every key once.
        """
        ...

    async def partition_id(self, feed_range: FeedRange) -> str:
        """
        Return the id of the physical partition that serves a range: the `LeaseToken` of a version 0 lease.

        Never cached: after a split and a merge the same bounds have another id.

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
        Return the changes of the range after a continuation, or from `start` where there is none.

        Changes of one partition key come in the order they were committed.

        Args:
            container_rid: of the container to read, as `describe` returned it when the continuation was first read.
            start: a time stands for its whole second: all changes whose `_ts` is not before it.

        Raises:
            RangeGone: the range is no longer served by one physical partition.
            ContainerRecreated: the container under this name is another one now; nothing was read.
            StoreError: the service refused or failed; see `retriable`. Nothing is lost: read again.
        """
        ...


@dataclass(slots=True)
class Notes:
    """
    The note that a handler leaves in a lease for the lease's next owner: one text, or None.

    The write that saves the checkpoint saves it, and the write that acquires the lease reads it, so an owner knows
    the notes of every page before its start. They may be newer than the checkpoint: the next owner may also find notes about
    a page that is not saved yet. Keep them short: a lease is one document of at most 2 MB, written several times a second.
    """

    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """
    One page of changes of one lease, as a handler gets it: never empty, in feed order.

    tenure: differs between two ownerships of the lease by one worker: what a handler learned in an earlier one may be out
        of date, because another worker may have had the lease in between.
    page: counts the batches of a tenure from 1; after a `LeaseCheckpointed` with that number or a higher one, no worker gets
        the batch again.
    notes: the same object for all batches of a tenure.
    moving: a handler of a batch that takes long calls it when a part is done, so that the lease does not count as stalled.
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
    """The handler of the changes. When it returns, all of the batch is done and may be checkpointed."""

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Handle a batch. After an error, a crash or a lost lease, the same batch comes again, here or in another worker.

        The call is cancelled when the lease can no longer be trusted: stop at once.
        """
        ...
