"""
A lease whose position is ahead of the newest LSN of its range, as after a restore of the container. No change may be skipped without an
alarm.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest

from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.changefeed.lease_ahead import (
    AHEAD,
    BEHIND,
)
from cosmos_outbox.changefeed.read_ahead import lsn_of, newest_below
from cosmos_outbox.ports import ChangePage
from cosmos_outbox.records import PositionAhead, Record, level_of
from tests.support.changefeed_world import World


def halts(records: list[Record]) -> list[PositionAhead]:
    return [record for record in records if isinstance(record, PositionAhead) and record.outcome == "halted"]


def page(latest: int | None, *, documents: int = 0) -> ChangePage:
    return ChangePage(
        documents=tuple({"id": str(n), "_lsn": 1} for n in range(documents)),
        continuation='"9"',
        latest_lsn=latest,
    )


@pytest.mark.parametrize(
    ("position", "lsn"),
    [
        ('"123"', 123),
        ('"0"', 0),
        (None, None),
        ('"a"', None),
        ("", None),
        ('"12|3"', None),
        ('"-1"', None),
        ('"²"', None),
    ],
)
def test_a_position_is_the_number_between_the_quotes_of_a_continuation(position, lsn):
    assert lsn == lsn_of(position)


@pytest.mark.parametrize(
    ("position", "seen", "newest"),
    # The lease's position, a page with the newest LSN of the range, and that LSN if it is lower than the position (None: it is not)
    [
        ('"10"', page(9), 9),
        ('"10"', page(10), None),
        ('"10"', page(11), None),
        ('"10"', page(None), None),  # the answer has no newest LSN
        ('"ten"', page(3), None),  # "ten" is no number, so it is not compared with the LSN 3
        (None, page(0), None),
        # the page has a change, so there are changes after the position
        ('"10"', page(9, documents=1), None),
    ],
)
def test_only_an_empty_page_with_a_lower_lsn_shows_that_a_position_is_too_far(position, seen, newest):
    assert newest == newest_below(position, seen)


async def moved_ahead(world: World, *, lsn: int = 5000) -> None:
    (lease,) = await world.all_leases()
    ahead = lease.with_changes(now=world.utcnow(), continuation=f'"{lsn}"')
    await world.leases.replace(ahead.raw, etag=lease.etag or "")


async def started_ahead(records: list[Record], *, written: int = 20, **options: object) -> World:
    """Return a world in which a worker has just started on a lease whose position is ahead of its range."""
    world = World()
    world.start("a")
    await world.write_many(written)
    await world.until(world.all_handled)
    await world.stop_all()
    await moved_ahead(world)
    world.start("b", hooks=[records.append], **options)
    return world


async def test_a_lease_ahead_of_its_range_halts_with_an_alarm_every_minute():
    records = list[Record]()
    world = await started_ahead(records)
    await asyncio.sleep(40)

    (status,) = world.workers["b"][0].status()
    assert status.stalled
    assert "reset the leases to a time before" in (status.error or "")
    await asyncio.sleep(120)
    alarms = halts(records)
    assert [('"5000"', 20)] * 3 == [(one.position, one.lowest_lsn) for one in alarms]
    assert 40 == level_of(alarms[0])
    await world.stop_all()


async def test_a_lease_that_halted_beyond_the_newest_change_is_not_split_before_a_reset():
    world = await started_ahead([])
    await asyncio.sleep(40)
    world.container.split("0")
    await world.stop_all()
    (lease,) = await world.all_leases()
    assert AHEAD in lease.properties
    await world.write_many(10)
    world.start("c")
    await asyncio.sleep(30)
    assert not world.all_handled()
    await world.stop_all()
    (lease,) = await world.all_leases()
    reset = lease.with_changes(now=datetime.now(UTC), owner=None, continuation=None, properties={})
    await world.leases.replace(reset.raw, etag=lease.etag or "")
    world.start("d")
    await world.until(world.all_handled)
    await asyncio.sleep(5)

    leases = await world.all_leases()
    assert ["1", "2"] == [one.token for one in leases]
    assert not any(AHEAD in one.properties for one in leases)
    await world.stop_all()


@pytest.mark.parametrize(("position", "handled"), [('"10"', 10), (None, 20), ('"20"', 0)])
async def test_a_worker_goes_on_from_a_position_that_an_operator_set_back(position: str | None, handled: int):
    records = list[Record]()
    world = await started_ahead(records)
    await asyncio.sleep(10)
    await world.stop_all()
    (lease,) = await world.all_leases()
    assert "20" == lease.properties[BEHIND]
    edited = lease.with_changes(now=world.utcnow(), continuation=position)
    await world.leases.replace(edited.raw, etag=lease.etag or "")
    world.handled.clear()
    world.start("c", hooks=[records.append])
    await asyncio.sleep(60)
    await world.stop_all()

    assert handled == sum(map(len, world.handled.values()))
    assert [] == [record for record in records if level_of(record) >= logging.WARNING]
    (lease,) = await world.all_leases()
    assert ('"20"', False) == (lease.continuation, BEHIND in lease.properties)


async def test_a_range_whose_newest_lsn_went_back_is_read_again_from_its_lowest_lsn():
    """
    A failover to another region may lose the newest changes. The saved position is then ahead of the range.
    """
    world, records = World(), list[Record]()
    world.start("a", hooks=[records.append])
    await world.write_many(1000)
    await world.until(world.all_handled)
    await asyncio.sleep(2)
    world.container.lose("0", 10)
    for count in (5, 10):  # first up to LSN 995, below the saved position, and then up to LSN 1005
        await asyncio.sleep(5)
        for _ in range(count):
            await world.write("new")

    assert await world.until(lambda: len(set(world.handled["new"])) == 15) < 5
    assert list(range(15)) == world.handled["new"]
    await asyncio.sleep(60)
    assert [] == halts(records)
    (lease,) = await world.all_leases()
    assert '"1005"' == lease.continuation
    await world.stop_all()


async def test_a_briefly_lagging_replica_causes_a_few_repeated_changes_and_one_warning():
    world, records = World(), list[Record]()
    world.start("a", hooks=[records.append])
    await world.write_many(100)
    await world.until(world.all_handled)
    await asyncio.sleep(2)
    partition = world.container._partitions[0]
    partition.lsn = 95
    await asyncio.sleep(5)
    partition.lsn = 100
    await world.write_many(10)
    await world.until(world.all_handled, within=timedelta(seconds=5))
    await world.stop_all()

    assert world.first_copies_in_order()
    assert 110 + 5 == sum(map(len, world.handled.values()))
    (lease,) = await world.all_leases()
    (warning,) = [record for record in records if level_of(record) >= logging.WARNING]
    assert PositionAhead(lease=lease.id, outcome="rewound", position='"100"', lowest_lsn=95) == warning


@pytest.mark.parametrize("end", ["stop", "kill", "split"])
async def test_the_next_owner_of_a_lease_ahead_of_its_range_reads_from_the_lowest_lsn(end: str):
    world = World()
    world.start("a")
    await world.write_many(100)
    await world.until(world.all_handled)
    await asyncio.sleep(2)
    world.container.lose("0", 10)
    await asyncio.sleep(5)
    if end == "split":
        world.container.split("0")
    else:
        await (world.stop("a") if end == "stop" else world.kill("a"))
    for _ in range(15):
        await world.write("new")
    if end != "split":
        world.start("b")

    await world.until(lambda: len(set(world.handled["new"])) == 15, within=timedelta(seconds=100))
    assert list(range(15)) == list(dict.fromkeys(world.handled["new"]))
    await world.stop_all()


@pytest.mark.parametrize("end", ["stop", "kill", "split"])
async def test_the_next_owner_of_a_lease_ahead_of_its_range_halts_as_well(end: str):
    """
    The range still has changes that were never handled, so no owner may go on from the lowest LSN that another owner saw.
    """
    world, records = World(), list[Record]()
    await world.write_many(20)
    world.start("a")
    await world.until(world.all_handled)
    await world.stop_all()
    world.handled.clear()
    await world.write_many(10)
    await moved_ahead(world)
    world.start("a", hooks=[records.append])
    await asyncio.sleep(20)
    if end == "split":
        world.container.split("0")
        await asyncio.sleep(40)
    else:
        await (world.stop("a") if end == "stop" else world.kill("a"))
        world.start("b", hooks=[records.append])
    await asyncio.sleep(150)
    assert {} == world.handled
    assert halts(records)
    await world.stop_all()
    assert {'"5000"'} == {lease.continuation for lease in await world.all_leases()}


async def test_the_lag_estimator_reports_a_lease_that_is_ahead_of_its_range():
    world = await started_ahead([])
    lag = await estimate_lag("p", feed=world.container, leases=world.leases)
    (reported,) = lag.ahead.values()
    assert "only 20" in reported
    assert (1, None, False) == (lag.leases[0].transactions, lag.leases[0].oldest_age, lag.leases[0].age_known)

    await asyncio.sleep(40)
    await world.stop_all()
    await moved_ahead(world, lsn=20)
    assert (
        lag.ahead.keys() == (await estimate_lag("p", feed=world.container, leases=world.leases)).ahead.keys()
    )
