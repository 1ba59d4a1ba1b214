"""
A container that was deleted and created again, as the processor sees it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cosmos_outbox.errors import ContainerReplaced
from cosmos_outbox.instrumentation import MonitoredContainerReplaced, Record
from cosmos_outbox.ports import ChangePage, MonitoredContainer
from tests.unit.changefeed.world import World


class Replaceable:
    """
    A feed that reads until it is told that its container was replaced, and again once it was described anew.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.replaced = False
        self.number = 0
        self.on_replaced = lambda: None

    async def describe(self) -> MonitoredContainer:
        self.number += self.replaced
        self.replaced = False
        return replace(await self._world.container.describe(), container_rid=f"rid-{self.number}")

    async def physical_ranges(self):
        return await self._world.container.physical_ranges()

    async def read_page(self, *args, **kwargs) -> ChangePage:
        if self.replaced:
            self.on_replaced()
            raise ContainerReplaced
        return await self._world.container.read_page(*args, **kwargs)


async def test_the_processor_raises_one_alarm_and_works_on_leases_of_the_new_container():
    world = World(ranges=3)
    records: list[Record] = []
    feed = Replaceable(world)
    processor = world.start("a", feed=feed, hooks=[records.append])
    await asyncio.sleep(10)
    feed.replaced = True
    await asyncio.sleep(10)

    assert 1 == sum(isinstance(record, MonitoredContainerReplaced) for record in records)
    assert ["0", "1", "2"] == [status.token for status in processor.status()]
    assert all("rid-1" in status.lease for status in processor.status())
    await world.stop_all()


async def test_a_cancellation_in_the_same_moment_still_ends_the_processor():
    world = World(ranges=3)
    feed = Replaceable(world)
    world.start("a", feed=feed)
    _, task = world.workers["a"]
    await asyncio.sleep(10)
    feed.on_replaced = task.cancel
    feed.replaced = True
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await asyncio.shield(task)
    assert task.cancelled()
