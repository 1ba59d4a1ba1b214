"""The container of parked partition keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from cosmos_outbox.ports.store import CommitResult, Write
from cosmos_outbox.stored_documents import Document


class ParkedStore(Protocol):
    """
    The container of parked partition keys. Documents are written with compare-and-set, stay until deleted, and are read a page at a
    time.

    A read may be behind the writes of other programs, as it is with session consistency; a write never is. A list of one partition
    key may lack its reader's own writes, but is never older than what the reader read under that key before: a release that read
    a key finds no event in its queue that was dropped by then. The documents have an `id` and a `partitionKey`, events in a queue
    also an `epoch` and a `position`, and keys the `type` "parkedKey".
    """

    async def read(self, document_id: str, partition_key: str) -> Document:
        """
        Return a document with its `_etag`. A caller sees its own writes, and the document that refused one of them.

        Raises:
            NotFound: there was none when the reader's copy was made.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        """
        Return documents of a partition key by id, from the first id after the given one; none at the end.

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
        """Return which of the given documents exist."""
        ...

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        """Return the documents of the parked keys of one processor of one container, in any order."""
        ...

    async def partitions(self) -> frozenset[str]:
        """Return all partition keys that have documents of events, for all processors."""
        ...

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        """Apply all writes or none of them. Errors and guarantees are those of `Store.commit`."""
        ...
