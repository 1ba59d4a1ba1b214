"""A lease store that refuses the writes of one lease: the work on the other leases goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from cosmos_outbox.changefeed.leases import handover_requested_by
from cosmos_outbox.errors import InvalidRequest, TooManyRequests
from tests.support.changefeed_world import Faulty, World


async def test_a_lease_that_cannot_be_written_does_not_prevent_taking_other_leases():
    world = World(ranges=10)

    class Refusing(Faulty):
        async def replace(self, document, *, etag):
            if document["id"].endswith("..3"):
                raise InvalidRequest
            return await world.leases.replace(document, etag=etag)

    processor = world.start("a", leases=Refusing(world.leases))  # type: ignore[arg-type] - it has every method
    await asyncio.sleep(5)

    assert sorted("012456789") == sorted(status.token for status in processor.status())
    await world.stop_all()


async def test_a_handover_request_that_cannot_be_written_delays_no_other_request():
    world = World(ranges=10)
    world.start("a")
    await asyncio.sleep(20)

    class Refusing(Faulty):
        async def replace(self, document, *, etag):
            self.calls["replace"] += 1
            if self.calls["replace"] == 1:
                raise InvalidRequest
            return await world.leases.replace(document, etag=etag)

    world.start("b", leases=Refusing(world.leases))  # type: ignore[arg-type] - it has every method
    await asyncio.sleep(1)

    assert 4 == sum(handover_requested_by(lease) == "b" for lease in await world.all_leases())
    await world.stop_all()


async def test_throttled_attempts_to_take_leases_are_retried_before_the_next_balancing_pass():
    world = World(ranges=100)

    class Throttled(Faulty):
        async def replace(self, document, *, etag):
            self.calls["replace"] += 1
            if self.calls["replace"] % 5 == 0:
                raise TooManyRequests
            return await world.leases.replace(document, etag=etag)

    processor = world.start(
        "a",
        leases=Throttled(world.leases),  # type: ignore[arg-type] - it has every method
        max_poll_interval=timedelta(seconds=60),
    )

    assert await world.until(lambda: len(processor.status()) == 100) < 13
    await world.kill("a")
