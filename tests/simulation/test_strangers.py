"""
What a stranger breaks is not laid at our workers' door: stories in which a .NET processor or an operator is to blame.
"""

from __future__ import annotations

import random

import pytest

from tests.simulation.changefeed import Simulation
from tests.simulation.test_mistakes import script

STORIES = {
    "a neighbour creates leases of ranges that have some": (
        1,
        3,
        (
            "start 0 0, wait 3 4, stop 4 15, neighbour 1 2, write 1 13, wait 1 28, merge 2 10, delete-lease 2 6, "
            "delete-lease 0 22, start 3 7"
        ),
    ),
    "a neighbour skips what is waiting in the lease behind it": (
        1,
        2,
        (
            "start 0 0, split-again 7 12, wait 2 15, touch 6 10, neighbour 2 27, write 4 13, split 1 23, cut-leases 4 22, "
            "merge 4 10, wait 7 28"
        ),
    ),
    "a child is created when its parent is gone": (
        1,
        2,
        (
            "start 0 0, slow 4 4, split-again 5 4, wait 6 22, merge 2 2, merge 2 14, neighbour 0 1, start 2 22, "
            "delete-lease 7 1, merge 4 25"
        ),
    ),
    "an operator deletes a child before its parent is": (
        352935354,
        4,
        (
            "start 0 0, start 5 3, merge 1 9, wait 2 27, wait 1 1, wait 4 1, cut 4 23, stop 4 22, slow 1 13, merge 1 14, "
            "touch 5 13, wait 2 14, delete-lease 3 8"
        ),
    ),
}


@pytest.mark.parametrize(("seed", "ranges", "story"), STORIES.values(), ids=STORIES.keys())
async def test_a_strangers_doing_violates_nothing(seed: int, ranges: int, story: str):
    random.seed(seed)
    await Simulation(ranges=ranges).play(script(story))
