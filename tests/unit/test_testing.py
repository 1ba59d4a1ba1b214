"""
The package `cosmos_outbox_testing`: fixed clocks and ids, the comparison of events, and its public names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

import pytest

import cosmos_outbox_testing as testing
from cosmos_outbox import DomainEvent, Entity, Outbox
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox_testing import fixed, like

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Paid(DomainEvent):
    order: str
    cents: int = 0


class Refunded(Paid):
    pass


class Order(Entity):
    def pay(self) -> None:
        self.record(Paid(order=self.id))


def numbered() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"id-{next(numbers)}"


async def test_a_test_can_choose_the_ids_and_times_of_entities_events_and_commits():
    with fixed(now=NOON, ids=numbered()):
        async with Outbox(MemoryContainer()).unit_of_work() as uow:
            order = uow.repository(Order).create(Order())
            order.pay()
            commit = await asyncio.create_task(uow.commit())
    assert ("id-1", "id-2", "id-3") == (order.id, commit.events[0].id, commit.id)
    assert NOON == commit.events[0].created_at
    assert "id-" not in Order().id
    assert Paid(order="o").created_at != NOON


def test_a_fixed_clock_can_be_advanced():
    times = iter([NOON, datetime(2027, 1, 1, tzinfo=UTC)])
    with fixed(now=lambda: next(times)):
        assert [2026, 2027] == [Paid(order="o").created_at.year for _ in range(2)]


def test_the_result_of_like_equals_an_event_with_equal_content():
    order = Order(id="o")
    order.pay()
    assert order.events == (like(Paid(order="o")),)
    assert (like(Paid(order="o")),) == order.events
    assert order.events != (like(Paid(order="other")),)
    assert Paid(order="o", cents=1) != like(Paid(order="o"))
    assert Paid(order="o") != like(Refunded(order="o"))
    assert "o" != like(Paid(order="o"))
    assert "like(Paid(order='o', cents=0))" == repr(like(Paid(order="o")))


def test_the_kit_exports_exactly_the_names_in_its_all_list():
    assert sorted(testing.__all__, key=lambda name: (not name[0].isupper(), name)) == testing.__all__
    assert [] == [name for name in testing.__all__ if not hasattr(testing, name)]
    with pytest.raises(AttributeError, match="no attribute 'mock'"):
        testing.mock  # type: ignore[attr-defined]  # noqa: B018
