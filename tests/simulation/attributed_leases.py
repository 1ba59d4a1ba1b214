"""
AttributedLeases: access to the lease container for one actor (a worker, an operator or a .NET processor). It reports the name of the
actor with each write, so that the invariants can check whether this actor may write the lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed.leases import Lease, from_document
from cosmos_outbox.ports import Document, Listing
from tests.simulation.invariants import Invariants


class AttributedLeases:
    """The access of one actor to the lease container. Each write is checked against the invariants."""

    def __init__(
        self,
        actor: str,
        store: MemoryLeases,
        invariants: Invariants,
        *,
        on_create: Callable[[Lease], Awaitable[None]] | None = None,
    ) -> None:
        self.actor, self._store, self._invariants, self._on_create = actor, store, invariants, on_create

    async def partitioned_by_id(self) -> bool:
        return await self._store.partitioned_by_id()

    async def list(self, prefix: str) -> Listing:
        return await self._store.list(prefix)

    async def read(self, document_id: str, partition_key: str) -> Document:
        return await self._store.read(document_id, partition_key)

    # No other task runs between a write of the store and the check after it, so the invariants see the state of that moment.

    async def create(self, document: Mapping[str, Any]) -> Document:
        created = await self._store.create(document)
        if _is_lease(created["id"]):
            self._invariants.is_written(self.actor, None, from_document(created))
            if self._on_create:
                await self._on_create(from_document(created))
        return created

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        replaced = await self._store.replace(document, etag=etag)
        if _is_lease(replaced["id"]):
            before = self._invariants.leases[replaced["id"]]
            self._invariants.is_written(self.actor, before, from_document(replaced))
        return replaced

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        await self._store.delete(document_id, partition_key, etag=etag)
        if _is_lease(document_id):
            self._invariants.is_written(self.actor, self._invariants.leases[document_id], None)


def _is_lease(document_id: str) -> bool:
    return ".." in document_id  # the ids of the initialization marker and its lock have no ".."
