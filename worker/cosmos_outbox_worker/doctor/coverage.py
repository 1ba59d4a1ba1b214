"""Coverage: which keys no lease covers, and which have two leases; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from cosmos_outbox.changefeed.coverage import uncovered
from cosmos_outbox.changefeed.leases import Lease, is_child_of
from cosmos_outbox.feed_range import FeedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """
    Two leases that have keys in common.

    unfinished: the second is a child of the first; the worker that split the range ended before it deleted the first.
    """

    tokens: tuple[str, str]
    unfinished: bool


def gaps(
    physical: Sequence[FeedRange], leases: Sequence[Lease], damaged: Sequence[FeedRange | None]
) -> tuple[FeedRange, ...]:
    """Return what no lease covers; nothing if a damaged lease does not say what it covers."""
    known = [feed_range for feed_range in damaged if feed_range is not None]
    if len(known) < len(damaged):
        return ()
    return tuple(left for gap in uncovered(physical, leases) for left in gap.without(known))


def overlaps(leases: Sequence[Lease], *, now: datetime, expiration: timedelta) -> tuple[Overlap, ...]:
    """Return which leases have keys in common, except those that their owner is splitting."""
    found = []
    for one, other in combinations(leases, 2):
        first, second = one.range, other.range
        if first is None or second is None or not first.overlaps(second):
            continue
        if is_child_of(one, other):
            one, other = other, one  # noqa: PLW2901 - the parent first
        replaced = is_child_of(other, one)
        if replaced and not one.expired(now, expiration):
            continue
        found.append(Overlap(tokens=(one.token, other.token), unfinished=replaced))
    return tuple(found)
