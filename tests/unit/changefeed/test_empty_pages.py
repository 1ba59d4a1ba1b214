"""
Empty pages of a sparse feed: a page that only skipped changes of other ranges is not the end of the feed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.changefeed import Lag, estimate_lag
from cosmos_outbox.errors import StoreUnavailable
from cosmos_outbox.ports import ChangePage, StartFrom
from cosmos_outbox_worker.cli.replay import read_events
from tests.support.changefeed_world import World


class Sparse:
    """
    A feed whose changes up to the LSN `up_to` belong to other ranges. For each of these changes it returns an empty page.
    """

    def __init__(self, container: MemoryContainer, *, up_to: int) -> None:
        self._container, self._up_to = container, up_to
        self.reads = 0
        self.fails_every = 0
        self.hangs_at = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    async def read_page(self, *args: Any, **kwargs: Any) -> ChangePage:
        self.reads += 1
        if self.fails_every and self.reads % self.fails_every == 0:
            raise StoreUnavailable
        if self.reads == self.hangs_at:
            await asyncio.Event().wait()
        page = await self._container.read_page(*args, **kwargs | {"max_items": 1})
        if page.documents and page.documents[0]["_lsn"] <= self._up_to:
            return replace(page, documents=(), skipped=True)
        return page


async def _lag(world: World, *, up_to: int) -> Lag:
    return await estimate_lag("p", feed=Sparse(world.container, up_to=up_to), leases=world.leases)


async def test_a_worker_reads_each_page_of_a_sparse_feed_once_although_reads_fail():
    world = World()
    await world.write_many(300)
    feed = Sparse(world.container, up_to=299)
    feed.fails_every = 20
    processor = world.start("a", feed=feed)
    await world.until(lambda: bool(world.handled))
    await asyncio.sleep(0)

    assert feed.reads <= 320
    await asyncio.sleep(10)
    assert [0] == [status.lag for status in processor.status()]
    await world.stop_all()


async def test_a_worker_does_not_pause_between_empty_pages():
    world = World()
    await world.write_many(300)
    world.start("a", feed=Sparse(world.container, up_to=299))

    assert await world.until(lambda: bool(world.handled)) < 1
    await world.stop_all()


async def test_a_worker_limits_its_rate_of_reads_while_empty_pages_never_end():
    world = World()
    page = ChangePage(documents=(), continuation='"1"', latest_lsn=1, skipped=True)
    reads = 0

    class Endless(Sparse):
        async def read_page(self, *_: Any, **__: Any) -> ChangePage:
            nonlocal reads
            reads += 1
            return page

    world.start("a", feed=Endless(world.container, up_to=0))
    await asyncio.sleep(60)

    assert reads <= 60 * 300
    await world.stop("a")


async def test_a_worker_saves_its_position_between_empty_pages():
    """
    So a worker that stops between empty pages loses no progress. It releases its lease, although it has not reached the end of the feed.
    """
    world = World()
    await world.write_many(300)
    feed = Sparse(world.container, up_to=300)
    feed.hangs_at = 150
    world.start("a", feed=feed)
    await asyncio.sleep(5)

    assert ['"149"'] == [lease.continuation for lease in await world.all_leases()]
    await world.stop("a")
    assert {"free": 1} == await world.owners()


async def test_the_lag_counts_from_the_first_change_after_the_empty_pages():
    world = World()
    await world.create_leases()
    await world.write_many(25)

    lag = await _lag(world, up_to=20)
    assert (5, timedelta(0)) == (lag.transactions, lag.oldest_age)


async def test_the_estimator_reports_a_lag_of_one_after_too_many_empty_pages():
    world = World()
    await world.create_leases()
    await world.write_many(301)

    lag = await _lag(world, up_to=301)
    assert (1, None) == (lag.transactions, lag.oldest_age)


async def test_a_replay_reads_past_empty_pages_to_the_end_of_the_feed():
    world = World()
    await world.write_many(25)
    read = list[str | None]()

    class Recorded(Sparse):
        async def read_page(self, *arguments: Any, **options: Any) -> ChangePage:
            page = await super().read_page(*arguments, **options)
            read.append(page.continuation)
            return page

    feed = Recorded(world.container, up_to=20)
    async for _ in read_events(feed, start=StartFrom.BEGINNING):
        pass
    assert '"25"' == read[-1]
