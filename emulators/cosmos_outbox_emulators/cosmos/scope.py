"""
The part of a container that a query or a feed request addresses: a range of effective partition keys, or a single partition key.
"""

from __future__ import annotations

from dataclasses import dataclass

from cosmos_outbox_emulators.cosmos.item import Item
from cosmos_outbox_emulators.cosmos.partition_key import FIRST_EPK, LAST_EPK, LogicalKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The effective partition keys in [low, high), narrowed to one logical key if `key` is given."""

    low: str = FIRST_EPK
    high: str = LAST_EPK
    key: LogicalKey | None = None

    def covers(self, low: str, high: str) -> bool:
        return self.key is None and self.low <= low and high <= self.high

    def contains(self, item: Item) -> bool:
        return self.low <= item.epk < self.high and (self.key is None or item.key[0] == self.key.encoded)


def window_of_key(key: LogicalKey) -> Window:
    # "G" sorts after every hexadecimal digit, so [epk, epk + "G") holds exactly this effective partition key.
    return Window(low=key.epk, high=key.epk + "G", key=key)
