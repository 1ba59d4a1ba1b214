"""
G2, G3 and G5 for any fleet and any faults, as a script that Hypothesis shrinks to the shortest that breaks them.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.simulation.changefeed import KINDS, Simulation, Step
from tests.support.effort import examples

pytestmark = pytest.mark.timeout(900)  # the time is virtual; how long it takes is the machine's affair

steps = st.builds(Step, st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 29))


# Two partitions are merged while a worker asks them for their ids.
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
    # Shrinking takes minutes; a finding is reproduced by its blob, and shrunk by adding the phase for that run.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@example(ranges=4, script=told(MERGED_WHILE_ASKED))
@given(ranges=st.integers(1, 4), script=st.lists(steps, min_size=10, max_size=50))
async def test_no_script_of_faults_loses_reorders_or_runs_ahead(ranges: int, script: list[Step]):
    await Simulation(ranges=ranges).play([Step("start", 0, 0), *script])
