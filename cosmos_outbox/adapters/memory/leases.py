"""MemoryLeases: a lease container in memory, which defines the behavior of the LeaseStore port."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from cosmos_outbox.adapters.memory.container import copy_of
from cosmos_outbox.errors import Conflict, NotFound, PreconditionFailed
from cosmos_outbox.ports import Document, Listing


class MemoryLeases:
    """
    Lease documents in memory. A write with an etag succeeds only if the document still has that etag. Each operation
    lets other tasks run first, as a request would.

    Args:
        now: a function that returns the seconds since 1970, for `_ts` and the expiry by `ttl`. Defaults to the system
            clock.
        by_id: True to behave as a container that is partitioned on `/id`, False for `/partitionKey`.
    """

    def __init__(self, *, now: Callable[[], float] = time.time, by_id: bool = True) -> None:
        self._documents: dict[str, Document] = {}
        self._etags = itertools.count(1)
        self._now = now
        self._by_id = by_id

    async def partitioned_by_id(self) -> bool:
        return self._by_id

    async def list(self, prefix: str) -> Listing:
        await asyncio.sleep(0)
        found = (self._find(name) for name in sorted(self._documents) if name.startswith(prefix))
        documents = tuple(copy_of(document) for document in found if document is not None)
        return Listing(documents=documents, read_at=datetime.fromtimestamp(int(self._now()), UTC))

    async def read(self, document_id: str, partition_key: str) -> Document:
        await asyncio.sleep(0)
        return copy_of(self._existing(document_id))

    async def create(self, document: Mapping[str, Any]) -> Document:
        await asyncio.sleep(0)
        if self._find(document["id"]) is not None:
            raise Conflict
        return self._put({**({} if self._by_id else {"partitionKey": document["id"]}), **document})

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        await asyncio.sleep(0)
        self._existing(document["id"], etag)
        return self._put(document)

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        await asyncio.sleep(0)
        self._existing(document_id, etag)
        del self._documents[document_id]

    def _put(self, document: Mapping[str, Any]) -> Document:
        stored = {**copy_of(document), "_etag": f'"{next(self._etags):08x}"', "_ts": int(self._now())}
        self._documents[stored["id"]] = stored
        return copy_of(stored)

    def _existing(self, document_id: str, etag: str | None = None) -> Document:
        document = self._find(document_id)
        if document is None:
            raise NotFound
        if etag is not None and document["_etag"] != etag:
            raise PreconditionFailed(expected=etag, actual=document["_etag"])
        return document

    def _find(self, document_id: str) -> Document | None:
        document = self._documents.get(document_id)
        if document is None or self._now() >= document["_ts"] + document.get("ttl", float("inf")):
            return None
        return document
