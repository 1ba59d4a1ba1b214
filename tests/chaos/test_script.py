"""The script of a chaos run."""

from __future__ import annotations

from tests.chaos.script import Kind, script


def test_the_same_seed_gives_the_same_script_and_another_seed_another():
    assert script(7, 60) == script(7, 60)
    assert script(7, 60) != script(8, 60)


def test_a_minute_holds_every_kind_of_disturbance_in_order_of_time():
    disturbances = script(0, 60)
    assert set(Kind) == {disturbance.kind for disturbance in disturbances}
    times = [disturbance.at_seconds for disturbance in disturbances]
    assert sorted(times) == times
    assert 60 > times[-1]


def test_some_frozen_workers_wake_as_zombies_after_their_leases_expired():
    frozen = [each.seconds for each in script(0, 600) if each.kind is Kind.FREEZE]
    assert min(frozen) < 4 < max(frozen)
