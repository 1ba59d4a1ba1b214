"""MemoryParked: a container of parked keys in memory, which defines the behavior of the ParkedStore port."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.ports import Document


class MemoryParked(MemoryContainer):
    """
    A MemoryContainer that also finds parked keys and their events. Each operation lets other tasks run first, as a
    request would.
    """

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        await asyncio.sleep(0)
        found = [one for one in self._in(partition_key) if one["id"] > after]
        return tuple(sorted(found, key=lambda one: str(one["id"]))[:limit])

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        await asyncio.sleep(0)
        of_epoch = [one for one in self._in(partition_key) if one.get("epoch") == epoch]
        found = [one for one in of_epoch if isinstance(one.get("position"), int) and one["position"] >= first]
        return tuple(sorted(found, key=lambda one: int(one["position"]))[:limit])

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        await asyncio.sleep(0)
        return frozenset(str(one["id"]) for one in self._in(partition_key) if one["id"] in document_ids)

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        await asyncio.sleep(0)
        wanted = ("parkedKey", processor, container)
        fields = ("type", "processor", "container")
        return tuple(one for one in self.documents() if wanted == tuple(map(one.get, fields)))

    async def partitions(self) -> frozenset[str]:
        await asyncio.sleep(0)
        return frozenset(str(one["partitionKey"]) for one in self.documents() if one["type"] == "parkedEvent")

    def _in(self, partition_key: str) -> list[Document]:
        return [one for one in self.documents() if one["partitionKey"] == partition_key]
