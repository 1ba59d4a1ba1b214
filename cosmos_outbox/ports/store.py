"""The container of entities and their events, as the write side sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from cosmos_outbox.partition_key import KeyPaths, PartitionKey
from cosmos_outbox.stored_documents import Document

MAX_BATCH_OPERATIONS = 100
MAX_BATCH_BYTES = 2 * 1024 * 1024
# The limit for the JSON of an event: a parked copy, with its metadata, must fit into one request as well.
MAX_EVENT_BYTES = 1_900_000


class WriteKind(StrEnum):
    """The kind of one write of a commit."""

    CREATE = "Create"
    REPLACE = "Replace"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write of a commit; `etag` makes a replace or delete conditional on the document's `_etag`."""

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
    """One page of documents; `continuation` is None after the last."""

    documents: tuple[Document, ...]
    continuation: str | None


class Store(Protocol):
    """The container that holds entities and their events."""

    @property
    def key_paths(self) -> KeyPaths:
        """Return the container's partition key paths. Callers always pass full partition keys."""
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
            document_id, partition_key: where it is.
            if_none_match: an etag, or None.
            newest: read it where writes go, so that nothing is missing that any caller has committed; `if_none_match` has no effect
                then. Defaults to False.

        Raises:
            NotFound: there is none, or its TTL has passed.
            NotModified: it still has the etag `if_none_match`.
            StoreError: the service refused, or failed; see `retriable`.
        """
        ...

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        """
        Apply all writes or none of them, in one request, checked in the order given.

        Raises:
            NotFound, Conflict, PreconditionFailed: one write, named by `document_id`, could not be applied; none was.
                `actual` is None if the service does not name the document's etag.
            RequestTooLarge, InvalidRequest, AccessDenied: the service refused; none was applied.
            TooManyRequests: throttled; none was applied.
            StoreUnavailable: the outcome is unknown (all or none were applied), unless `applied` is False.
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
        Return a page of the documents of some types, each document once. For one partition key they come by id; None means all keys.

        Documents whose `data.deleted` is true are left out unless `include_deleted`. The order over all keys is the store's own.

        Raises:
            InvalidRequest: this store did not give out `continuation`.
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
            parameters: by name, with the @.

        Raises:
            InvalidRequest: the service does not understand the query, or `continuation` is not of it.
            UsageError: this store evaluates no SQL.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...
