"""
The walk of a query over the partitions of a container: range by range, in each range by age.

What is left of a walk is a list of segments, each with the age behind which it goes on. It stays true when items are written and
ranges are split or merged meanwhile: nothing is repeated or skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cosmos_outbox_emulators.cosmos.item import Item
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.scope import Window

Segment = tuple[str, str, int]  # effective partition keys from, up to; behind which sequence


class Walk:
    """
    The items of a window of effective partition keys.
    """

    def __init__(self, partitions: Sequence[Partition], window: Window) -> None:
        self.partitions = partitions
        self._window = window
        self.whole: tuple[Segment, ...] = ((window.low, window.high, 0),)

    def items(self, segments: Sequence[Segment] | None = None) -> Iterator[Item]:
        for low, high, after in self.whole if segments is None else segments:
            for partition in self.partitions:
                if partition.low < high and low < partition.high:
                    items = partition.scan(max(low, partition.low), min(high, partition.high), after)
                    yield from filter(self._window.contains, items)

    def rest(self, segments: Sequence[Segment], item: Item) -> tuple[Segment, ...]:
        """
        Return what is left behind an item that these segments led to.
        """
        for index, (low, high, after) in enumerate(segments):
            if low <= item.epk < high:
                (partition,) = (p for p in self.partitions if p.low <= item.epk < p.high)
                end = min(high, partition.high)
                here = (max(low, partition.low), end, item.sequence)
                later = [] if end == high else [(end, high, after)]
                return (here, *later, *segments[index + 1 :])
        return ()
