"""Which events a fault strikes."""

from __future__ import annotations

import re

import pytest

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.faults import On


@pytest.fixture
def faults():
    return Broker.default().faults


def struck(faults, times, *, entity="events", on=On.SEND):
    return [faults.next(on, entity) is not None for _ in range(times)]


def test_a_fault_strikes_once_unless_told_otherwise(faults):
    faults.add({"action": "lost"})
    assert [True, False, False] == struck(faults, 3)


def test_skip_and_count_choose_the_events(faults):
    fault = faults.add({"action": "lost", "skip": 2, "count": 2})
    assert [False, False, True, True, False] == struck(faults, 5)
    assert (4, 2) == (fault.seen, fault.struck)


def test_no_count_means_all(faults):
    faults.add({"action": "lost", "count": None})
    assert [True] * 5 == struck(faults, 5)


def test_only_the_named_entity_and_event_are_struck(faults):
    faults.add({"action": "lost", "entity": "Other", "count": None})
    faults.add({"action": "no-ack", "on": "settle", "count": None})
    assert [False] == struck(faults, 1)
    assert [True] == struck(faults, 1, entity="other")
    assert [True] == struck(faults, 1, on=On.SETTLE)


def test_chance_is_the_same_for_the_same_seed(faults):
    runs = []
    for _ in range(2):
        faults.clear()
        faults.add({"action": "lost", "count": None, "probability": 0.3, "seed": 7})
        runs.append(struck(faults, 1000))
    assert runs[0] == runs[1]
    assert 230 < sum(runs[0]) < 370


def test_latencies_add_up_and_do_not_hide_other_faults(faults):
    faults.add({"action": "latency", "seconds": 0.02})
    faults.add({"action": "latency", "seconds": 0.01, "entity": "events"})
    faults.add({"action": "lost"})
    assert 0.03 == pytest.approx(faults.latency(On.SEND, "events"))
    assert 0.02 == pytest.approx(faults.latency(On.SEND, "other"))
    assert [True] == struck(faults, 1)


def test_an_outage_ends_by_itself_or_when_cleared():
    broker = Broker.default()
    broker.faults.add({"action": "down", "seconds": 60})
    assert broker.is_down
    broker.faults.clear()
    assert not broker.is_down


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"action": "explode"}, "'explode' is not a valid Action"),
        ({}, "'' is not a valid Action"),
        ({"action": "lost", "topic": "events"}, "unknown field 'topic'"),
        ({"action": "lost", "on": "monday"}, "'monday' is not a valid On"),
        ({"action": "lost", "skip": -1}, "faults.skip: expected a number"),
        ({"action": "down"}, "down needs a positive number of seconds"),
        ({"action": "latency", "seconds": 0}, "latency needs a positive number of seconds"),
    ],
)
def test_a_mistake_is_named(faults, fault, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        faults.add(fault)
