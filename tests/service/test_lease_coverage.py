"""
Tests of the check that every partition key has exactly one lease. It must find keys without a lease, and keys
with several leases.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cosmos_outbox.changefeed.leases import Lease, new_lease
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox_worker.doctor.leases import Overlap, gaps, overlaps

NOW = datetime(2026, 11, 21, tzinfo=UTC)
PHYSICAL = (
    FeedRange(min="", max="40"),
    FeedRange(min="40", max="FF"),
)


def lease(name: str, low: str, high: str, *, version: int = 0, owner: str | None = None) -> Lease:
    made = new_lease("p", name, FeedRange(min=low, max=high), version=version)
    owned = made.with_changes(now=NOW, owner=owner)
    return replace(owned, raw={**owned.raw, "_ts": NOW.timestamp()})


WHOLE, LEFT, RIGHT = lease("0", "", "40"), lease("2", "", "20"), lease("3", "20", "40")
OTHER = lease("1", "40", "FF")


def found(*leases: Lease) -> tuple[Overlap, ...]:
    return overlaps(leases, now=NOW, expiration=timedelta(seconds=60))


def unfinished(*tokens: str) -> Overlap:
    first, second = tokens
    return Overlap(tokens=(first, second), unfinished=True)


@pytest.mark.parametrize(
    ("leases", "expected"),
    [
        ((WHOLE, OTHER), ()),
        ((LEFT, RIGHT, OTHER), ()),
        ((WHOLE, LEFT, RIGHT), (unfinished("0", "2"), unfinished("0", "3"))),
        ((LEFT, WHOLE), (unfinished("0", "2"),)),
        ((lease("0", "", "40", owner="worker-1"), LEFT, RIGHT), ()),
        ((WHOLE, lease("-40", "", "40", version=1)), (unfinished("0", "-40"),)),
        ((WHOLE, lease("x", "", "40")), (Overlap(tokens=("0", "x"), unfinished=False),)),
        ((WHOLE, lease("x", "30", "50")), (Overlap(tokens=("0", "x"), unfinished=False),)),
    ],
)
def test_doctor_tells_an_unfinished_split_or_merge_from_other_overlapping_leases(
    leases: tuple[Lease, ...], expected: tuple[Overlap, ...]
) -> None:
    assert expected == found(*leases)


@pytest.mark.parametrize(
    ("whole", "damaged", "expected"),
    [
        ((WHOLE, OTHER), (), ()),
        ((LEFT, OTHER), (), (FeedRange(min="20", max="40"),)),
        ((LEFT,), (OTHER.range,), (FeedRange(min="20", max="40"),)),
        ((WHOLE,), (OTHER.range,), ()),
        ((LEFT,), (None,), ()),
    ],
)
def test_a_range_of_a_damaged_lease_does_not_count_as_a_gap(
    whole: tuple[Lease, ...], damaged: tuple[FeedRange | None, ...], expected: tuple[FeedRange, ...]
) -> None:
    assert expected == gaps(PHYSICAL, whole, damaged)
