"""The container of leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from cosmos_outbox.stored_documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Documents, and when they were read by the service's clock. That clock alone decides expiry."""

    documents: tuple[Document, ...]
    read_at: datetime


class LeaseStore(Protocol):
    """
    A container of small documents with compare-and-set: leases, and the marker and the lock that their creation needs.

    Every write returns the document with its new `_etag`.
    """

    async def partitioned_by_id(self) -> bool:
        """
        Return whether the container is partitioned on `/id` (True) or `/partitionKey` (False).

        Raises:
            ConfigurationError: on neither; or the container is missing, or has a TTL that deletes leases.
        """
        ...

    async def list(self, prefix: str) -> Listing:
        """Return all documents whose id starts with the prefix, each with its `_etag` and `_ts`."""
        ...

    async def read(self, document_id: str, partition_key: str) -> Document:
        """Return one document. Raises NotFound where there is none."""
        ...

    async def create(self, document: Mapping[str, Any]) -> Document:
        """
        Create a document. In a container partitioned on `/partitionKey`, a document without that property is stored with its id
        there.

        Raises Conflict where the id is taken; exactly one of several callers succeeds.
        """
        ...

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        """
        Replace a document that still has the etag.

        Raises:
            PreconditionFailed: another program wrote it since; nothing changed.
            NotFound: it was deleted.
        """
        ...

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        """Delete a document. Raises NotFound if there is none, and PreconditionFailed if it has another etag."""
        ...
