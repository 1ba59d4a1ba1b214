"""
Tests of a consumer with random faults, which Hypothesis draws: each message takes effect once and in order,
and a failing message stops only its own key (the promises I1 to I5).
"""

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

pytestmark = pytest.mark.timeout(900)  # in real seconds, for slow machines: the simulated clock is virtual


@settings(max_examples=examples(40, many=600), suppress_health_check=list(HealthCheck), deadline=None)
@given(chance=st.randoms(use_true_random=False))
async def test_a_consumer_keeps_its_guarantees_under_any_script_of_faults(chance: Random) -> None:
    script = random_consumers_script(chance)
    note(pformat(script))
    await Simulation(script).play()


@pytest.mark.parametrize("scripted", [stores_away_script, busy_script])
@settings(max_examples=examples(10, many=100), suppress_health_check=list(HealthCheck), deadline=None)
@given(chance=st.randoms(use_true_random=False))
async def test_messages_of_other_keys_are_handled_while_many_keys_wait_or_are_busy(
    scripted: Callable[[Random], Script], chance: Random
) -> None:
    script = scripted(chance)
    note(pformat(script))
    await Simulation(script).play()
