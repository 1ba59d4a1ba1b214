"""
Bootstrap: the first worker creates the leases of a container. Later, workers create missing leases again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed.bootstrap import LOCK_SECONDS, create_leases
from cosmos_outbox.changefeed.leases import new_lease, start_of
from cosmos_outbox.changefeed.range_coverage import EVERY_KEY, find_gaps
from cosmos_outbox.errors import AccessDenied, ConfigurationError, RangeGone, StoreUnavailable
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import StartFrom
from tests.support.changefeed_world import Faulty, World, virtual_seconds, virtual_utcnow

PREFIX = "pmemory_AAAAAA==_AAAAAIAAAAA="


async def run(world: World) -> None:
    await create_leases(PREFIX, feed=world.container, store=world.leases, start=StartFrom.BEGINNING)


async def ids(world: World) -> list[str]:
    return sorted(d["id"].removeprefix(PREFIX) for d in (await world.leases.list("p")).documents)


async def test_bootstrap_writes_a_lock_and_an_info_document_as_dotnet_does():
    """The document `….info` tells later workers that the leases exist, and from where they read the feed."""
    seen: list[dict[str, object]] = []

    class Spying(MemoryLeases):
        async def create(self, document):
            seen.append(dict(document))
            return await super().create(document)

    world = World()
    world.leases = Spying(now=virtual_seconds)
    await run(world)

    assert {"id": f"{PREFIX}.lock", "ttl": 30} == seen[0]
    assert {"id": f"{PREFIX}.info", "start": "beginning"} == seen[-1]


async def test_lease_documents_have_their_id_as_the_value_of_the_partition_key_property():
    world = World(ranges=2)
    world.leases = MemoryLeases(now=virtual_seconds, by_id=False)
    await run(world)

    documents = (await world.leases.list("p")).documents
    assert [d["id"] for d in documents] == [d["partitionKey"] for d in documents]


async def test_bootstrap_removes_a_crashed_worker_s_lock_that_has_no_time_to_live():
    class WithoutTtl(MemoryLeases):
        async def create(self, document):
            return await super().create({name: value for name, value in document.items() if name != "ttl"})

    world = World()
    world.leases = WithoutTtl(now=virtual_seconds)
    await world.leases.create({"id": f"{PREFIX}.lock"})
    started = asyncio.get_running_loop().time()
    await run(world)

    assert ["..0", ".info"] == await ids(world)
    assert asyncio.get_running_loop().time() - started >= 2 * LOCK_SECONDS


async def test_bootstrap_waits_until_another_worker_deletes_its_lock():
    world = World()
    await world.leases.create({"id": f"{PREFIX}.lock"})
    task = asyncio.ensure_future(run(world))
    await asyncio.sleep(10)
    assert not task.done()

    await world.leases.delete(f"{PREFIX}.lock", f"{PREFIX}.lock")
    await asyncio.wait_for(task, 5)


async def test_a_worker_that_was_frozen_during_bootstrap_lists_ranges_and_leases_again():
    frozen = asyncio.Event()

    class Freezing(MemoryLeases):
        async def create(self, document):
            created = await super().create(document)
            if document["id"].endswith("..0") and not frozen.is_set():
                frozen.set()
                await asyncio.sleep(300)
            return created

    world = World(ranges=2)
    world.leases = Freezing(now=virtual_seconds)
    sleeper = asyncio.create_task(run(world))
    await frozen.wait()
    await run(world)
    world.container.split("1")
    await world.leases.delete(f"{PREFIX}..1", f"{PREFIX}..1")
    await run(world)
    expected = await ids(world)
    await sleeper

    assert ["..0", "..2", "..3", ".info"] == expected == await ids(world)


async def test_bootstrap_creates_the_leases_although_listing_the_ranges_outlasts_its_lock():
    world = World(ranges=3)
    looks = 0

    class Slow:
        def __getattr__(self, name):
            return getattr(world.container, name)

        async def physical_ranges(self):
            nonlocal looks
            looks += 1
            await asyncio.sleep(2 * LOCK_SECONDS)
            return await world.container.physical_ranges()

    await create_leases(PREFIX, feed=Slow(), store=world.leases, start=StartFrom.BEGINNING)

    assert (1, ["..0", "..1", "..2", ".info"]) == (looks, await ids(world))


@pytest.mark.parametrize(
    ("leases", "missing"),
    # The leases (token, bounds and version), and the bounds of the parts of the two physical ranges that have no lease
    [
        ([], [("", "80"), ("80", "FF")]),
        ([("0", "", "80", 0)], [("80", "FF")]),
        ([("9", "", "FF", 0)], []),  # the lease of range 9, which was split, covers both new ranges
        ([("-40", "", "40", 1), ("40-80", "40", "80", 1)], [("80", "FF")]),
        ([("-40", "", "40", 1), ("60-FF", "60", "FF", 1)], [("40", "60")]),  # no lease from 40 to 60
        ([("20-40", "20", "40", 1), ("1", "80", "FF", 0)], [("", "20"), ("40", "80")]),
    ],
)
def test_find_gaps_returns_the_parts_of_physical_ranges_without_a_lease(leases, missing):
    physical = [
        FeedRange(min="", max="80"),
        FeedRange(min="80", max="FF"),
    ]
    found = [new_lease("p", token, FeedRange(min=low, max=high), version=v) for token, low, high, v in leases]

    assert missing == [(gap.min, gap.max) for gap in find_gaps(physical, found)]


async def test_bootstrap_refuses_an_unknown_document_among_the_leases():
    world = World()
    await world.leases.create({"id": f"{PREFIX}..stranger"})

    with pytest.raises(ConfigurationError, match="stranger"):
        await run(world)


async def test_a_worker_that_waits_for_the_bootstrap_lock_stops_at_once():
    world = World()
    await world.leases.create({"id": f"{PREFIX}.lock"})
    world.start("a")
    await asyncio.sleep(5)
    started = asyncio.get_running_loop().time()
    await world.stop("a")

    assert asyncio.get_running_loop().time() - started < timedelta(seconds=1).total_seconds()


async def run_on(world: World, feed: Faulty) -> None:
    await create_leases(
        PREFIX,
        feed=feed,  # type: ignore[arg-type] - it has every method
        store=world.leases,
        start=StartFrom.BEGINNING,
    )


async def test_bootstrap_deletes_its_lock_after_a_fault():
    world = World()
    feed = Faulty(world.container)
    feed.failing["physical_ranges"] = StoreUnavailable
    with pytest.raises(StoreUnavailable):
        await run_on(world, feed)

    assert [] == await ids(world)


async def test_bootstrap_deletes_its_lock_after_a_cancellation():
    world = World()
    feed = Faulty(world.container)
    feed.hanging.add("physical_ranges")
    task = asyncio.create_task(run_on(world, feed))
    await world.until(lambda: feed.calls["physical_ranges"] > 0)
    assert [".lock"] == await ids(world)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [] == await ids(world)


async def test_bootstrap_does_not_delete_the_lock_of_another_worker():
    world = World()
    feed = Faulty(world.container)
    feed.hanging.add("physical_ranges")
    task = asyncio.create_task(run_on(world, feed))
    await world.until(lambda: feed.calls["physical_ranges"] > 0)
    await world.leases.delete(f"{PREFIX}.lock", f"{PREFIX}.lock")
    theirs = await world.leases.create({"id": f"{PREFIX}.lock"})
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert theirs == await world.leases.read(f"{PREFIX}.lock", f"{PREFIX}.lock")


async def test_a_worker_retries_bootstrap_after_a_fault_with_a_short_back_off():
    world = World()
    feed = Faulty(world.container)
    feed.failing["physical_ranges"] = StoreUnavailable
    await world.write("k")
    world.start("a", feed=feed)
    await world.until(lambda: feed.calls["physical_ranges"] > 0)
    feed.failing.clear()

    assert await world.until(world.all_handled) < 2
    await world.stop_all()


async def test_bootstrap_succeeds_if_another_worker_wrote_the_marker_first():
    class Overtaken(MemoryLeases):
        async def create(self, document):
            if document["id"].endswith("..0"):
                await super().create({"id": f"{PREFIX}.info"})
            return await super().create(document)

    world = World()
    world.leases = Overtaken(now=virtual_seconds)
    await run(world)

    assert ["..0", ".info"] == await ids(world)


async def test_a_worker_stops_in_time_although_its_bootstrap_lock_cannot_be_deleted():
    world = World()
    feed, store = Faulty(world.container), Faulty(world.leases)
    feed.hanging.add("physical_ranges")
    store.hanging.add("delete")
    world.start("a", feed=feed, leases=store)
    await world.until(lambda: feed.calls["physical_ranges"] > 0)
    started = asyncio.get_running_loop().time()
    await world.stop("a")

    assert asyncio.get_running_loop().time() - started < 6


async def test_a_processor_without_access_to_its_container_ends_at_the_start():
    world = World()
    feed = Faulty(world.container)
    feed.failing["describe"] = AccessDenied
    world.start("a", feed=feed)
    with pytest.raises(AccessDenied):
        await asyncio.wait_for(world.workers.pop("a")[1], 60)


async def test_a_worker_lists_ranges_again_if_a_split_interrupted_the_listing():
    """A split interrupts the listing once while the worker starts, and once while the worker balances its leases."""
    world = World()
    await run(world)
    await world.forget_ranges()

    class Splitting(Faulty):
        async def physical_ranges(self):
            self.calls["physical_ranges"] += 1
            if self.calls["physical_ranges"] in (1, 3):
                raise RangeGone
            return await world.container.physical_ranges()

    feed = Splitting(world.container)
    await world.write("k")
    world.start("a", feed=feed)
    await world.until(world.all_handled)
    await world.stop_all()

    assert 4 == feed.calls["physical_ranges"]


async def test_a_deleted_lease_is_created_again_after_its_owner_stopped_using_it():
    world = World(ranges=3)
    world.start("a")
    world.start("b")
    await world.write_many(30)
    await asyncio.sleep(30)  # until both workers have started, because a start creates missing leases at once
    deleted = (await world.all_leases())[1]
    await world.leases.delete(deleted.id, deleted.id)
    gone_at = asyncio.get_running_loop().time()
    await asyncio.sleep(20)  # until the owner tries to renew the deleted lease, and notices the deletion
    await world.write_many(30)
    await world.until(world.all_handled)

    assert asyncio.get_running_loop().time() - gone_at > timedelta(seconds=60).total_seconds()
    assert ["..0", "..1", "..2", ".info"] == await ids(world)


async def test_a_failed_creation_of_a_missing_lease_is_retried_with_a_delay():
    world = World(ranges=3)
    store = Faulty(world.leases)
    world.start("a", leases=store)
    await asyncio.sleep(30)
    await world.leases.delete(f"{PREFIX}..1", f"{PREFIX}..1")
    store.failing["create"] = AccessDenied
    store.calls.clear()
    await asyncio.sleep(780)  # 60 passes

    assert 8 <= store.calls["create"] <= 13
    await world.stop_all()


async def test_a_lease_created_again_keeps_the_start_time_of_the_first_bootstrap():
    world = World(ranges=1)

    async def from_now() -> str:
        await create_leases(PREFIX, feed=world.container, store=world.leases, start=StartFrom.NOW)
        return (await world.all_leases())[0].properties["start"]

    first = await from_now()
    await world.leases.delete(f"{PREFIX}..0", f"{PREFIX}..0")
    await asyncio.sleep(3600)

    assert first == await from_now()


@pytest.mark.parametrize(
    ("first", "later"), [(StartFrom.BEGINNING, StartFrom.NOW), (StartFrom.NOW, StartFrom.BEGINNING)]
)
async def test_a_lease_created_later_has_the_start_of_the_first_leases(first: StartFrom, later: StartFrom):
    """
    The worker that creates the lease ignores its own `start`, because the `start` of the first worker may have been another.
    """
    world = World(ranges=2)
    await create_leases(PREFIX, feed=world.container, store=world.leases, start=first)
    kept, deleted = await world.all_leases()
    await world.leases.delete(deleted.id, deleted.id)
    await asyncio.sleep(3600)
    await create_leases(PREFIX, feed=world.container, store=world.leases, start=later)

    assert [kept.properties] * 2 == [lease.properties for lease in await world.all_leases()]


async def test_a_start_of_now_is_the_time_at_which_dotnet_created_its_info_document():
    world = World()
    await world.leases.create({"id": f"{PREFIX}.info"})
    created = virtual_utcnow()
    await asyncio.sleep(3600)
    await create_leases(PREFIX, feed=world.container, store=world.leases, start=StartFrom.NOW)
    (lease,) = await world.all_leases()

    assert created - timedelta(seconds=2) <= start_of(lease) <= created


async def test_new_leases_get_the_start_of_the_leases_that_a_dead_worker_created():
    class Dying(MemoryLeases):
        async def create(self, document):
            if document["id"].endswith("..1"):
                raise StoreUnavailable
            return await super().create(document)

    world = World(ranges=3)
    dying = Dying(now=virtual_seconds)
    with pytest.raises(StoreUnavailable):
        await create_leases(PREFIX, feed=world.container, store=dying, start=StartFrom.NOW)
    for document in (await dying.list("")).documents:
        await world.leases.create({name: value for name, value in document.items() if name[0] != "_"})
    (first,) = await world.all_leases()
    await asyncio.sleep(60)
    await create_leases(PREFIX, feed=world.container, store=world.leases, start=StartFrom.NOW)

    assert [first.properties] * 3 == [lease.properties for lease in await world.all_leases()]


async def test_missing_leases_begin_at_the_earliest_start_of_the_existing_leases():
    starts = []
    for _ in range(2):
        world = World(ranges=3)
        await create_leases(PREFIX, feed=world.container, store=world.leases, start=StartFrom.NOW)
        starts.append({lease.id: lease for lease in await world.all_leases()})
        await asyncio.sleep(60)
    early, late = starts
    first, second, third = sorted(early)
    stored = await world.leases.read(second, second)
    changed = stored | {"properties": dict(early[second].properties)}
    await world.leases.replace(changed, etag=stored["_etag"])
    for gone in (third, f"{PREFIX}.info"):
        await world.leases.delete(gone, gone)
    await create_leases(PREFIX, feed=world.container, store=world.leases, start=StartFrom.NOW)

    (rest,) = [lease for lease in await world.all_leases() if lease.id == third]
    assert early[second].properties == rest.properties != late[first].properties


@pytest.mark.parametrize(
    ("covered", "gaps"),
    [
        ([("", "80"), ("80", "FF")], []),
        ([("", "FF"), ("", "80")], []),  # the leases of a parent and of its first child
        ([("", "40"), ("80", "FF")], [("40", "80")]),
        ([], [("", "FF")]),
        ([("", "40"), None], []),  # None is a lease without a range, which may cover the gap
    ],
)
def test_find_gaps_returns_the_ranges_of_partition_keys_that_no_lease_covers(covered, gaps):
    leases = [
        new_lease("p", str(number), FeedRange(min=bounds[0], max=bounds[1]) if bounds else None)
        for number, bounds in enumerate(covered)
    ]

    assert gaps == [(gap.min, gap.max) for gap in find_gaps([EVERY_KEY], leases)]


@pytest.mark.parametrize("wrong_by", [90, -90, 3600])
async def test_the_time_of_start_from_now_comes_from_the_clock_of_the_service(wrong_by: int):
    world = World()
    await asyncio.sleep(10)
    world.start(
        "a",
        feed=(feed := Faulty(world.container)),
        start=StartFrom.NOW,
        utcnow=lambda: virtual_utcnow() + timedelta(seconds=wrong_by),
    )
    feed.hanging.add("read_page")
    await asyncio.sleep(2)
    await world.write("k")
    await world.kill("a")
    await asyncio.sleep(100)
    world.start("b", start=StartFrom.NOW)

    assert await world.until(world.all_handled) < 5
    await world.stop_all()


async def test_bootstrap_does_not_remove_a_stale_lock_that_was_just_renewed():
    """After this worker read the stale lock, another worker replaced it with a new lock of its own."""
    world = World()
    await world.leases.create({"id": f"{PREFIX}.lock"})
    await asyncio.sleep(3 * LOCK_SECONDS)

    class Overtaken(Faulty):
        async def delete(self, document_id, partition_key, *, etag=None):
            if not self.calls["delete"]:
                self.calls["delete"] += 1
                await world.leases.delete(document_id, partition_key)
                self.theirs = await world.leases.create({"id": document_id})
            await world.leases.delete(document_id, partition_key, etag=etag)

    store = Overtaken(world.leases)
    task = asyncio.create_task(
        create_leases(PREFIX, feed=world.container, store=store, start=StartFrom.BEGINNING)  # type: ignore[arg-type]
    )
    await asyncio.sleep(5)

    assert store.theirs == await world.leases.read(f"{PREFIX}.lock", f"{PREFIX}.lock")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_bootstrap_creates_all_leases_although_two_ranges_report_one_partition_id():
    """
    A range may report the partition id of another range during a merge, or if a gateway mixes up two answers.
    """
    world, wrong = World(ranges=3), ["0"]

    class Mixing(Faulty):
        async def partition_id(self, feed_range: FeedRange) -> str:
            found = await world.container.partition_id(feed_range)
            return wrong.pop() if wrong and found == "1" else found

    await run_on(world, Mixing(world.container))

    assert ["..0", "..1", "..2", ".info"] == await ids(world)


async def test_a_range_that_splits_during_bootstrap_does_not_delay_other_leases():
    world = World(ranges=3)

    class Splitting(Faulty):
        async def partition_id(self, feed_range: FeedRange) -> str:
            if (found := await world.container.partition_id(feed_range)) == "1":
                raise RangeGone
            return found

    await run_on(world, Splitting(world.container))

    assert ["..0", "..2", ".info"] == await ids(world)
