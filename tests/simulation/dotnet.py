"""
A simulated change feed processor of the SDK for .NET, which shares the leases with our workers. Unlike our workers, it takes leases from
living owners, and ignores requests for a handover.

It compares the `timestamp` that the owner wrote into the lease with its own clock. If the clocks differ, it takes leases that were
renewed in time, or takes expired leases late. Changes may be handled twice, but none is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.changefeed.leases import Lease, from_document, new_lease, parse_timestamp
from cosmos_outbox.errors import Conflict, NotFound, PreconditionFailed, RangeGone
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import Document, LeaseStore, StartFrom

ACQUIRE, RENEW, EXPIRATION, POLL = 13.0, 17.0, timedelta(seconds=60), 5.0


class DotNetNeighbour:
    """One .NET process that shares the leases with our workers."""

    def __init__(
        self,
        name: str,
        prefix: str,
        container: MemoryContainer,
        leases: LeaseStore,
        *,
        handle: Callable[[Document], Awaitable[None]],
        utcnow: Callable[[], datetime],
    ) -> None:
        self.name, self._prefix = name, prefix
        self._container, self._leases = container, leases
        self._handle, self._utcnow = handle, utcnow
        self._work: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                for lease in await self._to_take():
                    with suppress(PreconditionFailed, NotFound):
                        taken = await self._write(lease, owner=self.name)
                        if taken.id not in self._work:
                            self._work[taken.id] = asyncio.ensure_future(self._process(taken))
                await asyncio.sleep(ACQUIRE)
        finally:
            for task in self._work.values():
                task.cancel()
            await asyncio.gather(*self._work.values(), return_exceptions=True)

    async def release(self) -> None:
        """Release all leases of this processor, as `StopAsync` of the SDK for .NET does."""
        listing = await self._leases.list(f"{self._prefix}..")
        for lease in map(from_document, listing.documents):
            if lease.owner == self.name:
                with suppress(PreconditionFailed, NotFound):
                    await self._write(lease, owner=None)

    async def _to_take(self) -> list[Lease]:
        listing = await self._leases.list(f"{self._prefix}..")
        leases = [from_document(document) for document in listing.documents]
        free = [
            lease
            for lease in leases
            if not lease.owned or parse_timestamp(lease.raw["timestamp"]) + EXPIRATION < self._utcnow()
        ]
        counts: Counter[str] = Counter({self.name: 0})
        counts.update(str(lease.owner) for lease in leases if lease not in free)
        target = math.ceil(len(leases) / len(counts)) if len(leases) > len(counts) else 1
        needed = target - counts[self.name]
        if needed <= 0:
            return []
        if free:
            return free[:needed]
        richest = max(counts, key=lambda worker: counts[worker])
        if counts[richest] > target - (1 if needed > 1 else 0):
            return [next(lease for lease in leases if lease.owner == richest)]
        return []

    async def _process(self, lease: Lease) -> None:
        next_renewal = asyncio.get_running_loop().time() + RENEW / 2
        try:
            while lease.range is not None:
                page = await self._container.read_page(
                    lease.range,
                    container_rid=self._prefix.rpartition("_")[2],
                    continuation=lease.continuation,
                    start=StartFrom.BEGINNING,
                    max_items=10,
                )
                if lease.version == 0 and page.range_id != lease.token:
                    raise RangeGone  # noqa: TRY301 - .NET names the partition by its id
                for document in page.documents:
                    await self._handle(document)
                if page.documents:
                    lease = await self._update(lease, continuation=page.continuation)
                else:
                    await asyncio.sleep(POLL)
                if asyncio.get_running_loop().time() >= next_renewal:
                    lease = await self._update(lease)
                    next_renewal = asyncio.get_running_loop().time() + RENEW
        except (LookupError, NotFound):  # lost
            pass
        except RangeGone:
            with suppress(LookupError, NotFound, PreconditionFailed):
                await self._split(lease)
        finally:
            del self._work[lease.id]

    async def _split(self, lease: Lease) -> None:
        """
        Replace a lease after a split or merge, as `PartitionSynchronizerCore` of the SDK for .NET does. If the lease is named by a
        partition id, its child leases cover whole partitions, even if a partition is wider than the lease.
        """
        assert lease.range
        overlapping = [r for r in await self._container.physical_ranges() if r.overlaps(lease.range)]
        if lease.version == 0 and len(overlapping) > 1:
            parts = [(await self._container.partition_id(r), r, 0) for r in overlapping]
        else:
            low, high = lease.range.min, lease.range.max
            bounds = [low, *(r.min for r in overlapping[1:]), high]
            parts = [(f"{a}-{b}", FeedRange(min=a, max=b), 1) for a, b in itertools.pairwise(bounds)]
        if lease.version == 1 and len(overlapping) == 1:
            await self._update(lease, owner=None)
            return
        for token, feed_range, version in parts:
            child = new_lease(
                self._prefix, token, feed_range, version=version, continuation=lease.continuation,
                properties=lease.properties,
            )  # fmt: skip
            with suppress(Conflict):
                await self._leases.create(child.raw)
        await self._leases.delete(lease.id, lease.partition_key)

    async def _update(self, lease: Lease, **changes: Any) -> Lease:
        while True:
            try:
                return await self._write(lease, **changes)
            except PreconditionFailed:
                fresh = from_document(await self._leases.read(lease.id, lease.partition_key))
                if fresh.owner != self.name:
                    raise LookupError("lost") from None
                lease = fresh

    async def _write(self, lease: Lease, **changes: Any) -> Lease:
        changed = lease.with_changes(now=self._utcnow(), **changes)
        return from_document(await self._leases.replace(changed.raw, etag=lease.etag or ""))
