"""Tests of the script of a chaos run: which disturbances it contains, and at which times."""

from __future__ import annotations

from tests.chaos.script import Kind, script


def test_a_chaos_script_of_a_minute_contains_every_kind_of_disturbance():
    """The disturbances of a script are ordered by time."""
    disturbances = script(0, 60)
    assert set(Kind) == {disturbance.kind for disturbance in disturbances}
    times = [disturbance.at_seconds for disturbance in disturbances]
    assert sorted(times) == times
    assert 60 > times[-1]
