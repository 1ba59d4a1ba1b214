"""
Splits and merges: as in .NET, child leases replace the lease of a range that no longer exists, even if a worker crashes between the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from cosmos_outbox.adapters.memory.leases import MemoryLeases
from cosmos_outbox.changefeed import CloseReason
from cosmos_outbox.changefeed.leases import Lease, from_document, new_lease
from cosmos_outbox.changefeed.splits import children_of, to_identify, write_children
from cosmos_outbox.errors import AccessDenied, LeaseLost, PreconditionFailed, RangeGone
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.records import LeasesBalanced, Record
from tests.support.changefeed_world import Faulty, World, ended


def physical(*bounds: tuple[str, str, str]) -> dict[FeedRange, str]:
    return {FeedRange(min=low, max=high): i for i, low, high in bounds}


def children(
    lease: Lease, ids: dict[FeedRange, str], *, others: Sequence[Lease] = ()
) -> tuple[Lease, ...] | None:
    needed = to_identify(lease, lease.range, list(ids), others)
    reported = {feed_range: ids[feed_range] for feed_range in needed}
    return children_of(lease, lease.range, list(ids), ids=reported, others=others)


def parent(token: str, low: str, high: str, *, version: int = 0) -> Lease:
    return new_lease(
        "p",
        token,
        FeedRange(min=low, max=high),
        version=version,
        continuation='"7"',
        properties={"start": "beginning"},
    )


@pytest.mark.parametrize(
    ("lease", "ranges", "expected"),
    [
        pytest.param(
            parent("0", "", "80"),
            physical(("3", "", "40"), ("4", "40", "80"), ("1", "80", "FF")),
            [("3", 0, "", "40"), ("4", 0, "40", "80")],
            id="split of a version 0 lease",
        ),
        pytest.param(
            parent("0", "", "80"),
            physical(("5", "", "FF")),
            [("-80", 1, "", "80")],
            id="merge: a version 1 lease of the parent's own range",
        ),
        pytest.param(
            parent("-80", "", "80", version=1),
            physical(("6", "", "20"), ("7", "20", "FF")),
            [("-20", 1, "", "20"), ("20-80", 1, "20", "80")],
            id="split of a version 1 lease, never wider than the parent",
        ),
        pytest.param(
            parent("0", "", "40"),
            physical(("3", "", "30"), ("4", "30", "80")),
            [("3", 0, "", "30"), ("30-40", 1, "30", "40")],
            id="merged with its neighbour, then split elsewhere: no child reaches into the neighbour's range",
        ),
        pytest.param(parent("-80", "", "80", version=1), physical(("5", "", "FF")), None, id="nothing to do"),
        pytest.param(parent("0", "", "80"), physical(("0", "", "80")), None, id="a passing fault"),
    ],
)
def test_a_split_or_merge_gives_a_lease_the_same_children_as_dotnet(
    lease: Lease, ranges: dict[FeedRange, str], expected: list[tuple[str, int, str, str]]
):
    made = children(lease, ranges)

    assert (made is None) == (expected is None)
    made, expected = made or (), expected or []
    assert expected == [(c.token, c.version, c.range.min, c.range.max) for c in made if c.range]
    assert all((c.continuation, c.properties) == ('"7"', {"start": "beginning"}) for c in made)
    assert all(c.id == f"p..{c.token}" for c in made)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([parent("3", "", "40")], [("4", 0)], id="one child is missing"),
        pytest.param([parent("3", "", "40"), parent("4", "40", "80")], [], id="only the parent is to go"),
        pytest.param([parent("-80", "", "80", version=1)], [], id="replaced at a merge, and split since"),
        pytest.param([parent("-20", "", "20", version=1)], [("20-40", 1), ("4", 0)], id="a slice is there"),
        pytest.param([parent("1", "80", "FF")], [("3", 0), ("4", 0)], id="a neighbour does not count"),
    ],
)
def test_a_half_finished_split_gets_only_its_missing_children(
    others: list[Lease], expected: list[tuple[str, int]]
):
    lease = parent("0", "", "80")
    ranges = physical(("3", "", "40"), ("4", "40", "80"), ("1", "80", "FF"))
    made = children(lease, ranges, others=[lease, *others])

    assert made is not None
    assert expected == [(child.token, child.version) for child in made]


async def test_a_range_that_splits_before_its_first_read_is_read_from_its_start():
    world = World()
    await world.write_many(20)
    world.start("a")
    await asyncio.sleep(0.01)  # the lease exists, but no position was saved yet
    world.container.split("0")
    await world.until(world.all_handled)
    await world.stop_all()

    assert world.first_copies_in_order()


@pytest.mark.parametrize("refused", ["create", "delete"])
async def test_a_split_that_cannot_be_finished_is_retried_at_each_balancing_pass(refused: str):
    world, records = World(), list[Record]()
    store = Faulty(world.leases)
    await world.write_many(20)
    world.start("a", leases=store, hooks=[records.append])
    await world.until(world.all_handled)
    store.failing[refused] = AccessDenied
    world.container.split("0")
    await world.until(lambda: store.calls[refused] > 0)
    store.calls.clear()
    await asyncio.sleep(130)  # ten passes

    assert 8 <= store.calls[refused] <= 12
    assert store.calls.total() < 10 * 12
    reported = [
        record for record in records if isinstance(record, LeasesBalanced) and record.outcome == "failed"
    ]
    assert 8 <= len(reported) <= 14
    assert all(isinstance(record.error, AccessDenied) for record in reported)

    store.failing.clear()
    await world.write_many(20)
    await world.until(world.all_handled)
    await asyncio.sleep(30)
    assert {"1", "2"} == {lease.token for lease in await world.all_leases()}
    await world.stop_all()
    assert world.first_copies_in_order()


async def test_a_range_that_returns_410_without_a_split_is_not_polled_in_a_hot_loop():
    world = World()
    feed = Faulty(world.container)
    feed.failing["read_page"] = RangeGone
    world.start("a", feed=feed)
    await asyncio.sleep(130)

    assert 8 <= feed.calls["read_page"] <= 13
    feed.failing.clear()
    await world.write_many(5)
    await world.until(world.all_handled)
    await world.stop_all()


async def test_the_child_leases_of_a_split_are_taken_at_once():
    world = World()
    world.start("a")
    await asyncio.sleep(20)
    world.container.split("0")
    await world.write_many(20)

    assert await world.until(world.all_handled) < 3
    await world.stop_all()


@pytest.mark.parametrize(
    ("writes", "left"), [(0, {"0"}), (1, {"0", "1"}), (2, {"0", "1", "2"}), (3, {"1", "2"})]
)
async def test_a_split_writes_nothing_once_the_parent_lease_may_be_taken(writes: int, left: set[str]):
    store = MemoryLeases()
    lease = from_document(await store.create(parent("0", "", "FF").raw))
    ranges = physical(("1", "", "80"), ("2", "80", "FF"))
    made = children(lease, ranges)
    assert made
    steps = 0

    def trusted_for_a_while() -> None:
        nonlocal steps
        steps += 1
        if steps > writes:
            raise LeaseLost

    with suppress(LeaseLost):
        await write_children(lease, made, store, ensure_trusted=trusted_for_a_while)

    assert left == {d["LeaseToken"] for d in (await store.list("p")).documents}


async def test_a_stop_does_not_wait_for_a_split_that_hangs():
    world = World()
    feed = Faulty(world.container)
    world.start("a", feed=feed, grace_period=timedelta(seconds=5))
    await asyncio.sleep(20)
    feed.hanging.add("physical_ranges")
    world.container.split("0")
    before = feed.calls["physical_ranges"]
    await world.until(lambda: feed.calls["physical_ranges"] > before)
    started = asyncio.get_running_loop().time()
    await world.stop("a")

    assert asyncio.get_running_loop().time() - started <= 6
    assert {"free": 1} == await world.owners()


async def test_an_owner_gives_up_a_hanging_split_shortly_before_its_lease_expires():
    world, records = World(), list[Record]()
    feed = Faulty(world.container)
    processor = world.start("a", feed=feed, hooks=[records.append])
    await asyncio.sleep(20)
    feed.hanging.add("physical_ranges")
    world.container.split("0")
    await asyncio.sleep(60)

    (end,) = ended(records)
    assert (CloseReason.RANGE_GONE, TimeoutError) == (end.outcome, type(end.error))
    feed.hanging.clear()
    await world.write_many(20)
    await world.until(world.all_handled)
    assert ["1", "2"] == [status.token for status in processor.status()]
    await world.stop_all()


async def test_a_worker_leaves_a_split_to_the_worker_that_took_the_lease():
    world, records = World(), list[Record]()
    world.start("a", hooks=[records.append])
    await asyncio.sleep(20)
    (lease,) = await world.all_leases()
    thief = lease.with_changes(now=world.utcnow(), owner="dotnet", properties={})
    theirs = await world.leases.replace(thief.raw, etag=lease.etag or "")
    world.container.split("0")
    await asyncio.sleep(20)

    (end,) = ended(records)
    assert isinstance(end.error, LeaseLost)
    assert theirs == await world.leases.read(lease.id, lease.id)
    await world.stop_all()


async def test_child_leases_start_after_the_handled_changes_although_no_checkpoint_has_them():
    world = World()
    world.start("a", checkpoint_interval=timedelta(minutes=1))
    await world.write_many(20)
    await world.until(world.all_handled)
    world.container.split("0")
    await world.write_many(20)
    await world.until(world.all_handled)
    await world.stop_all()

    assert all(numbers == sorted(set(numbers)) for numbers in world.handled.values())


async def test_an_owner_gives_up_a_lease_when_another_program_created_its_children():
    world, records = World(ranges=2), list[Record]()
    world.start("a", hooks=[records.append])
    await world.write_many(20)
    await world.until(world.all_handled)
    await asyncio.sleep(20)
    whole, untouched = await world.all_leases()
    middle = f"1{31 * '0'}"
    # A .NET worker creates the children of a split so late that a merge has undone the split.
    for low, high in (("", middle), (middle, whole.range.max)):
        part = FeedRange(min=low, max=high)
        await world.leases.create(
            new_lease(
                whole.id.removesuffix("..0"),
                f"{low}-{high}",
                part,
                version=1,
                continuation=whole.continuation,
            ).raw
        )
    await asyncio.sleep(60)
    await world.write_many(20)
    await world.until(world.all_handled)
    await asyncio.sleep(60)

    assert {untouched.token, f"-{middle}", f"{middle}-{whole.range.max}"} == {
        lease.token for lease in await world.all_leases()
    }
    await world.stop_all()
    assert {key: [0, 1, 2, 3] for key in world.handled} == world.handled
    assert [CloseReason.HANDED_OVER, CloseReason.RANGE_GONE] == [
        record.outcome for record in ended(records) if record.lease == whole.id
    ]


async def test_a_parent_lease_that_another_worker_took_is_not_deleted():
    store = MemoryLeases()
    lease = from_document(await store.create(parent("0", "", "FF").raw))
    thief = lease.with_changes(now=datetime.now(UTC), owner="dotnet", continuation='"9"')
    theirs = await store.replace(thief.raw, etag=lease.etag or "")
    made = children(lease, physical(("1", "", "80"), ("2", "80", "FF")))
    assert made

    with pytest.raises(PreconditionFailed):
        await write_children(lease, made, store, ensure_trusted=lambda: None)
    assert theirs == await store.read(lease.id, lease.id)


async def test_after_a_merge_the_leases_cover_the_new_range_without_overlap():
    world = World(ranges=2)
    world.start("a")
    await world.write_many(100)
    await world.until(world.all_handled)
    world.container.merge("0", "1")
    await world.write_many(100)
    await world.until(world.all_handled)
    await asyncio.sleep(30)

    leases = await world.all_leases()
    await world.stop_all()
    assert [1, 1] == [lease.version for lease in leases]
    assert world.first_copies_in_order()
