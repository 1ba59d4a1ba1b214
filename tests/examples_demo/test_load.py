"""The changes that the driver sends are the same for a seed, and each of them raises an event."""

from __future__ import annotations

import pytest

from demo.load import Load, changes_of


def test_the_same_seed_sends_the_same_requests_and_another_seed_others():
    first, second = Load(contacts=1, changes=50, seed=1), Load(contacts=1, changes=50, seed=2)
    assert list(changes_of(3, first)) == list(changes_of(3, first))
    assert list(changes_of(3, first)) != list(changes_of(3, second))


@pytest.mark.parametrize("seed", range(20))
def test_every_change_alters_something_so_that_it_raises_an_event(seed):
    contact: dict = {}
    changes = list(changes_of(0, Load(contacts=1, changes=40, seed=seed)))
    assert 40 == len(changes)
    for change in changes:
        assert {**contact, **change.body} != contact
        contact.update(change.body)
