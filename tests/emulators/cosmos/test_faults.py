from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_outbox_emulators.cosmos.faults import FaultRule, Faults, When
from cosmos_outbox_emulators.cosmos.protocol import RequestKind


def strikes(faults, kind=RequestKind.CREATE, container="items", times=10):
    return [faults.strike(kind, container) is not None for _ in range(times)]


def test_a_rule_skips_then_strikes_as_often_as_counted_then_is_gone():
    faults = Faults()
    faults.add({"operation": "create", "status": 429, "skip": 2, "count": 3})
    assert [False] * 2 + [True] * 3 + [False] * 5 == strikes(faults)
    assert 0 == len(faults)


def test_a_rule_without_a_count_strikes_until_cleared():
    faults = Faults()
    faults.add({"status": 503})
    assert all(strikes(faults))
    faults.clear()
    assert not any(strikes(faults))


def test_a_rule_strikes_only_its_operation_and_container():
    faults = Faults()
    faults.add({"operation": "batch", "container": "items", "status": 503})
    assert not any(strikes(faults, RequestKind.CREATE))
    assert not any(strikes(faults, RequestKind.BATCH, "leases"))
    assert all(strikes(faults, RequestKind.BATCH))


def test_a_rule_strikes_only_its_partition_and_no_request_that_names_none():
    faults = Faults()
    faults.add({"partition": "1", "status": 429})
    assert [None, None, 429] == [
        fault and fault.status
        for fault in (
            faults.strike(RequestKind.CHANGEFEED, "items", partition=lambda named=named: named)
            for named in (None, "0", "1")
        )
    ]


def test_the_oldest_rule_that_applies_wins():
    faults = Faults()
    faults.add({"status": 503, "count": 1})
    faults.add({"status": 429})
    assert [503, 429] == [faults.strike(RequestKind.READ, "c").status for _ in range(2)]


def test_a_probability_draws_the_same_from_the_same_seed():
    def drawn(seed):
        faults = Faults()
        faults.add({"status": 503, "probability": 0.4, "seed": seed})
        return strikes(faults, times=500)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert 150 < sum(drawn(1)) < 250


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "status"),
        ({"status": 200}, "status"),
        ({"status": "429"}, "status"),
        ({"status": True}, "status"),
        ({"status": 429, "operation": "explode"}, "explode"),
        ({"status": 429, "operation": 5}, "operation"),
        ({"status": 429, "count": 0}, "count"),
        ({"status": 429, "skip": -1}, "skip"),
        ({"status": 429, "probability": 2}, "probability"),
        ({"status": 429, "delay_s": float("nan")}, "delay_s"),
        ({"status": 429, "when": "later"}, "later"),
        ({"status": 429, "drop": True}, "drop"),
        ({"drop": 1}, "drop"),
        ({"status": 429, "op_index": 1}, "op_index"),
        ({"status": 429, "partition": 1}, "partition"),
        ({"status": 429, "op_index": 1, "operation": "batch", "when": "after"}, "op_index"),
        ({"status": 429, "retry_after": 5}, "retry_after"),
    ],
)
def test_a_mistake_in_a_rule_is_named(values, named):
    with pytest.raises(ValueError, match=named):
        FaultRule.from_dict(values)


@given(
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from(["status", "drop", "when", "count"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    )
)
def test_any_json_object_is_a_rule_or_a_value_error(values):
    try:
        rule = FaultRule.from_dict(values)
    except ValueError:
        return
    assert rule.drop or rule.status or rule.delay_s
    assert rule.when in When
