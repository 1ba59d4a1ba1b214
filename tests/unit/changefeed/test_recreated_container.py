"""
A monitored container that was deleted and created again under its name: what the processor does when it notices.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from cosmos_outbox.changefeed.leases import lease_prefix, new_lease
from cosmos_outbox.errors import ContainerRecreated, StoreUnavailable
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangePage, StartFrom
from cosmos_outbox.records import LeasesLost, Record
from tests.support.changefeed_world import Faulty, World


class Seen:
    """Wraps the container, and calls `on_replaced` when a read finds that the container was recreated."""

    def __init__(self, world: World) -> None:
        self._container = world.container
        self.on_replaced: Callable[[], object] = lambda: None

    def __getattr__(self, name: str):
        return getattr(self._container, name)

    async def read_page(self, *args, **kwargs) -> ChangePage:
        try:
            return await self._container.read_page(*args, **kwargs)
        except ContainerRecreated:
            self.on_replaced()
            raise


async def test_a_processor_creates_leases_for_a_recreated_container():
    """The processor raises one alarm, and gives up the leases of the old container."""
    world = World(ranges=3)
    records: list[Record] = []

    async def earlier_life() -> str | None:
        return "its own heartbeat" if records else None

    processor = world.start("a", start=StartFrom.NOW, hooks=[records.append], earlier_life=earlier_life)
    await asyncio.sleep(10)
    before = {status.lease for status in processor.status()}
    world.container.recreate(ranges=3)
    await world.write("new")
    await world.until(world.all_handled)

    (alarm,) = [record for record in records if isinstance(record, LeasesLost)]
    assert ("beginning", "the container was deleted and created again") == (alarm.start, alarm.reason)
    assert ["0", "1", "2"] == [status.token for status in processor.status()]
    assert before.isdisjoint(status.lease for status in processor.status())
    await world.stop_all()


async def lease_by_dotnet(world: World) -> None:
    """
    Create a lease and the document `.info` as a .NET worker does. This `.info` does not say where the first
    leases begin.
    """
    prefix = lease_prefix("p", await world.container.describe())
    await world.leases.create({"id": f"{prefix}.info"})
    await world.leases.create(new_lease(prefix, "0", FeedRange(min="", max="FF")).raw)


@pytest.mark.parametrize("by_dotnet", ["no lease", "the first lease", "the lease of the new container"])
async def test_start_from_now_handles_all_changes_of_a_recreated_container(
    by_dotnet: str,
):
    world = World()
    if by_dotnet == "the first lease":  # a lease of .NET does not say at which time its "now" was
        await lease_by_dotnet(world)
    feed = Faulty(world.container)
    world.start("a", feed=feed, start=StartFrom.NOW)
    await asyncio.sleep(10)
    feed.failing["read_page"] = StoreUnavailable
    world.container.recreate()
    await world.write_many(10)
    await asyncio.sleep(30)
    if by_dotnet == "the lease of the new container":  # a .NET worker creates it before ours does
        await lease_by_dotnet(world)
    feed.failing.clear()
    await world.until(world.all_handled)
    await world.stop_all()


async def test_a_processor_can_be_cancelled_while_it_notices_a_recreated_container():
    world = World(ranges=3)
    feed = Seen(world)
    world.start("a", feed=feed)
    _, task = world.workers["a"]
    feed.on_replaced = task.cancel
    await asyncio.sleep(10)
    world.container.recreate(ranges=3)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await asyncio.shield(task)
    assert task.cancelled()


async def test_a_container_that_is_always_reported_as_recreated_is_not_polled_in_a_hot_loop():
    world = World()
    noticed: list[float] = []

    class Contradictory(Seen):
        async def read_page(self, *args, **kwargs) -> ChangePage:
            noticed.append(asyncio.get_running_loop().time())
            raise ContainerRecreated

    world.start("a", feed=Contradictory(world))
    await asyncio.sleep(600)

    assert 10 < len(noticed) < 200
    await world.kill("a")


@pytest.mark.parametrize("write", range(1, 9))
async def test_no_lease_of_the_old_container_is_kept_after_it_is_recreated_during_a_start(write: int):
    world = World(ranges=10)

    class Replacing(Faulty):
        async def replace(self, document, *, etag):
            self.calls["replace"] += 1
            if self.calls["replace"] == write:
                world.container.recreate(ranges=10)
            return await world.leases.replace(document, etag=etag)

    processor = world.start("a", leases=Replacing(world.leases))  # type: ignore[arg-type] - it has every method
    await asyncio.sleep(120)
    gc.collect()  # so that Python warns of a coroutine that was never awaited

    assert [False] * 10 == [status.stalled for status in processor.status()]
    await world.stop_all()
