"""
The container of parked partition keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cosmos_outbox.documents import Document
from cosmos_outbox.ports.store import CommitResult, Write


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
