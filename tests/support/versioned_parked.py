"""A parked store for simulations: programs reach it over links that are slow, return older versions to reads, or lose requests."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.errors import NotFound, StoreUnavailable
from cosmos_outbox.ports import CommitResult, Write
from cosmos_outbox.stored_documents import Document


class StoreFault(StrEnum):
    """A fault of one write to the parked store."""

    LOST = "lost"
    ACK_LOST = "ack-lost"
    LATE = "late"
    ECHO = "echo"  # the client sends a write twice, and the second is refused because the first took effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """
    The link of one program to the parked store.

    seconds: how long each request and each answer takes.
    behind: by how many seconds the versions that reads return are out of date.
    faults: the faults of successive writes.
    """

    seconds: float = 0.0
    behind: float = 0.0
    faults: tuple[StoreFault | None, ...] = ()


class Service:
    """The parked store with all its earlier versions. Reads may get an earlier version. Writes always change the newest one."""

    def __init__(self) -> None:
        self.newest = MemoryParked(now=lambda: asyncio.get_running_loop().time())
        self.versions: list[tuple[float, tuple[Document, ...]]] = [(0.0, ())]

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        result = await self.newest.commit(partition_key, writes)
        self.versions.append((asyncio.get_running_loop().time(), self.newest.documents()))
        return result


class Session(MemoryParked):
    """
    The ParkedStore of one program, with session consistency.

    A read of one document sees the program's own writes, and the document because of which a write was refused. A list
    of the documents of a partition key is not older than the last read of one document of this key.
    """

    def __init__(self, service: Service, link: Link) -> None:
        super().__init__()
        self._service, self._link = service, link
        self._faults = list(link.faults)
        self._seen: dict[str, int] = defaultdict(int)
        self._read: dict[str, int] = defaultdict(int)

    async def read(self, document_id: str, partition_key: str) -> Document:
        await asyncio.sleep(self._link.seconds)
        self._read[partition_key] = version = self._newest(self._seen[partition_key])
        for document in self._service.versions[version - 1][1]:
            if (document["id"], document["partitionKey"]) == (document_id, partition_key):
                return dict(document)
        raise NotFound(document_id=document_id)

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        await asyncio.sleep(self._link.seconds)
        return await super().page(partition_key, after=after, limit=limit)

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        await asyncio.sleep(self._link.seconds)
        limit = min(limit, 3)  # return few events at once, as Cosmos DB does if events are large
        return await super().queue(partition_key, epoch=epoch, first=first, limit=limit)

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        await asyncio.sleep(self._link.seconds)
        return await super().present(partition_key, document_ids)

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        await asyncio.sleep(self._link.seconds)
        return await super().keys(processor=processor, container=container)

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        # Send the request in a task of its own, because a request that was sent takes effect even if its caller is killed.
        sending = asyncio.ensure_future(self._commit(partition_key, writes))
        sending.add_done_callback(_forget_outcome)
        return await asyncio.shield(sending)

    async def _commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        fault = self._faults.pop(0) if self._faults else None
        await asyncio.sleep(self._link.seconds)
        if fault is StoreFault.LOST:
            raise StoreUnavailable
        if fault is StoreFault.LATE:
            asyncio.get_running_loop().call_later(3.0, self._send_late, partition_key, tuple(writes))
            raise StoreUnavailable
        try:
            result = await self._service.commit(partition_key, writes)
            if fault is StoreFault.ECHO:
                result = await self._service.commit(partition_key, writes)
        finally:
            self._seen[partition_key] = len(self._service.versions)
        if fault is StoreFault.ACK_LOST:
            raise StoreUnavailable
        await asyncio.sleep(self._link.seconds)
        return result

    def _send_late(self, partition_key: str, writes: Sequence[Write]) -> None:
        late = asyncio.ensure_future(self._service.commit(partition_key, writes))
        late.add_done_callback(_forget_outcome)

    def documents(self) -> tuple[Document, ...]:
        return self._service.versions[self._newest(0) - 1][1]

    def _in(self, partition_key: str) -> list[Document]:
        _, documents = self._service.versions[self._newest(self._read[partition_key]) - 1]
        return [one for one in documents if one["partitionKey"] == partition_key]

    def _newest(self, at_least: int) -> int:
        limit = asyncio.get_running_loop().time() - self._link.behind
        old_enough = sum(1 for at, _ in self._service.versions if at <= limit)
        return max(old_enough, at_least, 1)


def _forget_outcome(task: asyncio.Future[CommitResult]) -> None:
    if not task.cancelled():
        task.exception()
