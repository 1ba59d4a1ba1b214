"""
The seams: what the library needs from the world, with the guarantees every implementation keeps.

Implementations live in `cosmos_outbox.adapters` (Azure, and `memory` for tests and simulation); one contract suite
in `tests/contracts` runs over all of them. Documents cross a seam as the JSON that is stored, so that fields written
by other programs survive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from cosmos_outbox.leases import FeedRange
from cosmos_outbox.messages import OutboundMessage

Document = dict[str, Any]
MAX_BATCH_OPERATIONS = 100
MAX_BATCH_BYTES = 2 * 1024 * 1024


class WriteKind(StrEnum):
    """
    What one write of a commit does.
    """

    CREATE = "Create"
    REPLACE = "Replace"
    UPSERT = "Upsert"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """
    One write of a commit; `etag` makes a replace, upsert or delete conditional on what `_etag` said, nothing else.
    """

    kind: WriteKind
    id: str
    document: Mapping[str, Any] | None = None  # None for a delete
    etag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """
    What a commit wrote: one etag a write, in order (None for a delete), and what it cost.
    """

    etags: tuple[str | None, ...]
    request_charge: float
    session_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """
    One page of documents; `continuation` is None after the last.
    """

    documents: tuple[Document, ...]
    continuation: str | None


class Store(Protocol):
    """
    The container that holds entities and their events.
    """

    async def read(
        self, document_id: str, partition_key: str, *, if_none_match: str | None = None
    ) -> Document:
        """
        Return the newest version of a document, with its `_etag`; a reader sees its own writes.

        Raises:
            NotFound: there is none, or its TTL has passed.
            NotModified: it still has the etag `if_none_match`.
            StoreError: the service refused, or failed; see `retriable`.
        """
        ...

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        """
        Apply all writes or none of them, in one request, checked in the order given.

        Raises:
            NotFound, Conflict, PreconditionFailed: one write, named by `document_id`, could not be applied; none was.
                What the document's etag is (`actual`) is None where the service does not say.
            RequestTooLarge, InvalidRequest, AccessDenied: the service refused; none was applied.
            TooManyRequests: throttled; none was applied.
            StoreUnavailable: the outcome is unknown (all or none were applied), unless `applied` is False.
        """
        ...

    async def query_type(
        self, document_type: str, *, page_size: int, continuation: str | None, include_deleted: bool
    ) -> Page:
        """
        Return a page of the documents of one type over all partition keys, ordered by id, each document once.

        Documents whose `data.deleted` is true are left out unless `include_deleted`.

        Raises:
            InvalidRequest: `continuation` is none that this store gave out.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredContainer:
    """
    What names a container in lease ids.
    """

    account_host: str
    database_rid: str
    container_rid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalRange:
    """
    A physical partition: its id (`LeaseToken` of a version 0 lease) and the range of keys it holds.
    """

    id: str
    range: FeedRange


class StartFrom(StrEnum):
    """
    Where a range without continuation begins.
    """

    BEGINNING = "beginning"
    NOW = "now"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePage:
    """
    One page of the change feed of one range.

    `documents` is empty when there was nothing new, or only changes of other ranges for a long way; `continuation` is
    valid and newer all the same. Every document has its `_lsn`; documents of one transactional batch share it and are
    never cut over two pages, so a page may be longer than was asked for. `latest_lsn` is the newest LSN of the physical
    partition when the page was read, and `range_id` the id of that partition, where the service told.
    """

    documents: tuple[Document, ...]
    continuation: str
    latest_lsn: int | None
    range_id: str | None = None
    request_charge: float = 0.0


