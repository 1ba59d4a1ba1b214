"""The container of leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from cosmos_outbox.stored_documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Documents, and when they were read on the service's own clock: the one clock that decides expiry."""

    documents: tuple[Document, ...]
    read_at: datetime


class LeaseStore(Protocol):
    """
    A container of small documents with compare-and-set: leases, and the marker and the lock of their creation.

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
        Create a document; in a container partitioned on `/partitionKey`, one without it is stored with its id there.

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
        """Delete a document. Raises NotFound or, where it does not have the etag, PreconditionFailed."""
        ...
