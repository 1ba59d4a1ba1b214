"""
G2, G3 and G5 for any number of workers and any faults. Hypothesis draws scripts of faults, and shrinks a failing script to a short one.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.simulation.changefeed import KINDS, Simulation, Step
from tests.support.effort import examples

pytestmark = pytest.mark.timeout(900)  # the time is virtual; how long it takes is the machine's affair

steps = st.builds(Step, st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 29))


# In this story, two partitions are merged while a worker reads their ids.
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
    # Phase.shrink is left out, because shrinking takes minutes. Reproduce a failure with its printed blob, and add
    # the phase for that run.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@example(ranges=4, script=told(MERGED_WHILE_ASKED))
@given(ranges=st.integers(1, 4), script=st.lists(steps, min_size=10, max_size=50))
async def test_any_script_of_faults_keeps_the_invariants_of_the_change_feed(ranges: int, script: list[Step]):
    await Simulation(ranges=ranges).play([Step("start", 0, 0), *script])
