"""
The walk of a query over the partitions of a container: range by range, in each range by age.

A page never has rows of two ranges. What is left of a walk is a list of segments, each with the age behind which it goes on. It stays
true when items are written and ranges are split or merged meanwhile: nothing is repeated or skipped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

from cosmos_outbox_emulators.cosmos.item import Item
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject, encode
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.scope import Window

_NOWHERE: JsonObject = {"key": (b"", ""), "epk": "", "lsn": 0, "etag": "", "timestamp": 0, "expires_at": None}
# effective partition keys from, up to; and the sequence after which items follow
Segment = tuple[str, str, int]


class Walk:
    """The items of a window of effective partition keys."""

    looks_ahead = False  # whether a full page knows if another page follows

    def __init__(self, partitions: Sequence[Partition], window: Window) -> None:
        self.as_of: dict[str, int] = {}  # by range id, if a replica lags: the LSN up to which it reads
        self.partitions = partitions
        # Of the ranges that a client visits one by one, the first alone has the row of a query without FROM
        self.is_first = not partitions or partitions[0].low <= window.low
        self._window = window
        self.whole: tuple[Segment, ...] = ((window.low, window.high, 0),)

    def items(self, segment: Segment | None = None) -> Iterator[Item]:
        """Yield the rest of a segment, or everything."""
        low, high, after = segment or self.whole[0]
        for partition in self.partitions:
            if partition.low < high and low < partition.high:
                items = partition.scan(max(low, partition.low), min(high, partition.high), after)
                lsn = self.as_of.get(partition.range_id)
                if lsn is not None:
                    items = filter(None, [partition.get_at(item.key, lsn) for item in items])
                yield from filter(self._window.contains, items)

    def head(self, segments: Sequence[Segment]) -> tuple[Segment | None, tuple[Segment, ...]]:
        """Divide the rest into the part that the next range holds, and everything after it. Return None if nothing is left."""
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
    """Resources that no partition holds, such as databases, by the age that their resource ids show."""

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
