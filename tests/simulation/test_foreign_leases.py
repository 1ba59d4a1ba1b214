"""
Scripts in which a .NET processor, an operator or a slow network damages leases. The simulation must not blame our workers for it, and no
change may be lost.
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
    "a neighbour's lease reaches into one that is behind, and we take it": (
        156599254,
        3,
        (
            "start 1 8, write 5 6, wait 1 11, write 2 8, neighbour 4 8, split 1 18, split 1 18, start 3 19, merge 7 5, "
            "write 4 4"
        ),
    ),
    "a lease is created so late that another one holds its range": (
        156593769,
        2,
        (
            "start 0 0, write 0 19, split-again 5 28, freeze 0 8, start 5 25, write 6 16, slow 1 2, wait 6 9, merge 2 24, "
            "start 3 18, wait 2 28"
        ),
    ),
    "a lease is created so late that another one of its range is at work": (
        551934847,
        4,
        (
            "recreate 6 14, start 4 2, write 7 18, write 4 3, write 0 22, slow 4 11, write 1 16, start 1 15, merge 5 28, "
            "split-again 2 9"
        ),
    ),
    "a child is created when its parent is gone, and its creator holds what was created in its place": (
        580648707,
        3,
        (
            "start 0 0, wait 5 20, delete-lease 2 3, merge 7 23, touch 1 1, ahead 5 5, write 3 2, refuse 4 9, delete-lease 4 28, "
            "merge 7 24, write 2 5, start 2 4, split 6 12, split-again 7 9"
        ),
    ),
    "a neighbour's lease reaches into a range that has none yet": (
        546525662,
        1,
        (
            "start 0 0, recreate 1 5, hot 4 12, recreate 5 22, write 7 11, wait 3 3, split 6 19, neighbour 2 20, merge 1 3"
        ),
    ),
    "a call is refused with the status of its time": (
        1,
        1,
        "start 0 0, slow 0 2, refuse 4 12, wait 0 0, refuse 0 14, wait 0 3",
    ),
}


@pytest.mark.parametrize(("seed", "ranges", "story"), STORIES.values(), ids=STORIES.keys())
async def test_no_violation_is_reported_if_a_foreign_program_damages_leases(
    seed: int, ranges: int, story: str
):
    random.seed(seed)
    await Simulation(ranges=ranges).play(script(story))
