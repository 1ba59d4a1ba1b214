"""
Tests of throttling by request units: requests of low priority are refused first, a throughput bucket has a limit of its own, and
each physical partition has its share of the units.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cosmos_outbox_emulators.cosmos.errors import CosmosError
from cosmos_outbox_emulators.cosmos.throttling import BUCKET, PRIORITY, Throttle
from tests.emulators.cosmos.driver import Driver, substatus

LOW, HIGH = {PRIORITY: "Low"}, {PRIORITY: "High"}


def spent(
    throttle: Throttle, headers: Mapping[str, str], *, now: float, units: float = 10, most: int = 1000
) -> float:
    """Send requests at one moment until a request is refused. Return how many request units they used."""
    total = 0.0
    for _ in range(most):
        try:
            throttle.admit("0", 1, headers, now)
        except CosmosError:
            break
        throttle.charge("0", headers, units)
        total += units
    return total


def test_requests_of_low_priority_are_refused_before_those_of_high_priority() -> None:
    """Without requests of high priority, requests of low priority may use all request units."""
    throttle = Throttle(100)
    assert 100 == spent(throttle, LOW, now=0.2)
    assert 100 == spent(throttle, HIGH, now=0.5), (
        "it is refused only where high priority alone used the second"
    )
    assert 0 == spent(throttle, {}, now=0.9)
    assert 0 == spent(throttle, LOW, now=1.1), (
        "low priority pays for what high priority used beyond the second"
    )
    assert 60 == spent(throttle, {}, now=1.2, most=6)
    assert 40 == spent(throttle, LOW, now=2.5), "60 request units were still owed"
    assert 100 == spent(throttle, LOW, now=30), "unused request units are not kept"


def test_a_throughput_bucket_may_use_only_its_percentage() -> None:
    throttle = Throttle(100, {"2": 30})
    assert 30 == spent(throttle, {BUCKET: "2"}, now=0)
    assert 70 == spent(throttle, {BUCKET: "3"}, now=0), (
        "a bucket without a percentage may use all of the container's throughput"
    )
    assert 30 == spent(throttle, {BUCKET: "2"}, now=1)
    with pytest.raises(CosmosError) as refused:
        throttle.admit("0", 1, {BUCKET: "2"}, 1.75)
    assert (429, 3212, 250) == (refused.value.status, refused.value.substatus, refused.value.retry_after_ms)
    with pytest.raises(ValueError, match="'6'"):
        Throttle(100, {"6": 10})


def test_the_gateway_throttles_each_partition_separately() -> None:
    driver = Driver(partitions=2)
    driver.gateway.throttle(driver.container, 40)
    first, second = (part.range_id for part in driver.container.partitions)
    answers = [driver.changes(first, **LOW) for _ in range(30)]
    statuses = [answer.status for answer in answers]
    assert {304, 429} == {*statuses}
    assert 20 == statuses.index(429), "half of 40, at one unit each"
    assert (429, 3200) == substatus(answers[-1])
    assert 304 == driver.changes(second, **LOW).status == driver.changes(first).status
    assert {10, 0} == {driver.gateway.counts[name] for name in ("throttled, low priority", "throttled")}
    driver.gateway.throttle(driver.container, 0)
    assert 304 == driver.changes(first, **LOW).status


def test_an_unknown_throughput_bucket_is_refused() -> None:
    """The test also checks that a container without a limit of request units ignores the headers for bucket and priority."""
    driver = Driver()
    assert 304 == driver.changes("0", **LOW, **{BUCKET: "5"}).status
    assert 400 == driver.changes("0", **{BUCKET: "6"}).status
