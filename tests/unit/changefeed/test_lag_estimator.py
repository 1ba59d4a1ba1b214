"""
The lag estimator counts the changes that wait to be handled, in the same way as .NET and KEDA count them.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from cosmos_outbox.changefeed import Lag, estimate_lag
from cosmos_outbox.changefeed.leases import new_lease
from tests.support.changefeed_world import World


async def lag(world: World) -> Lag:
    return await estimate_lag("p", feed=world.container, leases=world.leases)


async def test_the_lag_is_zero_when_all_changes_are_handled():
    world = World(ranges=2)
    await world.write_many(30)
    world.start("a")
    await world.until(world.all_handled)
    await world.stop_all()

    assert (0, None) == ((await lag(world)).transactions, (await lag(world)).oldest_age)


async def test_the_lag_has_the_number_of_waiting_transactions_and_the_age_of_the_oldest():
    world = World()
    await world.create_leases()
    await world.write_many(7)
    await asyncio.sleep(90)
    await world.write_many(3)

    found = await lag(world)

    assert (10, timedelta(seconds=90)) == (found.transactions, found.oldest_age)
    assert [("0", None)] == [(lease.token, lease.owner) for lease in found.leases]


async def test_the_lag_shows_no_owner_for_an_expired_lease():
    world = World()
    world.start("a")
    await asyncio.sleep(5)
    assert ["a"] == [lease.owner for lease in (await lag(world)).leases]
    await world.kill("a")
    await asyncio.sleep(70)

    assert [None] == [lease.owner for lease in (await lag(world)).leases]


async def test_the_lag_of_a_range_that_was_never_handled_counts_all_its_changes():
    world = World()
    await world.write_many(5)
    world.start("a", handler=_never)
    await asyncio.sleep(5)

    assert 5 == (await lag(world)).transactions
    await world.kill("a")


async def test_a_split_without_a_running_worker_does_not_add_lag():
    world = World()
    await world.write_many(40)
    world.start("a")
    await world.until(world.all_handled)
    await world.stop_all()
    world.container.split("0")
    assert 0 == (await lag(world)).transactions

    await world.write_many(6, keys=6)
    # Both ranges that the split created go on with the LSNs of the old range. So the estimate for one range may also count changes
    # of the other: between 6 and twice 6.
    assert 6 <= (await lag(world)).transactions <= 12


async def test_the_lag_counts_changes_once_while_a_merge_is_half_done():
    world = World(ranges=2)
    await world.create_leases()
    parent = (await world.all_leases())[0]
    assert parent.range is not None
    world.container.merge("0", "1")
    token = f"{parent.range.min}-{parent.range.max}"
    prefix = parent.id.removesuffix("..0")
    await world.leases.create(
        new_lease(prefix, token, parent.range, version=1, continuation=parent.continuation).raw
    )
    await world.write_many(10)

    waiting = {lease.token: lease.transactions for lease in (await lag(world)).leases}
    assert 0 == waiting.pop("0")
    assert all(0 < count <= 10 for count in waiting.values())


async def test_the_lag_estimator_names_a_lease_that_cannot_be_read():
    """The estimator still returns the lag of the other leases."""
    world = World(ranges=2)
    await world.create_leases()
    lease = (await world.all_leases())[0]
    await world.leases.replace({**lease.raw, "ContinuationToken": "eyJWIjox"}, etag=lease.etag or "")
    await world.write_many(30)

    found = await lag(world)

    assert ["1"] == [other.token for other in found.leases]
    assert found.transactions > 0
    (reason,) = found.damaged.values()
    assert lease.id in reason


async def _never(_: object) -> None:
    await asyncio.Event().wait()
