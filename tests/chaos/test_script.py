"""The script of a chaos run."""

from __future__ import annotations

from tests.chaos.script import Kind, script


def test_a_minute_holds_every_kind_of_disturbance_in_order_of_time():
    disturbances = script(0, 60)
    assert set(Kind) == {disturbance.kind for disturbance in disturbances}
    times = [disturbance.at_seconds for disturbance in disturbances]
    assert sorted(times) == times
    assert 60 > times[-1]
