"""
Tests of the change feed processor with random faults, which Hypothesis draws: every change is handled, in the order of its key, and a
worker saves its position only after it handled the changes (the promises G2, G3 and G5).
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.simulation.changefeed import KINDS, Simulation, Step
from tests.support.effort import examples

pytestmark = pytest.mark.timeout(900)  # in real seconds, for slow machines: the simulated clock is virtual

steps = st.builds(Step, st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 29))


# A script that once failed: two partitions are merged while a worker reads their ids. Each step is a kind and its two numbers.
MERGED_WHILE_ASKED = (
    "slow 6 1, wait 0 8, cut 1 7, refuse 4 20, refuse 2 6, start 1 13, late 4 25, split 5 20, start 3 8, refuse 4 20, wait 7 23, "
    "wait 6 10, cut 3 7, merge 6 12"
)


def told(story: str) -> list[Step]:
    words = (line.split() for line in story.split(", "))
    return [Step(kind, int(a), int(b)) for kind, a, b in words]


@settings(
    max_examples=examples(60, many=300),
    deadline=None,
    print_blob=True,
    # Without Phase.shrink, because shrinking a failing script takes minutes. To shrink one, add the phase and run the test with
    # the blob that Hypothesis printed.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@example(ranges=4, script=told(MERGED_WHILE_ASKED))
@given(ranges=st.integers(1, 4), script=st.lists(steps, min_size=10, max_size=50))
async def test_workers_keep_the_invariants_of_the_change_feed_under_any_faults(
    ranges: int, script: list[Step]
):
    await Simulation(ranges=ranges).play([Step("start", 0, 0), *script])
