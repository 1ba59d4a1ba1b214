"""
The change feed processor, with containers in memory and in virtual time: what a user of `ChangeFeedProcessor` may rely on.
"""

from __future__ import annotations

import asyncio
import inspect
import textwrap
from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from cosmos_outbox import changefeed
from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeBatch, ChangePage, Document, StartFrom
from cosmos_outbox.records import PageHandled, Record
from tests.support.changefeed_world import Faulty, World


async def test_the_example_in_the_docstring_of_the_processor_runs(capsys):
    world = World(ranges=4)
    await world.write("k")
    code = inspect.cleandoc(ChangeFeedProcessor.__doc__ or "").partition("\n\n")[2].partition("\nArgs:")[0]
    names = {**vars(changefeed), "MemoryContainer": lambda **_: world.container, "MemoryLeases": MemoryLeases}
    indented = textwrap.indent(textwrap.dedent(code), "    ")
    exec(f"async def example():\n{indented}", {**names, "ChangeBatch": ChangeBatch}, names)  # noqa: S102 - the claim
    await names["example"]()

    assert "k-0\n" == capsys.readouterr().out


async def test_a_stop_saves_positions_and_releases_every_lease():
    world = World(ranges=3)
    world.start("a", checkpoint_interval=timedelta(minutes=5))
    for _ in range(2):  # the worker saves the first position at once, later ones when it stops
        await world.write_many(100)
        await world.until(world.all_handled)
    await world.stop("a")

    assert {"free": 3} == await world.owners()

    world.start("b")
    await asyncio.sleep(30)
    await world.stop_all()
    assert all(len(numbers) == len(set(numbers)) for numbers in world.handled.values())


@pytest.mark.parametrize("phase", range(0, 17, 4))
async def test_leases_of_a_killed_worker_are_taken_as_soon_as_they_expire(phase: int):
    world = World(ranges=4)
    world.start("a")
    world.start("b")
    await asyncio.sleep(60 + phase)
    await world.kill("a")
    await world.write_many(200)
    seconds = await world.until(world.all_handled)

    assert {"b": 4} == await world.owners()
    # A lease expires after 60 s. Cosmos DB rounds the time of its last write to a second. The worker's pause of 13 s before it looks for
    # free leases may be a tenth longer. 0.5 s are to spare.
    assert seconds < 60 + 1 + 1.3 + 0.5
    await world.stop_all()
    assert world.first_copies_in_order()


async def test_a_new_worker_does_not_delay_the_takeover_of_a_killed_workers_leases():
    world = World(ranges=4)
    world.start("a")
    b = world.start("b")
    await asyncio.sleep(60)
    await world.kill("a")
    await asyncio.sleep(30)
    c = world.start("c")
    seconds = await world.until(lambda: len(b.status()) + len(c.status()) == 4)

    assert 30 + seconds < 60 + 13 * 1.1 + 1
    await world.stop_all()


async def test_a_worker_takes_up_to_eight_leases_at_a_time():
    class Slow(Faulty):
        async def replace(self, document: Document, *, etag: str) -> Document:
            self.calls["at once"] += 1
            self.most = max(self.most, self.calls["at once"])
            await asyncio.sleep(0.5)
            self.calls["at once"] -= 1
            return await world.leases.replace(document, etag=etag)

        most = 0

    world = World(ranges=80)
    world.start("a")
    await asyncio.sleep(30)
    await world.stop("a")

    leases = Slow(world.leases)
    b = world.start("b", leases=leases)
    assert await world.until(lambda: len(b.status()) == 80) < 80 / 8 * 0.5 + 0.5
    assert 8 == leases.most
    await world.stop_all()


@pytest.mark.parametrize("error", [TypeError, ValueError, RecursionError])
async def test_a_range_whose_reads_raise_unexpected_errors_stops_no_other_range(
    error: type[Exception],
):
    """The faulty range goes on when its reads succeed again."""
    world, spoiled = World(ranges=4), True

    class Nonsense(Faulty):
        async def read_page(self, feed_range: FeedRange, **how: Any) -> ChangePage:
            if spoiled and feed_range.min == "":
                raise error
            return await world.container.read_page(feed_range, **how)

    processor = world.start("a", feed=Nonsense(world.container))
    await world.write_many(100)
    await asyncio.sleep(90)
    stalled = [one for one in processor.status(stalled_after=timedelta(minutes=1)) if one.stalled]
    assert [error.__name__] == [(one.error or "").partition(":")[0] for one in stalled]
    assert 0 < sum(map(len, world.handled.values())) < 100

    spoiled = False
    await world.until(world.all_handled)
    await world.stop_all()

    assert {f"key-{i}": list(range(10)) for i in range(10)} == world.handled


