"""Wrap a parked store, for tests that change single requests or documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.ports import CommitResult, ParkedStore, Write, WriteKind
from cosmos_outbox.stored_documents import Document

ResultT = TypeVar("ResultT")


class Passing:
    """A parked store that passes each request to another store. A test overrides `call` to change, delay or count requests."""

    def __init__(self, store: ParkedStore) -> None:
        self.store = store

    async def call(
        self, operation: str, partition_key: str, request: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        return await request()

    async def read(self, document_id: str, partition_key: str) -> Document:
        return await self.call("read", partition_key, lambda: self.store.read(document_id, partition_key))

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        return await self.call(
            "page", partition_key, lambda: self.store.page(partition_key, after=after, limit=limit)
        )

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        return await self.call(
            "queue",
            partition_key,
            lambda: self.store.queue(partition_key, epoch=epoch, first=first, limit=limit),
        )

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        return await self.call(
            "present", partition_key, lambda: self.store.present(partition_key, document_ids)
        )

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        return await self.call("keys", "", lambda: self.store.keys(processor=processor, container=container))

    async def partitions(self) -> frozenset[str]:
        return await self.call("partitions", "", self.store.partitions)

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        return await self.call("commit", partition_key, lambda: self.store.commit(partition_key, writes))


async def tampered(
    store: MemoryParked, document_id: str, partition_key: str, change: Callable[[Document], object]
) -> None:
    """Change a stored document to something that no version of this library writes, to test that the library notices it."""
    document = await store.read(document_id, partition_key)
    change(document)
    write = Write(kind=WriteKind.REPLACE, id=document_id, document=document, etag=document["_etag"])
    await store.commit(partition_key, [write])
