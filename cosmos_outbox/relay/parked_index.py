"""
The index of parked keys: one document that names every one of them, so that a new owner needs one look.

An entry is written before the key is parked and removed after it was handed back, each parking under an epoch of its
own. So while a key is parked its entry is there: nobody but the one who gave that very epoch back removes it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from cosmos_outbox.errors import (
    Conflict,
    NotFound,
    ParkingFull,
    PreconditionFailed,
    StoreUnavailable,
    TooManyRequests,
)
from cosmos_outbox.ports import ParkedStore, Write, WriteKind
from cosmos_outbox.relay.parked import INDEX_ID
from cosmos_outbox.retries import Deadline, RetryOptions

# A parking that crashed between its entry and the key leaves the entry; no parking takes nearly so long.
_ABANDONED_AFTER = timedelta(hours=1)

Entries = dict[str, dict[str, str]]
ResultT = TypeVar("ResultT")


async def until_applied(step: Callable[[Deadline], Awaitable[ResultT]], options: RetryOptions) -> ResultT:
    """
    Run a step that reads, decides and writes on condition, again for as long as somebody else writes in between.

    Raises:
        StoreUnavailable: time is up.
    """
    deadline, attempt = Deadline(options), 0
    while True:
        attempt += 1
        try:
            return await step(deadline)
        except (PreconditionFailed, Conflict, NotFound, StoreUnavailable, TooManyRequests) as error:
            if not await deadline.pause(attempt, getattr(error, "retry_after", None)):
                raise StoreUnavailable(f"The parked store could not be written in time: {error}") from error


class ParkedIndex:
    """
    The one document, changed by compare-and-set.
    """

    def __init__(self, store: ParkedStore, options: RetryOptions) -> None:
        self._store, self._options = store, options
        self._lock = (
            asyncio.Lock()
        )  # the leases of a worker begin together; among them, order costs less than retries

    async def keys(self) -> frozenset[str]:
        """
        Return all parked keys, and perhaps some that are not: what is not among them is not parked.
        """
        # Written back unchanged: that nobody wrote in between proves that the copy which was read is the newest.
        entries = await self._changed(lambda entries: entries)
        return frozenset(entry["key"] for entry in entries.values())

    async def add(self, partition_key: str, *, at: datetime, max_keys: int) -> str:
        """
        Announce that a key will be parked, which it is not now; return the epoch for it.

        Raises:
            ParkingFull: there are `max_keys` others.
        """
        epoch = uuid.uuid4().hex

        def with_key(entries: Entries) -> Entries:
            others = {entry["key"] for entry in entries.values()} - {partition_key}
            if len(others) >= max_keys:
                raise ParkingFull(
                    f"{len(others)} partition keys are parked, as many as the limit allows, so {partition_key!r} "
                    "cannot be; release or drop some, or raise the limit."
                )
            return {
                **_without_abandoned(entries, partition_key, at),
                epoch: {"key": partition_key, "at": at.isoformat()},
            }

        await self._changed(with_key)
        return epoch

    async def remove(self, epoch: str) -> None:
        """
        Remove the entry of a key that was handed back, or never parked.
        """
        await self._changed(lambda entries: {name: entries[name] for name in entries if name != epoch})

    async def remove_abandoned(self, partition_key: str, *, now: datetime) -> None:
        """
        Remove the entries that crashed parkings of a key left behind, once that key is not parked.
        """
        await self._changed(lambda entries: _without_abandoned(entries, partition_key, now))

    async def _changed(self, change: Callable[[Entries], Entries]) -> Entries:
        async def step(deadline: Deadline) -> Entries:
            document: dict[str, Any]
            try:
                document = await deadline.attempt(lambda: self._store.read(INDEX_ID, INDEX_ID))
                kind, etag = WriteKind.REPLACE, document["_etag"]
            except NotFound:
                document, kind, etag = {"keys": {}}, WriteKind.CREATE, None
            changed = change(document["keys"])
            body = {"id": INDEX_ID, "partitionKey": INDEX_ID, "type": "parkedKeys", "keys": changed}
            write = Write(kind=kind, id=INDEX_ID, document=body, etag=etag)
            await deadline.attempt(lambda: self._store.commit(INDEX_ID, [write]))
            return changed

        async with self._lock:
            return await until_applied(step, self._options)


def _without_abandoned(entries: Entries, partition_key: str, now: datetime) -> Entries:
    return {
        epoch: entry
        for epoch, entry in entries.items()
        if entry["key"] != partition_key or datetime.fromisoformat(entry["at"]) > now - _ABANDONED_AFTER
    }
