"""
The order in which a query visits the items of a container: one range after the other, and in each range from the oldest item to the newest.
`sql/execution.py` computes the rows.

A page never has rows of two ranges. What remains of a walk is a list of parts of ranges, each with the sequence number of the item that was
visited last. The list stays valid when items are written and ranges are split or merged: no item is repeated or skipped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

from cosmos_outbox_emulators.cosmos.item import Item
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject, encode
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.scope import Window

_NOWHERE: JsonObject = {"key": (b"", ""), "epk": "", "lsn": 0, "etag": "", "timestamp": 0, "expires_at": None}
# A range of effective partition keys (from, up to), and the sequence number after which the remaining items come
Segment = tuple[str, str, int]


class Walk:
    """Visits the items of a container whose effective partition keys are in a range, the `window`."""

    looks_ahead = False  # whether the walk can tell, after a full page, if more items follow

    def __init__(self, partitions: Sequence[Partition], window: Window) -> None:
        self.as_of: dict[str, int] = {}  # the last LSN to read, by range id; empty unless replicas lag
        self.partitions = partitions
        # A query without FROM has exactly one row. If a client visits the ranges one by one, only the first range returns this
        # row.
        self.is_first = not partitions or partitions[0].low <= window.low
        self._window = window
        self.whole: tuple[Segment, ...] = ((window.low, window.high, 0),)

    def items(self, segment: Segment | None = None) -> Iterator[Item]:
        """Yield the items that remain in a segment (a part of the range). Without a segment, yield all items."""
        low, high, after = segment or self.whole[0]
        for partition in self.partitions:
            if partition.low < high and low < partition.high:
                items = partition.scan(max(low, partition.low), min(high, partition.high), after)
                lsn = self.as_of.get(partition.range_id)
                if lsn is not None:
                    items = filter(None, [partition.get_at(item.key, lsn) for item in items])
                yield from filter(self._window.contains, items)

    def head(self, segments: Sequence[Segment]) -> tuple[Segment | None, tuple[Segment, ...]]:
        """
        Divide what remains of a walk: return the part (segment) that lies in the next partition, and the parts after it. The first
        value is None if nothing is left.
        """
        for index, (low, high, after) in enumerate(segments):
            for partition in self.partitions:
                if partition.low < high and low < partition.high:
                    end = min(high, partition.high)
                    later = [(end, high, after), *segments[index + 1 :]]
                    return (max(low, partition.low), end, after), tuple(filter(self._holds, later))
        return None, ()

    def _holds(self, segment: Segment) -> bool:
        low, high, _ = segment
        return low < high and any(
            partition.low < high and low < partition.high for partition in self.partitions
        )


class Listed(Walk):
    """Visits resources that are in no partition, such as databases, the oldest first: their resource ids show their age."""

    looks_ahead = True

    def __init__(self, resources: Sequence[JsonObject]) -> None:
        super().__init__((), Window(low="", high="FF"))
        ages = (int.from_bytes(base64.b64decode(one["_rid"], b"+-"), "big") for one in resources)
        found = [
            Item(sequence=age, body=one, encoded=encode(one), **_NOWHERE)
            for age, one in zip(ages, resources, strict=True)
        ]
        self._found = sorted(found, key=lambda item: item.sequence)

    def items(self, segment: Segment | None = None) -> Iterator[Item]:
        _, _, after = segment or self.whole[0]
        return (item for item in self._found if item.sequence > after)

    def head(self, segments: Sequence[Segment]) -> tuple[Segment | None, tuple[Segment, ...]]:
        return segments[0] if segments else None, ()
