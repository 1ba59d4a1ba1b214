"""Tests of the demo's load: the same seed gives the same changes, and each change raises an event."""

from __future__ import annotations

import pytest

from demo.load import Load, changes_of


def test_the_same_seed_gives_the_same_requests_of_the_demo_s_load():
    first, second = Load(contacts=1, changes=50, seed=1), Load(contacts=1, changes=50, seed=2)
    assert list(changes_of(3, first)) == list(changes_of(3, first))
    assert list(changes_of(3, first)) != list(changes_of(3, second))


@pytest.mark.parametrize("seed", range(20))
def test_every_change_of_the_demo_s_load_raises_an_event(seed):
    contact: dict = {}
    changes = list(changes_of(0, Load(contacts=1, changes=40, seed=seed)))
    assert 40 == len(changes)
    for change in changes:
        assert {**contact, **change.body} != contact
        contact.update(change.body)
