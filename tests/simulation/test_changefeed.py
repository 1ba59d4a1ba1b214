"""
G2, G3 and G5 for any fleet and any faults, as a script that Hypothesis shrinks to the shortest that breaks them.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.simulation.changefeed import KINDS, Simulation, Step
from tests.support.effort import examples

pytestmark = pytest.mark.timeout(900)  # the time is virtual; how long it takes is the machine's affair

steps = st.builds(Step, st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 29))


@settings(
    max_examples=examples(60, many=300),
    deadline=None,
    print_blob=True,
    # Shrinking takes minutes; a finding is reproduced by its blob, and shrunk by adding the phase for that run.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(ranges=st.integers(1, 4), script=st.lists(steps, min_size=10, max_size=50))
async def test_no_script_of_faults_loses_reorders_or_runs_ahead(ranges: int, script: list[Step]):
    await Simulation(ranges=ranges).play([Step("start", 0, 0), *script])
