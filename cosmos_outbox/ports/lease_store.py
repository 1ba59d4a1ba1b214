"""The interface (port) to the container of leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from cosmos_outbox.stored_documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Lease documents, and when they were read by the service's clock. Only that clock decides whether a lease has expired."""

    documents: tuple[Document, ...]
    read_at: datetime


class LeaseStore(Protocol):
    """
    A container of leases. It also has two small documents for their creation: a lock, and a marker that all leases exist.

    A document is replaced or deleted only if it still has the etag that the caller read. Every write returns the document with its new
    `_etag`.
    """

    async def partitioned_by_id(self) -> bool:
        """
        Return whether the container is partitioned on `/id` (True) or `/partitionKey` (False).

        Raises:
            ConfigurationError: the container has another partition key, is missing, or has a TTL that deletes leases.
        """
        ...

    async def list(self, prefix: str) -> Listing:
        """Return all documents whose id starts with the prefix, each with its `_etag` and `_ts`."""
        ...

    async def read(self, document_id: str, partition_key: str) -> Document:
        """Return one document. Raises NotFound if there is none."""
        ...

    async def create(self, document: Mapping[str, Any]) -> Document:
        """
        Create a document. In a container partitioned on `/partitionKey`, a document without that property gets its id as partition key.

        Raises Conflict if there is a document with this id; exactly one of several callers succeeds.
        """
        ...

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        """
        Replace a document that still has the etag.

        Raises:
            PreconditionFailed: another program has written the document since; nothing changed.
            NotFound: the document was deleted.
        """
        ...

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        """Delete a document. Raises NotFound if there is none, and PreconditionFailed if it has another etag."""
        ...
