"""
The orders in which queries read items: the oldest first, among all items of a partition or among those of one partition key.

An item that is replaced keeps its place in the order. So a query that resumes after a certain item neither repeats nor skips an item.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter

from cosmos_outbox_emulators.cosmos.item import Item, ItemKey

_SLACK = 1000
_Entry = tuple[str, int, ItemKey]
_age = itemgetter(1)


class ScanOrder:
    """The order in which a query reads the items of one partition. New items are sorted in when the next query needs the order."""

    def __init__(self) -> None:
        self._by_key: list[_Entry] = []
        self._by_age: list[_Entry] = []
        self._added: list[_Entry] = []

    def add(self, item: Item) -> None:
        self._added.append((item.epk, item.sequence, item.key))

    def compact(self, items: Mapping[ItemKey, Item]) -> None:
        """Remove the entries of deleted items once they outnumber those of existing items."""
        if len(self._by_key) + len(self._added) > 2 * len(items) + _SLACK:
            self._added = [(item.epk, item.sequence, key) for key, item in items.items()]
            self._by_key, self._by_age = [], []

    def walk(self, items: Mapping[ItemKey, Item], low: str, high: str, after: int) -> Iterator[Item]:
        """Yield the items with an effective partition key in [low, high) that are newer than `after`, the oldest first."""
        if self._added:
            self._sort_in()
        # Effective partition keys are hexadecimal texts, so a range from `low` to `low` + "G" holds only the key `low`.
        if high == low + "G":
            places = self._by_key
            chosen = range(bisect_left(places, (low, after + 1)), bisect_left(places, (high,)))
        else:
            places = self._by_age
            chosen = range(bisect_right(places, after, key=_age), len(places))
        for index in chosen:
            epk, sequence, key = places[index]
            if low <= epk < high:
                item = items.get(key)
                if item is not None and item.sequence == sequence:
                    yield item

    def _sort_in(self) -> None:
        self._by_key += self._added
        self._by_key.sort()
        ages = [sequence for _, sequence, _ in (*self._by_age[-1:], *self._added)]
        self._by_age += self._added
        # Entries are out of order only after a split, which may add younger items before older items.
        if any(older > younger for older, younger in pairwise(ages)):
            self._by_age.sort(key=_age)
        self._added.clear()