async def test_a_page_that_is_shorter_when_read_again_loses_no_change():
    world, short = World(), [False]
    for _ in range(6):
        await world.write("k")

    class Shorter(Faulty):
        async def read_page(self, feed_range: FeedRange, *, max_items: int, **how: Any) -> ChangePage:
            most = 2 if short[0] else max_items
            return await world.container.read_page(feed_range, max_items=most, **how)

    async def handle(batch: ChangeBatch) -> None:
        if len(batch.documents) > 2:
            short[0] = True
            raise RuntimeError("the page is too long")
        await world.handle(batch)

    world.start("a", feed=Shorter(world.container), handler=handle, halt_after_attempts=3)
    await world.until(world.all_handled)
    await world.stop_all()

    assert {"k": [0, 1, 2, 3, 4, 5]} == world.handled


async def test_a_record_of_a_handled_page_has_the_lag_that_remains():
    world, records = World(), list[Record]()
    await world.write_many(10)
    world.start("a", hooks=[records.append], max_items=5)
    await world.until(world.all_handled)
    await world.stop_all()

    assert [5, 0] == [record.lag for record in records if isinstance(record, PageHandled)]


async def test_a_worker_lists_leases_more_often_while_it_waits_for_a_handover():
    world = World(ranges=2)

    async def hang(_: ChangeBatch) -> None:
        await asyncio.Event().wait()

    await world.write_many(20)
    world.start("a", handler=hang, grace_period=timedelta(minutes=10))
    await asyncio.sleep(20)
    store = Faulty(world.leases)
    world.start("b", leases=store)
    await asyncio.sleep(1)
    store.calls.clear()
    await asyncio.sleep(130)

    assert 35 <= store.calls["list"] <= 45
    await world.kill("a")
    await world.stop_all()


async def test_the_first_position_of_an_idle_range_is_saved_at_once():
    """After that, the worker writes the lease only to renew it."""
    world = World()
    store = Faulty(world.leases)
    world.start("a", leases=store)
    await asyncio.sleep(1)

    (lease,) = await world.all_leases()
    assert '"0"' == lease.continuation
    store.calls.clear()
    await asyncio.sleep(170)
    assert 9 <= store.calls["replace"] <= 11
    await world.stop_all()


async def test_a_worker_with_many_idle_leases_polls_each_lease_less_often():
    world = World(ranges=300)
    feed = Faulty(world.container)
    processor = world.start("a", feed=feed)
    await world.until(lambda: len(processor.status()) == 300)
    await asyncio.sleep(5)

    before = feed.calls["read_page"]
    await asyncio.sleep(6)

    assert 1400 <= feed.calls["read_page"] - before <= 1600
    await world.stop_all()


async def test_polls_of_idle_leases_are_sent_in_groups():
    """The worker wakes up less often, and each lease is still polled at its own interval."""
    world, reads, chance = World(ranges=40), defaultdict[FeedRange, list[float]](list), Random(1)

    class Distant(Faulty):
        async def read_page(self, feed_range: FeedRange, **how: Any) -> ChangePage:
            reads[feed_range].append(asyncio.get_running_loop().time())
            await asyncio.sleep(chance.uniform(0, 0.03))
            return await world.container.read_page(feed_range, **how)

    processor = world.start("a", feed=Distant(world.container))  # type: ignore[arg-type] # it looks like one
    await world.until(lambda: len(processor.status()) == 40)
    await asyncio.sleep(5)
    reads.clear()
    await asyncio.sleep(10)

    assert 10 * 20 >= len({round(moment, 3) for moments in reads.values() for moment in moments})
    between = [after - before for moments in reads.values() for before, after in pairwise(moments)]
    assert 0.95 < min(between) <= max(between) < 1.03
    await world.stop_all()


async def test_a_range_is_polled_less_often_while_it_has_no_changes():
    world = World()
    feed = Faulty(world.container)
    world.start("a", feed=feed, max_poll_interval=timedelta(seconds=60))
    await asyncio.sleep(600)
    feed.calls.clear()
    await asyncio.sleep(600)
    assert 9 <= feed.calls["read_page"] <= 11

    await world.write("k")
    await world.until(world.all_handled)
    await world.write("k")
    assert await world.until(world.all_handled) < 1
    await world.stop_all()


