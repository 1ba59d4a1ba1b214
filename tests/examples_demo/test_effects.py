"""
Tests of the demo's audit of effects: it finds exactly the lost, doubled and reordered effects that a test planted.
"""

from __future__ import annotations

from typing import Any

import pytest

from cosmos_outbox_testing.verify.audit import CommittedEvent
from demo.effects import effects_of

COMMITTED = [
    CommittedEvent(
        event_id=f"{contact}-{version}-{position}", contact_id=contact, version=version, position=position
    )
    for contact in ("a", "b")
    for version in (1, 2, 3)
    for position in (0, 1)
]


def recorded(*event_ids: str) -> list[dict[str, Any]]:
    """
    Return the events that a consumer stores when it handles these events in this order, one commit each.
    """
    versions: dict[str, int] = {}
    found = []
    for event_id in event_ids:
        entity = event_id[0]
        versions[entity] = versions.get(entity, 0) + 1
        meta = {"entityId": entity, "entityVersion": versions[entity], "sequence": 0, "causationId": event_id}
        found.append({"meta": meta})
    return found


ALL = [event.event_id for event in COMMITTED]


@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        (ALL, {}),
        (ALL[1:], {"lost": ("a-1-0",)}),
        ([*ALL, "b-1-1"], {"doubled": ("b-1-1",), "out_of_order": ("b-1-1",)}),
        (["a-1-1", "a-1-0", *ALL[2:]], {"out_of_order": ("a-1-0",)}),
        ([*ALL, "a-9-0"], {"unknown": ("a-9-0",)}),
    ],
)
def test_the_audit_of_effects_names_the_events_that_went_wrong(
    order: list[str], wrong: dict[str, tuple[str, ...]]
):
    effects = effects_of(COMMITTED, recorded(*order)[::-1])  # a query may return the events in any order
    assert effects.passed is (not wrong)
    assert wrong == {
        name: found
        for name in ("lost", "doubled", "out_of_order", "unknown")
        if (found := getattr(effects, name))
    }
