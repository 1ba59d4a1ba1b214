"""
MemoryParked: a container of parked keys in memory, the reference semantics of the ParkedStore port.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence

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

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        await asyncio.sleep(0)
        return page_of(self.documents(), partition_key, after=after, limit=limit)

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        await asyncio.sleep(0)
        return queue_of(self.documents(), partition_key, epoch=epoch, first=first, limit=limit)

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        await asyncio.sleep(0)
        return present_in(self.documents(), partition_key, document_ids)

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        await asyncio.sleep(0)
        return keys_of(self.documents(), processor=processor, container=container)

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        return await self._container.commit(partition_key, writes)

    def documents(self) -> tuple[Document, ...]:
        """
        Return all documents, for tests.
        """
        return self._container.documents()


# Queries as pure functions, shared with test stores that return stale documents.


def page_of(
    documents: Iterable[Document], partition_key: str, *, after: str, limit: int
) -> tuple[Document, ...]:
    found = [one for one in documents if one["partitionKey"] == partition_key and one["id"] > after]
    return tuple(sorted(found, key=lambda one: str(one["id"]))[:limit])


def queue_of(
    documents: Iterable[Document], partition_key: str, *, epoch: str, first: int, limit: int
) -> tuple[Document, ...]:
    found = [
        one
        for one in documents
        if one["partitionKey"] == partition_key
        and one.get("epoch") == epoch
        and isinstance(one.get("position"), int)
        and one["position"] >= first
    ]
    return tuple(sorted(found, key=lambda one: int(one["position"]))[:limit])


def present_in(
    documents: Iterable[Document], partition_key: str, document_ids: Collection[str]
) -> frozenset[str]:
    return frozenset(
        str(one["id"])
        for one in documents
        if one["partitionKey"] == partition_key and one["id"] in document_ids
    )


def keys_of(documents: Iterable[Document], *, processor: str, container: str) -> tuple[Document, ...]:
    return tuple(
        one
        for one in documents
        if one.get("type") == "parkedKey"
        and (one.get("processor"), one.get("container")) == (processor, container)
    )
