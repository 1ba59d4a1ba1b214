"""
The order in which queries walk through a partition: by effective partition key, then by creation.

Positions never move, so a query resumed at a position neither repeats nor skips an item, whatever was written meanwhile, and
also when the partition was split.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping

from cosmos_outbox_emulators.cosmos.item import Item, ItemKey, Position

_SLACK = 1000


class ScanOrder:
    """
    Positions of the items of one partition, sorted when a query scans them.
    """

    def __init__(self) -> None:
        self._sorted: list[tuple[str, int, ItemKey]] = []
        self._added: list[tuple[str, int, ItemKey]] = []

    def add(self, item: Item) -> None:
        self._added.append((item.epk, item.sequence, item.key))

    def compact(self, items: Mapping[ItemKey, Item]) -> None:
        """
        Forget positions of deleted items once they outnumber the living.
        """
        if len(self._sorted) + len(self._added) > 2 * len(items) + _SLACK:
            self._sorted = sorted((item.epk, item.sequence, key) for key, item in items.items())
            self._added.clear()

    def walk(
        self, items: Mapping[ItemKey, Item], low: str, high: str, after: Position | None
    ) -> Iterator[Item]:
        if self._added:
            self._sorted += self._added
            self._sorted.sort()
            self._added.clear()
        order = self._sorted
        start = bisect_left(order, (low,))
        if after is not None:
            start = max(start, bisect_right(order, (after[0], after[1] + 1)))
        for index in range(start, bisect_left(order, (high,))):
            _, sequence, key = order[index]
            item = items.get(key)
            if item is not None and item.sequence == sequence:
                yield item
