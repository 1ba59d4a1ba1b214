"""
The memory budget of a worker: the pages of all its leases stay within it, and no lease stops another one by using it up.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox.adapters.memory.container import MemoryContainer, effective_partition_key
from cosmos_outbox.changefeed.read_ahead import (
    MEMORY_OF_A_BYTE,
    Budget,
    Reader,
    Sizes,
    longest_page,
    page_within,
    share_of,
)
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeBatch, ChangePage, StartFrom, Write, WriteKind
from cosmos_outbox.records import PageHandled, Record
from tests.support.changefeed_world import World

BYTES = st.integers(1, 4_000_000)
SIZES = st.tuples(BYTES, BYTES).map(lambda pair: Sizes(read=max(pair), kept=min(pair)))
ROOM = st.integers(-10_000_000, 1_000_000_000)
MOST = st.integers(1, 1000)
ALL = FeedRange(min="", max="FF")


@given(SIZES, MOST, ROOM, ROOM)
def test_a_page_asks_for_as_many_changes_as_fit_into_memory(sizes: Sizes, most: int, share: int, room: int):
    """
    Without room for a single change, the page still asks for one change, so that the lease does not stop.
    """
    items = page_within(sizes, most=most, share=share, room=room)

    assert 1 <= items <= longest_page(sizes, most=most, share=share) <= most
    assert items == 1 or items * sizes.read <= min(share, room)


@given(SIZES, MOST, ROOM)
def test_the_current_and_the_next_page_fit_into_the_memory_share_of_a_lease(
    sizes: Sizes, most: int, share: int
):
    items = longest_page(sizes, most=most, share=share)

    assert items == 1 or 2 * items * sizes.kept <= share


@given(SIZES, MOST, ROOM)
def test_a_read_asks_for_at_least_half_of_the_documents_that_fit_into_memory(
    sizes: Sizes, most: int, share: int
):
    items = longest_page(sizes, most=most, share=share)

    assert items == most or 2 * items * max(sizes.read, 2 * sizes.kept) >= share


@given(st.integers(1, 1_000_000_000), st.integers(1, 500))
def test_the_memory_shares_of_all_leases_do_not_exceed_the_budget(limit: int, leases: int):
    share = share_of(limit, free=0, leases=leases)

    assert share * leases <= limit * 1.000001
    assert share_of(limit, free=limit, leases=leases) <= max(share, limit / 4)


@given(SIZES, st.integers(1, 1000), BYTES)
def test_the_expected_document_size_rises_at_once_and_falls_slowly(sizes: Sizes, documents: int, page: int):
    after = sizes.after(documents=documents, read=page, kept=page)

    assert after.read >= page / documents
    assert after.read >= sizes.read * 0.74
    for _ in range(60):
        sizes = sizes.after(documents=documents, read=page, kept=page)
    assert sizes.read <= page / documents + 1


@given(st.lists(st.tuples(st.sampled_from(["reserve", "hold", "drop"]), BYTES), max_size=40))
def test_all_memory_taken_from_the_budget_is_returned(steps: list[tuple[str, int]]):
    budget = Budget(1_000_000, leases=lambda: 3)
    whole = budget.free
    pages: list[ChangePage] = []
    for step, size in steps:
        if step == "hold":
            pages.append(ChangePage(documents=(), continuation="", latest_lsn=None))
            budget.hold(pages[-1], size)
        elif step == "drop" and pages:
            pages.pop(size % len(pages))
        else:
            before = budget.free
            with budget.reserve(size):
                assert before - size == budget.free
            assert before == budget.free
    pages.clear()

    assert whole == budget.free


async def _write(container: MemoryContainer, key: str, name: str, **fields: Any) -> None:
    document = {"id": name, "partitionKey": key, **fields}
    await container.commit(key, [Write(kind=WriteKind.CREATE, id=name, document=document)])


class Asked:
    """A feed that records how many changes each read asked for, and the longest page of each lease."""

    def __init__(self, container: MemoryContainer, *, read_seconds: float = 0.0) -> None:
        self._container, self._read_seconds = container, read_seconds
        self.asked: list[int] = []
        self.longest: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    async def read_page(self, feed_range: FeedRange, **kwargs: Any) -> ChangePage:
        self.asked.append(kwargs["max_items"])
        await asyncio.sleep(self._read_seconds)
        page = await self._container.read_page(feed_range, **kwargs)
        lease = feed_range.min
        self.longest[lease] = max(self.longest.get(lease, 0), len(page.documents))
        return page


async def _pages(feed: Any, budget: Budget, **options: Any) -> AsyncIterator[ChangePage]:
    rid = (await feed.describe()).container_rid
    reader = Reader(feed, ALL, container_rid=rid, max_items=100, budget=budget, **{"wanted": None, **options})
    continuation, more = None, True
    while more:
        page = await reader.read(continuation, start=StartFrom.BEGINNING)
        continuation, more = page.continuation, bool(page.documents or page.dropped)
        yield page
        del page


async def test_pages_become_longer_when_documents_become_smaller():
    container = MemoryContainer()
    for number in range(300):
        await _write(container, "k", f"{number}", text="x" * (40_000 if number < 100 else 100))
    feed = Asked(container)
    budget = Budget(40_000_000 * MEMORY_OF_A_BYTE, leases=lambda: 50)
    with budget.reserve(37_000_000):
        async for page in _pages(feed, budget):
            del page  # so that this variable does not keep the page in memory

    # Each of the 50 leases has a share of 800 KB, and a page may take half of it: eight documents of 40 KB, as the number of documents
    # is rounded down to a power of two.
    assert [8, 8] == feed.asked[:2]
    assert 100 == feed.asked[-1]
    assert sorted(feed.asked) == feed.asked


async def test_small_documents_are_read_in_pages_of_full_length():
    container = MemoryContainer()
    for number in range(500):
        await _write(container, "k", f"{number}", text="x" * 500)
    feed = Asked(container)
    budget = Budget(256 * 1024 * 1024, leases=lambda: 32)
    [page async for page in _pages(feed, budget)]

    assert {100} == set(feed.asked[4:])


async def test_a_lease_that_lags_reads_long_pages_until_it_has_caught_up():
    container = MemoryContainer()
    for number in range(1200):
        await _write(container, "k", f"{number}")
    feed, continuation = Asked(container), None
    rid = (await feed.describe()).container_rid
    budget = Budget(10**10, leases=lambda: 1)
    reader = Reader(feed, ALL, container_rid=rid, max_items=1000, budget=budget, wanted=lambda _: False)
    for _ in range(5):
        continuation = (await reader.read(continuation, start=StartFrom.BEGINNING)).continuation

    # How many changes each read asked for. The third page has the last hundred changes, and does not show that it is
    # the last. The fourth page is empty.
    assert [100, 1000, 1000, 1000, 100] == feed.asked


async def test_only_wanted_documents_of_unfinished_pages_count_against_the_memory_budget():
    container = MemoryContainer()
    for number in range(40):
        await _write(
            container, "k", f"{number}", type="event" if number % 4 == 0 else "entity", text="x" * 9000
        )
    budget = Budget(100_000_000, leases=lambda: 1)
    whole = budget.free
    pages = [
        page async for page in _pages(container, budget, wanted=lambda document: document["type"] == "event")
    ]

    assert 10 == sum(len(page.documents) for page in pages)
    assert 30 == sum(page.dropped for page in pages)
    assert 10 * 9000 <= whole - budget.free <= 10 * 9200
    pages.clear()
    assert whole == budget.free


async def test_the_memory_budget_uses_the_page_size_that_an_adapter_reports():
    container = MemoryContainer()
    for number in range(10):
        await _write(container, "k", f"{number}")

    class Telling(Asked):
        async def read_page(self, feed_range: FeedRange, **kwargs: Any) -> ChangePage:
            return replace(await super().read_page(feed_range, **kwargs), size=1_000_000)

    budget = Budget(100_000_000, leases=lambda: 1)
    whole = budget.free
    pages = [page async for page in _pages(Telling(container), budget)]

    assert 1_000_000 == whole - budget.free
    assert 10 == len(pages[0].documents)


async def test_a_halted_lease_that_takes_the_whole_memory_budget_stops_no_other_lease():
    world = World(ranges=8)
    for number in range(400):
        await _write(world.container, f"key-{number % 40}", f"{number}", n=number, text="x" * 10_000)
    held: list[ChangeBatch] = []
    arrived: list[int] = []

    async def handler(batch: ChangeBatch) -> None:
        if not held or held[0].lease == batch.lease:
            held.append(batch)
            await asyncio.Event().wait()
        arrived.extend(document["n"] for document in batch.documents)

    # A single page of the halted lease is larger than the whole memory budget (`memory_bytes`).
    feed = Asked(world.container)
    world.start("a", feed=feed, handler=handler, memory_bytes=50_000 * MEMORY_OF_A_BYTE)
    await world.until(lambda: bool(held))
    (stuck,) = [lease for lease in await world.all_leases() if lease.id == held[0].lease]
    others = {
        document["n"]
        for document in world.container.documents()
        if not (stuck.range and _inside(stuck.range, document["partitionKey"]))
    }
    seconds = await world.until(lambda: set(arrived) >= others)

    assert len(others) > 200
    assert seconds < 60
    assert len(arrived) == len(set(arrived))
    await world.kill("a")


def _inside(feed_range: FeedRange, key: str) -> bool:
    return feed_range.min <= effective_partition_key(key) < feed_range.max


async def test_the_pages_of_all_leases_fit_the_memory_budget_while_all_handlers_hang():
    world = World(ranges=16)
    for number in range(3200):
        await _write(world.container, f"key-{number}", f"{number}", n=number, text="x" * 5_000)
    at_hand: dict[str, ChangeBatch] = {}

    async def handler(batch: ChangeBatch) -> None:
        at_hand[batch.lease] = batch
        await asyncio.Event().wait()

    budget_bytes = 2_000_000
    feed = Asked(world.container, read_seconds=0.02)
    world.start("a", feed=feed, handler=handler, memory_bytes=budget_bytes * MEMORY_OF_A_BYTE)
    await world.until(lambda: len(at_hand) == 16)
    await asyncio.sleep(60)

    # Only this test's documents have a text. Pages of other tests may still be alive, because their errors refer to them.
    documents = [document for page in _alive_pages() for document in page.documents if "text" in document]
    assert 16 * 5_000 < sum(len(document["text"]) for document in documents) <= budget_bytes
    await world.kill("a")


def _alive_pages() -> list[ChangePage]:
    gc.collect()
    return [found for found in gc.get_objects() if isinstance(found, ChangePage)]


async def _reads_during_the_first_page(world: World, feed: Asked, **options: Any) -> int:
    at_hand, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_: ChangeBatch) -> None:
        at_hand.set()
        await go_on.wait()

    world.start("a", feed=feed, handler=handler, max_items=2, **options)
    await at_hand.wait()
    await asyncio.sleep(60)
    reads = len(feed.asked)
    go_on.set()
    await world.stop_all()
    return reads


async def test_the_next_page_is_read_ahead_only_if_the_budget_has_room():
    reads = []
    for memory_bytes in (20_000 * MEMORY_OF_A_BYTE, 2_000_000 * MEMORY_OF_A_BYTE):
        world = World()
        for number in range(20):
            await _write(world.container, "k", f"{number}", n=number, text="x" * 15_000)
        feed = Asked(world.container)
        reads.append(await _reads_during_the_first_page(world, feed, memory_bytes=memory_bytes))

    assert [1, 2] == reads


class Unsaid(Asked):
    """A feed that does not say which change of a range is the newest."""

    async def read_page(self, *arguments: Any, **options: Any) -> ChangePage:
        return replace(await super().read_page(*arguments, **options), latest_lsn=None)


@pytest.mark.parametrize(("feed_of", "changes", "reads"), [(Asked, 2, 1), (Asked, 3, 2), (Unsaid, 2, 2)])
async def test_nothing_is_read_ahead_after_a_page_that_is_known_to_be_the_last(
    feed_of: type[Asked], changes: int, reads: int
):
    world = World()
    for number in range(changes):
        await _write(world.container, "k", f"{number}", n=number)

    assert reads == await _reads_during_the_first_page(world, feed_of(world.container))


async def test_unwanted_changes_are_skipped_without_a_pause():
    """The test also checks that the skipped changes count as handled in the records, in the lag and in the saved position."""
    world = World()
    records: list[Record] = []
    for number in range(1000):
        await _write(world.container, "k", f"{number}", n=number)
    processor = world.start(
        "a", wanted=lambda document: document["n"] >= 990, max_items=1, hooks=[records.append]
    )
    seconds = await world.until(lambda: len(world.handled["k"]) == 10)
    await asyncio.sleep(10)

    assert seconds < 2  # a pause after each page would take longer
    assert list(range(990, 1000)) == world.handled["k"]
    handled = [record for record in records if isinstance(record, PageHandled)]
    assert 1000 == sum(record.changes for record in handled)
    assert list(range(999, -1, -1)) == [record.lag for record in handled]
    assert ['"1000"'] == [lease.continuation for lease in await world.all_leases()]
    assert [0] == [status.lag for status in processor.status()]
    await world.stop_all()


async def test_filtered_changes_after_the_last_handled_change_do_not_count_as_lag():
    world = World()
    records: list[Record] = []
    for number in range(20):
        await _write(world.container, "k", f"{number}", n=number)
    world.start("a", wanted=lambda document: document["n"] == 3, hooks=[records.append])
    await world.until(lambda: bool(world.handled["k"]))
    await asyncio.sleep(1)

    (page,) = [record for record in records if isinstance(record, PageHandled)]
    assert (20, 0) == (page.changes, page.lag)
    await world.stop_all()


async def test_the_memory_of_a_halted_page_is_freed_once_the_page_is_handled():
    world = World()
    alarms: list[Record] = []
    await world.write_many(50)
    broken = True

    async def handler(batch: ChangeBatch) -> None:
        if broken:
            raise RuntimeError("down")
        await world.handle(batch)

    processor = world.start("a", handler=handler, halt_after_attempts=2)
    await asyncio.sleep(600)
    broken = False
    gc.disable()  # the memory must become free without the garbage collector
    try:
        await world.until(world.all_handled)
        await asyncio.sleep(5)
        assert processor._owned._worker.budget._taken == 0
    finally:
        gc.enable()
    assert not alarms
    await world.stop_all()