class ChangeFeed(Protocol):
    """
    The change feed of one container, latest version of each document, one range at a time.
    """

    async def describe(self) -> MonitoredContainer:
        """
        Return what names the container in lease ids, as it is now.
        """
        ...

    async def physical_ranges(self) -> tuple[PhysicalRange, ...]:
        """
        Return the ranges as they are now, never from a cache; together they cover every key once.
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
            container_rid: of the container to read, as `describe` told it when the continuation's story began.
            start: a time stands for its whole second: all changes whose `_ts` is not before it.

        Raises:
            RangeGone: the range is no longer served by one physical partition.
            ContainerReplaced: the container under this name is another one now; nothing was read.
            StoreError: the service refused or failed; see `retriable`. Nothing is lost: read again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """
    One page of changes of one lease, as a handler gets it: never empty, in feed order.

    `tenure` differs between two ownerships of the lease by one worker: what a handler learned in an earlier one may
    be out of date, because another worker had the lease in between. `page` counts the batches of a tenure from 1; a
    `LeaseCheckpointed` with that number or a higher one tells that the batch will not come again, to anyone.
    """

    lease: str
    documents: tuple[Document, ...]
    tenure: int = 0
    page: int = 0


class ChangeHandler(Protocol):
    """
    What is done with the changes; returning means that all of the batch is done and may be checkpointed.
    """

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Handle a batch. The same batch comes again after an error, a crash or a lost lease, here or elsewhere.

        The call is cancelled when the lease can no longer be trusted: stop at once.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """
    Documents, and when they were read on the service's own clock: the one clock that decides expiry.
    """

    documents: tuple[Document, ...]
    read_at: datetime


class LeaseStore(Protocol):
    """
    A container of small documents with compare-and-set: leases, the marker and the lock of their creation.

    Every write returns the document with its new `_etag`.
    """

    async def partitioned_by_id(self) -> bool:
        """
        Say whether the container is partitioned on `/id` (True) or `/partitionKey` (False).

        Raises:
            ConfigurationError: on neither, or the container is missing.
        """
        ...

    async def list(self, prefix: str) -> Listing:
        """
        Return all documents whose id starts with the prefix, each with its `_etag` and `_ts`.
        """
        ...

    async def read(self, document_id: str, partition_key: str) -> Document:
        """
        Return one document. Raises NotFound where there is none.
        """
        ...

    async def create(self, document: Mapping[str, Any]) -> Document:
        """
        Create a document. Raises Conflict where the id is taken; exactly one of several callers succeeds.
        """
        ...

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        """
        Replace a document that still has the etag.

        Raises:
            PreconditionFailed: somebody else wrote since; nothing changed.
            NotFound: it is gone.
        """
        ...

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        """
        Delete a document. Raises NotFound or, where it does not have the etag, PreconditionFailed.
        """
        ...


class ParkedStore(Protocol):
    """
    The container of parked partition keys: few documents, written with compare-and-set, kept until deleted.

    A read may be behind the writes of other programs, as it is with session consistency; a write never is.
    """

    async def read(self, document_id: str, partition_key: str) -> Document:
        """
        Return a document with its `_etag`; a reader sees its own writes, and what refused them.

        Raises:
            NotFound: there was none when the reader's copy was made.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...

    async def list(self, partition_key: str) -> tuple[Document, ...]:
        """
        Return all documents of a partition key, in no order, each with its `_etag`.
        """
        ...

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        """
        Apply all writes or none of them; errors and guarantees are those of `Store.commit`.
        """
        ...


class Publisher(Protocol):
    """
    A topic, reached over a fixed number of lanes; each lane is one ordered stream.

    Calls on one lane are carried out one after another, calls on different lanes side by side.
    """

    @property
    def lanes(self) -> int:
        """
        Return the number of lanes; lane numbers run from 0.
        """
        ...

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        """
        Send messages in order and return when the broker has accepted every one of them.

        A message is only sent after all earlier ones of the call were accepted or travel in the same atomic batch.
        After an error the first `error.accepted` messages are in the topic and the fate of the others is open: send
        those again, equal and in the same order, before any later message of their sessions. A message may be sent
        more than once by one call. A cancelled call sends nothing after it returned.

        Raises:
            MessageRejected: the broker will never accept one of the messages behind the accepted ones; alone in a
                call, it is the one.
            BrokerUnavailable, TopicUnavailable: try again, for as long as it takes.
        """
        ...
