"""
The interface (port) to the container of entities and their events, from which applications read and to which they commit.
`adapters/cosmos/store.py` implements it for Cosmos DB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from cosmos_outbox.partition_key import KeyPaths, PartitionKey
from cosmos_outbox.stored_documents import Document

MAX_BATCH_OPERATIONS = 100
MAX_BATCH_BYTES = 2 * 1024 * 1024
# The most bytes of an event's JSON. That is less than the 2 MB of a request, because the copy of a parked
# event has metadata in addition.
MAX_EVENT_BYTES = 1_900_000


class WriteKind(StrEnum):
    """The kind of one write of a commit."""

    CREATE = "Create"
    REPLACE = "Replace"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write of a commit. With an `etag`, a replace or delete succeeds only if the document still has that `_etag`."""

    kind: WriteKind
    id: str
    document: Mapping[str, Any] | None = None  # None for a delete
    etag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """
    The result of a commit: one etag per write, in order (None for a delete), and its cost in request units.
    """

    etags: tuple[str | None, ...]
    request_charge: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of documents. `continuation` is None on the last page."""

    documents: tuple[Document, ...]
    continuation: str | None


class Store(Protocol):
    """The container that holds entities and their events."""

    @property
    def key_paths(self) -> KeyPaths:
        """Return the container's partition key paths. A partition key has a value for each path, also in calls of this port."""
        ...

    async def read(
        self,
        document_id: str,
        partition_key: PartitionKey,
        *,
        if_none_match: str | None = None,
        newest: bool = False,
    ) -> Document:
        """
        Return a document with its `_etag`, as a replica has it. A caller sees its own writes.

        Args:
            document_id, partition_key: those of the document.
            if_none_match: an etag that the caller knows, or None.
            newest: whether to read from the replica that takes writes, which has the commits of all callers. If so, `if_none_match` has no
                effect. Defaults to False.

        Raises:
            NotFound: there is no such document, or its TTL has passed.
            NotModified: the document still has the etag `if_none_match`.
            StoreError: the service refused, or failed; see `retriable`.
        """
        ...

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        """
        Apply all writes or none of them, in one request, checked in the order given.

        Raises:
            NotFound, Conflict, PreconditionFailed: the write of the document `document_id` could not be applied, so none was.
                `actual` is None if the service does not name the document's etag.
            RequestTooLarge, InvalidRequest, AccessDenied: the service refused the commit; no write was applied.
            TooManyRequests: the service throttles the caller; no write was applied.
            StoreUnavailable: it is unknown whether all writes or none were applied. If `applied` is False, none were.
        """
        ...

    async def list(
        self,
        types: Sequence[str],
        *,
        partition_key: PartitionKey | None,
        page_size: int,
        continuation: str | None,
        include_deleted: bool,
    ) -> Page:
        """
        Return a page of the documents of some types, of one partition key or, if it is None, of all keys. Each document comes once.

        Documents of one key are ordered by id. For documents of all keys, the store chooses the order. Documents whose `data.deleted` is
        true are left out unless `include_deleted`.

        Raises:
            InvalidRequest: `continuation` is not from this store.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...

    async def query(
        self,
        sql: str,
        parameters: Mapping[str, Any],
        *,
        partition_key: PartitionKey | None,
        page_size: int,
        continuation: str | None,
    ) -> Page:
        """
        Return a page of the result of a query in Cosmos DB's SQL, over one partition key or over all (None).

        Args:
            sql: selects whole documents, `SELECT * FROM c …`.
            parameters: the values of the query's parameters by name, with the @.

        Raises:
            InvalidRequest: the service does not understand the query, or `continuation` is from another query.
            UsageError: this store cannot evaluate SQL.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...
