"""
FaultyStore: wraps a store so that requests are lost, delayed, repeated or refused, as a script of the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

from cosmos_outbox import NotFound, Store, StoreError, StoreUnavailable, TooManyRequests
from cosmos_outbox.partition_key import KeyPaths
from cosmos_outbox.ports import CommitResult, Document, Page, Write


class CommitFault(StrEnum):
    LOST_BEFORE = "the request is lost"
    LOST_AFTER = "the answer is lost"
    LATE = "the request arrives later than its sender waits"
    RESENT = "the SDK sends the request again after it was executed"
    HANGING_AFTER = "the answer never comes, nor does an error"
    ASLEEP = "the answer is lost, and the machine sleeps until other machines have dealt with the commit"
    THROTTLED = "429"
    RETRY_WITH = "449"
    REFUSED = "503 by a gateway that says nothing was executed"


class ReadFault(StrEnum):
    UNAVAILABLE = "503"
    STALE = "a replica that has not caught up says 404"
    HANGING = "no answer"


class FaultyStore:
    """
    A store with two scripts of faults, for commits and for reads. Each request takes the next fault of its script. After the end of the
    script, requests succeed.
    """

    def __init__(
        self,
        store: Store,
        commits: Iterable[CommitFault | None] = (),
        reads: Iterable[ReadFault | None] = (),
        *,
        late_seconds: float = 0.3,
    ) -> None:
        self._store, self._late_seconds = store, late_seconds
        self.commit_faults, self.read_faults = list(commits), list(reads)
        self.commits = self.reads = 0
        self._on_their_way: set[asyncio.Task[None]] = set()
        self.sleep: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)

    @property
    def key_paths(self) -> KeyPaths:
        return self._store.key_paths

    async def arrived(self) -> None:
        """Wait until all delayed requests have arrived at the store."""
        await asyncio.gather(*self._on_their_way)

    async def read(self, document_id: str, partition_key: str, **options: Any) -> Document:
        self.reads += 1
        match self.read_faults.pop(0) if self.read_faults else None:
            case ReadFault.UNAVAILABLE:
                raise StoreUnavailable
            case ReadFault.STALE:
                raise NotFound(document_id=document_id)
            case ReadFault.HANGING:
                await asyncio.Event().wait()
        return await self._store.read(document_id, partition_key, **options)

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        self.commits += 1
        fault = self.commit_faults.pop(0) if self.commit_faults else None
        match fault:
            case CommitFault.LOST_BEFORE:
                raise StoreUnavailable
            case CommitFault.REFUSED | CommitFault.RETRY_WITH:
                raise StoreUnavailable(applied=False)
            case CommitFault.THROTTLED:
                raise TooManyRequests(retry_after=0.2)
            case CommitFault.LATE:
                task = asyncio.create_task(self._arrive_late(partition_key, writes))
                self._on_their_way.add(task)
                task.add_done_callback(self._on_their_way.discard)
                raise StoreUnavailable
        result = await self._store.commit(partition_key, writes)
        match fault:
            case CommitFault.LOST_AFTER:
                raise StoreUnavailable
            case CommitFault.ASLEEP:
                await self.sleep()
                raise StoreUnavailable
            case CommitFault.HANGING_AFTER:
                await asyncio.Event().wait()
            case CommitFault.RESENT:
                return await self._store.commit(partition_key, writes)
        return result

    async def _arrive_late(self, partition_key: str, writes: Sequence[Write]) -> None:
        await asyncio.sleep(self._late_seconds)
        try:
            await self._store.commit(partition_key, writes)
        except StoreError:
            return  # the request arrived late, and its caller no longer waits for the answer

    async def list(self, types: Sequence[str], **options: Any) -> Page:
        return await self._store.list(types, **options)

    async def query(self, sql: str, parameters: Mapping[str, Any], **options: Any) -> Page:
        return await self._store.query(sql, parameters, **options)
