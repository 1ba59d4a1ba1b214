"""
A physical partition: the items of one range of effective partition keys, and the log of their changes. `container.py` splits and merges
partitions.

Each committed transaction takes the next log sequence number (LSN), and all items that it wrote have this number. The log can be
read from any LSN on, and shows only the newest version of each item. Entries of older versions are removed in bulk once they
outnumber the others, so memory grows with the data and not with the number of writes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from cosmos_outbox_emulators.cosmos.item import Item, ItemKey
from cosmos_outbox_emulators.cosmos.partition_key import FIRST_EPK, LAST_EPK
from cosmos_outbox_emulators.cosmos.scan_order import ScanOrder

_SLACK = 1000


class Partition:
    """A physical partition with the items of the range [low, high). Clients address it by its partition key range id."""

    def __init__(
        self,
        *,
        range_id: str,
        low: str = FIRST_EPK,
        high: str = LAST_EPK,
        parents: tuple[str, ...] = (),
        lsn: int = 1,
        items: Iterable[Item] = (),
    ) -> None:
        self.range_id = range_id
        self.low = low
        self.high = high
        self.parents = parents
        self.lsn = lsn
        self._items: dict[ItemKey, Item] = {}
        self._log_lsns: list[int] = []
        self._log_items: list[Item] = []
        self._expiries: list[tuple[float, ItemKey]] = []
        self._scan_order = ScanOrder()
        self._history: deque[tuple[float, int, dict[ItemKey, Item | None]]] = deque()
        for item in sorted(items, key=lambda item: item.lsn):
            self._insert(item)

    def with_items(self, items: Iterable[Item], lsn: int) -> Partition:
        """Return a copy of the partition that has these items and this LSN."""
        return Partition(
            range_id=self.range_id, low=self.low, high=self.high, parents=self.parents, lsn=lsn, items=items
        )

    def __len__(self) -> int:
        return len(self._items)

    @property
    def log_length(self) -> int:
        return len(self._log_items)

    def get(self, key: ItemKey) -> Item | None:
        return self._items.get(key)

    def apply(
        self, lsn: int, writes: Mapping[ItemKey, Item | None], *, at: float = 0.0, remember_s: float = 0.0
    ) -> None:
        """
        Make the writes of one transaction visible, all under `lsn`. A key with None is deleted. The replaced items are remembered
        for `remember_s` seconds, so that a lagging replica can be read.
        """
        while self._history and self._history[0][0] <= at - remember_s:
            self._history.popleft()
        if remember_s:
            self._history.append((at, lsn, {key: self._items.get(key) for key in writes}))
        for key, item in writes.items():
            if item is None:
                self._items.pop(key, None)
            else:
                self._insert(item)
        self.lsn = lsn
        self._compact()

    def lsn_at(self, moment: float) -> int:
        """Return the LSN that the partition had at a moment, as far back as writes are remembered."""
        return next((lsn - 1 for at, lsn, _ in self._history if at > moment), self.lsn)

    def get_at(self, key: ItemKey, lsn: int) -> Item | None:
        """Return an item as it was at an LSN, as far back as writes are remembered."""
        item = self._items.get(key)
        if item is not None and item.lsn <= lsn:
            return item
        for _, written, before in reversed(self._history):
            if written > lsn and key in before:
                item = before[key]
        return item

    def _insert(self, item: Item) -> None:
        previous = self._items.get(item.key)
        self._items[item.key] = item
        self._log_lsns.append(item.lsn)
        self._log_items.append(item)
        if previous is None or previous.sequence != item.sequence:
            self._scan_order.add(item)
        if item.expires_at is not None:
            heapq.heappush(self._expiries, (item.expires_at, item.key))

    def purge(self, now: float) -> None:
        """Remove expired items. Every access to the partition calls this first, so no other code has to check for expiry."""
        while self._expiries and self._expiries[0][0] <= now:
            expires_at, key = heapq.heappop(self._expiries)
            item = self._items.get(key)
            if item is not None and item.expires_at == expires_at:
                del self._items[key]
        self._compact()

    def _compact(self) -> None:
        bound = 2 * len(self._items) + _SLACK
        if len(self._log_items) > bound:
            living = [item for item in self._log_items if self._items.get(item.key) is item]
            self._log_items = living
            self._log_lsns = [item.lsn for item in living]
        if len(self._expiries) > bound:
            self._expiries = [
                (item.expires_at, key) for key, item in self._items.items() if item.expires_at is not None
            ]
            heapq.heapify(self._expiries)
        self._scan_order.compact(self._items)

    def changes_after(self, lsn: int) -> Iterator[Item]:
        """Yield the newest version of each item that changed after `lsn`, in the order of the changes."""
        for index in range(bisect_right(self._log_lsns, lsn), len(self._log_items)):
            item = self._log_items[index]
            if self._items.get(item.key) is item:
                yield item

    def scan(self, low: str, high: str, after: int = 0) -> Iterator[Item]:
        return self._scan_order.walk(self._items, low, high, after)
