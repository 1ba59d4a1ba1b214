"""The interface (port) to the container of parked partition keys and their events. `parking/park.py` decides what is written into it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from cosmos_outbox.ports.store import CommitResult, Write
from cosmos_outbox.stored_documents import Document


class ParkedStore(Protocol):
    """
    The container of parked partition keys and their held events. A document stays until it is deleted, and is changed only under its etag.

    With session consistency, a read may miss recent writes of other programs. A list of documents of one partition key may also miss the
    reader's own writes, but is never older than what the reader has read of that partition key before. So a release that has read a parked
    key finds no event that was dropped before that.

    All documents have an `id` and a `partitionKey`. Held events also have an `epoch` and a `position`, which order them. Parked keys have
    the `type` "parkedKey".
    """

    async def read(self, document_id: str, partition_key: str) -> Document:
        """
        Return a document with its `_etag`. A caller sees its own writes. If one of its writes was refused because of a document, it sees
        that document.

        Raises:
            NotFound: there is no such document, or the replica that was read does not have it yet.
            StoreError: the service refused or failed; see `retriable`.
        """
        ...

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        """
        Return a page of the documents of a partition key, ordered by id. An empty page is the last one.

        Args:
            partition_key: the partition key.
            after: the last id of the page before. Defaults to "": the first page.
            limit: how many documents the page may have; it may have fewer although more follow.
        """
        ...

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        """
        Return the held events of one epoch (one parking of the key) from position `first` on, ordered by position. There may be fewer than
        `limit` if they are large.
        """
        ...

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        """Return those of the given ids under which a document of the partition key exists."""
        ...

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        """Return the documents of the parked keys of one processor of one container, in any order."""
        ...

    async def partitions(self) -> frozenset[str]:
        """Return the `partitionKey` of all documents of held events, for all processors."""
        ...

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        """Apply all writes or none of them. Errors and guarantees are those of `Store.commit`."""
        ...
