"""
FeedRange: a part of a container, by effective partition keys; leases, feeds and physical partitions name one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRange:
    """A range of effective partition keys, upper-case hexadecimal, min inclusive and max exclusive."""

    min: str
    max: str

    def overlaps(self, other: FeedRange) -> bool:
        return self.min < other.max and other.min < self.max

    def contains(self, other: FeedRange) -> bool:
        return self.min <= other.min and other.max <= self.max

    def intersection(self, other: FeedRange) -> FeedRange:
        """Return the keys that lie in both of two ranges that overlap."""
        return FeedRange(min=max(self.min, other.min), max=min(self.max, other.max))

    def without(self, others: Iterable[FeedRange]) -> tuple[FeedRange, ...]:
        """Return what is left of this range outside all of the others, in order."""
        left, low = [], self.min
        for other in sorted(others, key=lambda other: other.min):
            if low < other.max and other.min < self.max:
                if other.min > low:
                    left.append(FeedRange(min=low, max=other.min))
                low = other.max
        return (*left, FeedRange(min=low, max=self.max)) if low < self.max else tuple(left)
