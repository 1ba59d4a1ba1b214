"""
Tests with a hundred ranges on 1, 2 and 5 workers. One worker is killed, another is frozen until its leases expire, and ranges split and
merge, while changes come all the time.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter

import pytest

from tests.simulation.changefeed import Simulation, Step
from tests.support.effort import LONG, examples

pytestmark = pytest.mark.timeout(900)  # in real seconds, for slow machines: the simulated clock is virtual

ACQUIRE_SECONDS = 13
LOAD = [Step("write", key, 19) for key in range(7)]


class Fleet(Simulation):
    async def balanced(self, *, within_intervals: float) -> None:
        """Wait until every lease has an owner and no worker has more than its even share."""
        seconds = within_intervals * ACQUIRE_SECONDS * 1.1  # jitter adds up to a tenth to an interval
        async with asyncio.timeout(seconds):
            while not self._is_balanced():  # noqa: ASYNC110 - no event signals it; the time is virtual
                await asyncio.sleep(0.1)

    def _is_balanced(self) -> bool:
        owned = Counter(lease.owner for lease in self.invariants.leases.values())
        share = math.ceil(owned.total() / len(self.workers))
        return set(owned) == {w.instance for w in self.workers.values()} and max(owned.values()) <= share

    async def _heal_and_finish(self) -> None:
        await super()._heal_and_finish()
        # Balancing takes up to six passes, because the leases and the handover requests of dead workers have to expire first.
        await self.balanced(within_intervals=6)


@pytest.mark.parametrize("workers", [1, 2, 5] if LONG else [2])
async def test_workers_share_a_hundred_ranges_evenly_after_all_faults(workers: int):
    random.seed(workers)
    numbers = range(workers)
    script = [
        *(Step("start", number, 0) for number in numbers),
        *LOAD,
        Step("wait", 0, 3),
        Step("split", 0, 20),
        *LOAD,
        Step("kill", workers - 1, 0),
        Step("wait", 0, 4),
        Step("start", workers - 1, 0),
        Step("freeze", 0, 0),
        *LOAD,
        Step("merge", 0, 25),
        Step("wait", 0, 4),
        *LOAD,
        Step("thaw", 0, 0),
    ]
    await Fleet(ranges=100, workers=workers).play(script)


async def test_new_workers_get_their_share_of_a_hundred_ranges_in_three_acquire_intervals():
    for seed in range(examples(2, many=6)):
        random.seed(seed)
        fleet = Fleet(ranges=100, workers=5)
        fleet._start("w0", skew=0)
        await fleet.balanced(within_intervals=1)
        await asyncio.sleep(random.uniform(0, ACQUIRE_SECONDS))
        for number in range(1, 5):
            fleet._start(f"w{number}", skew=0)
            await asyncio.sleep(random.choice((0, 0.1, 1)))
        await fleet.balanced(within_intervals=3)
        await fleet._end()
