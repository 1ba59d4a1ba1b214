"""A `LeaseCheckpointed` record counts exactly the pages whose position was saved in the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.ports import ChangeBatch, Document
from cosmos_outbox.records import LeaseCheckpointed, Record
from tests.support.changefeed_world import World, virtual_seconds


class SlowLeases(MemoryLeases):
    """A lease store that writes at once and answers a second later."""

    def __init__(self) -> None:
        super().__init__(now=virtual_seconds)
        self.continuations: list[int] = []

    async def replace(self, document: Mapping[str, object], *, etag: str) -> Document:
        written = await super().replace(document, etag=etag)
        self.continuations.append(int(str(document.get("ContinuationToken") or '"0"').strip('"')))
        await asyncio.sleep(1.0)  # the worker handles more pages during this second
        return written


async def test_a_checkpoint_record_counts_only_the_pages_that_its_write_covers():
    world, leases, records = World(), SlowLeases(), list[Record]()
    pages: list[int] = []

    async def handle(batch: ChangeBatch) -> None:
        pages.append(batch.page)
        await asyncio.sleep(0.3)

    world.leases = leases
    world.start("a", handler=handle, hooks=(records.append,), max_items=1)
    await world.until(lambda: bool(leases.continuations))
    said: list[tuple[int, int]] = []

    def look() -> bool:
        reported = [record.pages for record in records if isinstance(record, LeaseCheckpointed)]
        said.extend((count, leases.continuations[-1]) for count in reported[len(said) :])
        return len(pages) == 20 and reported[-1:] == [20]

    for _ in range(20):
        await world.write("k")
    await world.until(look)
    await world.stop_all()
    assert list(range(1, 21)) == pages
    # Each page has one document with an LSN of its own, so the LSN in the continuation is the number of covered pages.
    assert [] == [(count, lsn) for count, lsn in said if count > lsn]
    assert len(said) > 3
    assert any(count < 20 for count, _ in said)
