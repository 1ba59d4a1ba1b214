"""The container of parked partition keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from cosmos_outbox.ports.store import CommitResult, Write
from cosmos_outbox.stored_documents import Document


class ParkedStore(Protocol):
    """
    The container of parked partition keys: written with compare-and-set, kept until deleted, read a page at a time.

    A read may be behind the writes of other programs, as it is with session consistency; a write never is. The documents
    have an `id` and a `partitionKey`, events in a queue also an `epoch` and a `position`, and keys the `type` "parkedKey".
    """

    async def read(self, document_id: str, partition_key: str) -> Document:
        """
        Return a document with its `_etag`; a reader sees its own writes, and what refused them.

        Raises:
            NotFound: there was none when the reader's copy was made.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        """
        Return the documents of a partition key whose ids come after one, by id; none where there are no more.

        Args:
            after: the last id of the page before.
            limit: of documents; there may be fewer although more follow.
        """
        ...

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        """
        Return the documents of one epoch from a position on, by position; fewer than `limit` where they are large.
        """
        ...

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        """Return which of some documents are there."""
        ...

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        """Return the documents of the parked keys of one processor of one container, in no order."""
        ...

    async def partitions(self) -> frozenset[str]:
        """Return all partition keys under which there are documents of events, those of other processors included."""
        ...

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        """Apply all writes or none of them; errors and guarantees are those of `Store.commit`."""
        ...
