"""I1 to I5 for any script of a consumer's processes, which Hypothesis draws and shrinks."""

from __future__ import annotations

from collections.abc import Callable
from pprint import pformat
from random import Random

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.simulation.consumers import Script, Simulation
from tests.simulation.consumers_script import busy_script, random_consumers_script, stores_away_script
from tests.support.effort import examples

pytestmark = pytest.mark.timeout(900)  # the time is virtual; how long it takes is the machine's affair


@settings(max_examples=examples(40, many=600), suppress_health_check=list(HealthCheck), deadline=None)
@given(chance=st.randoms(use_true_random=False))
async def test_any_script_keeps_the_guarantees_of_a_consumer(chance: Random) -> None:
    script = random_consumers_script(chance)
    note(pformat(script))
    await Simulation(script).play()


@pytest.mark.parametrize("scripted", [stores_away_script, busy_script])
@settings(max_examples=examples(10, many=100), suppress_health_check=list(HealthCheck), deadline=None)
@given(chance=st.randoms(use_true_random=False))
async def test_waiting_and_busy_keys_do_not_keep_other_keys_from_being_handled(
    scripted: Callable[[Random], Script], chance: Random
) -> None:
    script = scripted(chance)
    note(pformat(script))
    await Simulation(script).play()