async def test_a_new_lease_without_changes_is_polled_at_most_five_times_in_its_first_second():
    world = World()
    feed = Faulty(world.container)
    processor = world.start("a", feed=feed)
    await world.until(lambda: len(processor.status()) == 1)
    await asyncio.sleep(1)

    assert 2 <= feed.calls["read_page"] <= 5
    await world.stop_all()


@pytest.mark.parametrize(
    ("silence", "pause"), [(2, 0.075), (7, 0.075), (10, 0.1), (30, 0.3), (90, 0.9), (300, 1)]
)
async def test_the_pause_between_polls_grows_with_the_time_without_changes(silence: float, pause: float):
    world = World()
    feed = Faulty(world.container)
    world.start("a", feed=feed)
    await world.write("k")
    await world.until(world.all_handled)
    await asyncio.sleep(silence)
    feed.calls.clear()
    await asyncio.sleep(10 * pause)

    assert 8 <= feed.calls["read_page"] <= 11
    await world.stop_all()


async def test_a_range_with_regular_changes_is_polled_about_four_times_per_change():
    world = World()
    feed = Faulty(world.container)
    world.start("a", feed=feed)
    for number in range(20):
        if number == 10:
            feed.calls.clear()
        await world.write("k")
        await asyncio.sleep(0.2)

    assert 35 <= feed.calls["read_page"] <= 45
    await world.stop_all()


@pytest.mark.parametrize(("gap", "last"), [(0.02, 0.025), (10, 0.015)])
async def test_a_change_soon_after_another_waits_for_a_short_pause(gap: float, last: float):
    """
    After changes that come every 20 ms, or that end a silence, the next change waits for at most 10 ms, also if it is a little late.
    """
    world, loop = World(), asyncio.get_running_loop()
    handled_at: list[float] = []

    async def handler(_: ChangeBatch) -> None:
        handled_at.append(loop.time())

    world.start("a", handler=handler)
    for pause in (*[gap] * 10, last):
        await asyncio.sleep(pause)
        await world.write("k")
        written_at = loop.time()
    await asyncio.sleep(1)

    assert round(handled_at[-1] - written_at, 6) <= 0.01
    await world.stop_all()


async def test_an_unwanted_change_does_not_make_a_worker_poll_more_often():
    reads = []
    for writes in (["k"], ["k", "unwanted"]):
        world = World()
        feed = Faulty(world.container)
        world.start("a", feed=feed, wanted=lambda document: document["partitionKey"] == "k")
        for _ in range(10):
            for key in writes:
                await world.write(key)
                await asyncio.sleep(0.9 / len(writes))
        reads.append(feed.calls["read_page"])
        await world.stop_all()

    few, more = reads
    assert few <= 9 * 25
    assert few <= more <= few + 2 * 10  # the unwanted change itself, and the read behind it


async def test_a_stop_cancels_a_handler_after_the_grace_period():
    world = World()
    started = asyncio.Event()

    async def endless(batch: ChangeBatch) -> None:
        started.set()
        await asyncio.sleep(10_000)

    await world.write_many(1)
    world.start("a", handler=endless, grace_period=timedelta(seconds=5))
    await started.wait()
    before = asyncio.get_running_loop().time()
    await world.stop("a")

    assert asyncio.get_running_loop().time() - before == pytest.approx(5, abs=0.1)
    (lease,) = await world.all_leases()
    assert (None, None) == (lease.owner, lease.continuation)


async def test_start_from_now_skips_only_changes_before_the_first_start():
    world = World()
    await world.write("old")
    await asyncio.sleep(10)
    world.start("a", start=StartFrom.NOW)
    await asyncio.sleep(1)
    await world.write("new")
    await world.until(lambda: "new" in world.handled)
    await world.stop_all()

    assert {"new": [0]} == world.handled


def test_processor_options_report_every_mistake_at_once():
    with pytest.raises(ConfigurationError) as caught:
        ProcessorOptions(
            processor_name="",
            instance_name=" ",
            start=datetime(2026, 11, 21),  # noqa: DTZ001 - the mistake
            max_items=0,
            renew_interval=timedelta(seconds=50),
            min_poll_interval=timedelta(0),
            checkpoint_interval=timedelta(seconds=-1),
        )

    words = (
        "processor_name", "instance_name", "start", "max_items", "renew_interval", "min_poll_interval",
        "checkpoint_interval",
    )  # fmt: skip
    for word in words:
        assert f"{word} must" in str(caught.value)
