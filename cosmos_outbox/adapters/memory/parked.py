"""
MemoryParked: a container of parked keys in memory, the reference semantics of the ParkedStore port.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.ports import CommitResult, Document, Write


class MemoryParked:
    """
    Documents with compare-and-set and batches, one turn of the event loop an operation.

    Args:
        now: seconds since 1970; decides `_ts`. Defaults to the system clock.
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._container = MemoryContainer(now=now)

    async def read(self, document_id: str, partition_key: str) -> Document:
        return await self._container.read(document_id, partition_key)

    async def list(self, partition_key: str) -> tuple[Document, ...]:
        await asyncio.sleep(0)
        return tuple(document for document in self.documents() if document["partitionKey"] == partition_key)

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        return await self._container.commit(partition_key, writes)

    def documents(self) -> tuple[Document, ...]:
        """
        Return all documents, for a test to look at.
        """
        return self._container.documents()
