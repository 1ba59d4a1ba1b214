"""
Coverage: which keys no lease covers, and which have two leases; pure functions of what was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from cosmos_outbox.changefeed.bootstrap import uncovered
from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.changefeed.splits import descends
from cosmos_outbox.cli.leases import SeenLease
from cosmos_outbox.feed_range import FeedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """
    Two leases that have keys in common.

    unfinished: the first was being replaced by the second, as after a split, and whoever did that is gone.
    """

    tokens: tuple[str, str]
    unfinished: bool


def gaps(physical: Sequence[FeedRange], seen: Sequence[SeenLease]) -> tuple[FeedRange, ...]:
    """
    Return what no lease covers; not what a damaged one does, nor anything where that cannot be told.
    """
    damaged = [one.lease.range for one in seen if one.mistake]
    if None in damaged:
        return ()
    known = [feed_range for feed_range in damaged if feed_range is not None]
    missing = uncovered(physical, [one.lease for one in seen if not one.mistake])
    return tuple(left for gap in missing for left in gap.without(known))


def overlaps(leases: Sequence[Lease], *, now: datetime, expiration: timedelta) -> tuple[Overlap, ...]:
    """
    Return which leases have keys in common, but for those that a worker is about to replace by others.
    """
    found = []
    for one, other in combinations(leases, 2):
        first, second = one.range, other.range
        if first is None or second is None or not first.overlaps(second):
            continue
        if descends(one, other, second):
            one, other = other, one  # noqa: PLW2901 - the parent first
            first = second
        replaced = descends(other, one, first)
        if replaced and not one.expired(now, expiration):
            continue
        found.append(Overlap(tokens=(one.token, other.token), unfinished=replaced))
    return tuple(found)
