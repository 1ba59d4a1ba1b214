"""
The index of parked keys: one document that names every one of them, so that a new owner needs one look.

An entry is written before its key is parked and removed after the key was handed back, each parking under an epoch of
its own. What a new owner must not miss does not hang on any clock: an event counts as held only once a write of the
index, made while the key's document is there, has shown the entry (`confirm`). A parking that crashed leaves an entry;
who removes it reads the index, proves that the key is not parked, and writes under the etag that it read. So between
proof and removal nobody confirmed. The age at which that happens only says when it is worth the trouble.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import TypeVar

from cosmos_outbox.errors import (
    Conflict,
    NotFound,
    ParkingFull,
    PreconditionFailed,
    StoreUnavailable,
    TooManyRequests,
)
from cosmos_outbox.ports import ParkedStore, Write, WriteKind
from cosmos_outbox.relay.parked import INDEX_ID, Entries, entries_in, key_in
from cosmos_outbox.retries import Deadline, RetryOptions

_ABANDONED_AFTER_SECONDS = 3600  # on the service's clock; no parking takes nearly so long
_PROVEN_PER_WRITE = 10  # keys, two requests each: so many that the write is in time over a slow line, too

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
        # The leases of a worker begin together; among them, order costs less than retries
        self._lock = asyncio.Lock()

    async def keys(self) -> frozenset[str]:
        """
        Return all parked keys, and perhaps some that are not: what is not among them is not parked.
        """
        # Written back all the same: that nobody wrote in between proves that the copy is the newest.
        return _keys(await self._changed(lambda entries: entries))

    async def look(self) -> frozenset[str]:
        """
        Return the parked keys by a mere read, for those who only watch: it may be behind.
        """

        async def step(deadline: Deadline) -> frozenset[str]:
            return _keys((await self._read(deadline))[0])

        return await until_applied(step, self._options)

    async def add(self, partition_key: str, *, max_keys: int) -> str:
        """
        Announce that a key will be parked, which it is not now; return the epoch for it.

        Raises:
            ParkingFull: there are `max_keys` others.
        """
        epoch = uuid.uuid4().hex

        def with_key(entries: Entries) -> Entries:
            others = _keys(entries) - {partition_key}
            if len(others) >= max_keys:
                raise ParkingFull(
                    f"{len(others)} partition keys are parked, as many as the limit allows, so {partition_key!r} "
                    "cannot be; list them, release or drop some, or raise the limit."
                )
            return {**entries, epoch: {"key": partition_key}}

        await self._changed(with_key)
        return epoch

    async def confirm(self, epoch: str, partition_key: str) -> None:
        """
        See to it that a key whose document is there is named, whatever was removed before it came.
        """

        def with_key(entries: Entries) -> Entries:
            return {epoch: {"key": partition_key}, **entries}

        await self._changed(with_key)

    async def remove(self, epoch: str) -> None:
        """
        Remove the entry of a key that was handed back, or never parked.
        """

        await self._changed(lambda entries: {name: entry for name, entry in entries.items() if name != epoch})

    async def remove_abandoned(self, partition_keys: Collection[str], *, now: datetime) -> None:
        """
        Remove what crashed parkings of these keys left behind, where it is old and the key is not parked.

        Args:
            partition_keys: that somebody found not to be parked.
            now: says only whether the index was written lately; where it was and nothing is old, it stays as it is.
        """

        async def step(deadline: Deadline) -> bool:
            entries, written_at, etag = await self._read(deadline)
            old = [
                epoch
                for epoch, entry in entries.items()
                if entry["key"] in partition_keys and written_at - entry["since"] > _ABANDONED_AFTER_SECONDS
            ][:_PROVEN_PER_WRITE]
            # Proven after the index was read: a key parked by now was confirmed since, and the write fails.
            gone = {
                epoch
                for epoch in old
                if await deadline.attempt(key_in, self._store, entries[epoch]["key"]) is None
            }
            # Only a write tells the service's time, and nobody else may write for days.
            if gone or now.timestamp() - written_at > _ABANDONED_AFTER_SECONDS:
                left = {epoch: entry for epoch, entry in entries.items() if epoch not in gone}
                await self._write(left, etag, deadline)
            return len(gone) == _PROVEN_PER_WRITE

        async with self._lock:
            while await until_applied(step, self._options):
                pass

    async def _changed(self, change: Callable[[Entries], Entries]) -> Entries:
        async def step(deadline: Deadline) -> Entries:
            entries, _, etag = await self._read(deadline)
            changed = change(entries)
            await self._write(changed, etag, deadline)
            return changed

        async with self._lock:
            return await until_applied(step, self._options)

    async def _write(self, entries: Entries, etag: str | None, deadline: Deadline) -> None:
        body = {"id": INDEX_ID, "partitionKey": INDEX_ID, "type": "parkedKeys", "keys": entries}
        kind = WriteKind.CREATE if etag is None else WriteKind.REPLACE
        write = Write(kind=kind, id=INDEX_ID, document=body, etag=etag)
        await deadline.attempt(self._store.commit, INDEX_ID, [write])

    async def _read(self, deadline: Deadline) -> tuple[Entries, int, str | None]:
        try:
            document = await deadline.attempt(self._store.read, INDEX_ID, INDEX_ID)
        except NotFound:
            return {}, 0, None
        return entries_in(document), int(document["_ts"]), document["_etag"]


def _keys(entries: Entries) -> frozenset[str]:
    return frozenset(entry["key"] for entry in entries.values())
