"""
A container: its properties, and the partitions that its items are spread over, which can be split and merged. `partition.py` has the
items.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from cosmos_outbox_emulators.cosmos import hash_v1, partition_key
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.item import Item, ItemKey, expiry
from cosmos_outbox_emulators.cosmos.jsontext import JsonObject
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.partition_key import LogicalKey

_RANGE_GONE = 1002
_COMPLETING_SPLIT = 1007
_CACHED_KEYS = 100_000
_Snapshot = list[tuple[str, str, int, list[Item]]]  # for each partition: its range (low, high), LSN and items


@dataclasses.dataclass(slots=True)
class Replication:
    """
    Says by how many seconds the replica that answers reads lags behind the writes. All containers of an account share one object
    of this class.
    """

    lag_s: float = 0.0


class Container:
    """A container. Its partition key has up to three paths, and its items are spread over one or more physical partitions."""

    def __init__(
        self,
        *,
        path: str,
        rid: str,
        raw_rid: bytes,
        properties: JsonObject,
        partitions: int,
        next_sequence: Callable[[], int],
        replication: Replication,
        token_version: int,
    ) -> None:
        self.path = path
        self.rid = rid
        self.raw_rid = raw_rid
        self.properties = properties
        self.next_sequence = next_sequence
        self.replication = replication
        self.token_version = token_version
        self.key_paths = [partition_key.parse_path(path) for path in properties["partitionKey"]["paths"]]
        self.version: int = properties["partitionKey"]["version"]
        self._ring = hash_v1 if self.version == 1 else partition_key
        self.partitions = [
            Partition(range_id=str(index), low=low, high=high)
            for index, (low, high) in enumerate(self._ring.even_ranges(partitions))
        ]
        self.generation = 1
        self.offer: JsonObject | None = None
        self.change_feed_reads = 0
        self.on_commit: Callable[[Partition, Mapping[ItemKey, Item | None]], None] | None = None
        self._next_range = partitions
        self._completing: dict[str, int] = {}
        self._keys: dict[str, LogicalKey] = {}
        self._snapshot: _Snapshot | None = None

    @property
    def next_range(self) -> int:
        return self._next_range

    def restore(self, partitions: list[Partition], generation: int, next_range: int) -> None:
        """Take over the partitions that were saved before the emulator was restarted."""
        self.partitions, self.generation, self._next_range = partitions, generation, next_range

    def take_snapshot(self) -> None:
        """Remember all items and LSNs for `restore_snapshot`, in place of an earlier snapshot."""
        self._snapshot = [
            (part.low, part.high, part.lsn, list(part.changes_after(0))) for part in self.partitions
        ]

    def restore_snapshot(self) -> None:
        """
        Put back the items and LSNs of the snapshot. This is what clients see after a restore in place, or after a failover that
        lost the latest writes.

        Ranges that were split since the snapshot stay split.
        """
        if self._snapshot is None:
            raise bad_request(f"There is no snapshot of {self.path}: take a snapshot before you restore it.")
        for index, old in enumerate(self.partitions):
            found = [part for part in self._snapshot if part[0] < old.high and old.low < part[1]]
            items = [item for *_, items in found for item in items if old.low <= item.epk < old.high]
            self.partitions[index] = new = old.with_items(items, max(lsn for _, _, lsn, _ in found))
            if self.on_commit:
                gone = {item.key: None for item in old.changes_after(0)}
                self.on_commit(new, {**gone, **{item.key: item for item in new.changes_after(0)}})

    @property
    def default_ttl(self) -> int | None:
        ttl: int | None = self.properties.get("defaultTtl")
        return ttl

    def item_count(self, now: float) -> int:
        for partition in self.partitions:
            partition.purge(now)
        return sum(map(len, self.partitions))

    def replace_properties(self, properties: JsonObject) -> None:
        """Replace the properties. If the default TTL changes, the time at which each item expires is computed again."""
        before = self.default_ttl
        self.properties = properties
        if before == self.default_ttl:
            return
        for index, old in enumerate(self.partitions):
            items = (
                dataclasses.replace(item, expires_at=expiry(item.body, item.timestamp, self.default_ttl))
                for item in old.changes_after(0)
            )
            self.partitions[index] = old.with_items(items, old.lsn)

    def id_of(self, rid: str) -> str | None:
        """Return the id of the item with this resource id, or None."""
        items = (item for partition in self.partitions for item in partition.changes_after(0))
        return next((item.body["id"] for item in items if item.body["_rid"] == rid), None)

    # Keys

    def key_from_header(self, text: str) -> LogicalKey:
        key = self._keys.get(text)
        if key is None:
            if len(self._keys) >= _CACHED_KEYS:
                self._keys.clear()
            key = self._keys[text] = partition_key.parse_header(text, len(self.key_paths), self.version)
        return key

    def encode_key_of(self, body: JsonObject) -> bytes:
        return partition_key.encode_key_of(body, self.key_paths)

    # Ranges

    def partition_of(self, epk: str) -> Partition:
        return self.partitions[bisect_right(self.partitions, epk, key=lambda partition: partition.low) - 1]

    def overlapping(self, low: str, high: str) -> list[Partition]:
        return [partition for partition in self.partitions if partition.low < high and low < partition.high]

    def partition_by_id(self, range_id: str) -> Partition:
        """
        Return the partition with this range id. If there is none, because it was split or merged, refuse the request with 410 as
        the service does.
        """
        found = self.find(range_id)
        if found is not None:
            return found
        left = self._completing.get(range_id, 0)
        if left > 0:
            self._completing[range_id] = left - 1
            raise CosmosError(410, f"Range {range_id} is completing a split.", substatus=_COMPLETING_SPLIT)
        raise CosmosError(410, f"Partition key range {range_id} is gone.", substatus=_RANGE_GONE)

    def split(self, range_id: str, *, completing: int = 0) -> tuple[str, str]:
        """
        Split a range in the middle, and return the ids of its two children.

        The next `completing` requests that name the old range are answered with 410/1007 (the split is under way), later requests
        with 410/1002 (the range is gone). The children keep the LSNs of their items, so a continuation of the parent is valid for
        both children.
        """
        parent = self._existing(range_id)
        cut = self._ring.middle(parent.low, parent.high)
        if not parent.low < cut < parent.high:
            raise bad_request(f"Range {range_id} is too narrow to split.")
        first = self._child([parent], parent.low, cut)
        second = self._child([parent], cut, parent.high)
        self._replace([parent], [first, second], completing)
        return first.range_id, second.range_id

    def merge(self, first_id: str, second_id: str, *, completing: int = 0) -> str:
        """
        Join two neighbouring ranges, and return the id of their child.

        Each item keeps its LSN, and the child goes on from the higher LSN of the two parents. So a continuation of either parent is
        valid if the child is read with that parent's range of effective partition keys.
        """
        low, high = sorted((self._existing(first_id), self._existing(second_id)), key=lambda p: p.low)
        if low is high or low.high != high.low:
            raise bad_request(f"Ranges {first_id} and {second_id} are not neighbours.")
        child = self._child([low, high], low.low, high.high)
        self._replace([low, high], [child], completing)
        return child.range_id

    def grow(self, count: int) -> None:
        """Split the widest range until there are `count` ranges, as the service does when the throughput is raised."""
        while len(self.partitions) < count:
            widest = max(
                self.partitions, key=lambda partition: self._ring.width(partition.low, partition.high)
            )
            self.split(widest.range_id)

    def find(self, range_id: str | None) -> Partition | None:
        return next((partition for partition in self.partitions if partition.range_id == range_id), None)

    def _existing(self, range_id: str) -> Partition:
        found = self.find(range_id)
        if found is not None:
            return found
        known = ", ".join(partition.range_id for partition in self.partitions)
        raise bad_request(f"There is no range {range_id}; the ranges are {known}.")

    def _child(self, parents: Sequence[Partition], low: str, high: str) -> Partition:
        child = Partition(
            range_id=str(self._next_range),
            low=low,
            high=high,
            parents=tuple(
                dict.fromkeys(id_ for parent in parents for id_ in (*parent.parents, parent.range_id))
            ),
            lsn=max(parent.lsn for parent in parents),
            items=[
                item
                for parent in parents
                for item in parent.changes_after(0)
                if low <= item.epk < high  # `high` may be "FF", which sorts after every key
            ],
        )
        self._next_range += 1
        return child

    def _replace(self, old: Sequence[Partition], new: Sequence[Partition], completing: int) -> None:
        self._completing.update((partition.range_id, completing) for partition in old)
        kept = [partition for partition in self.partitions if partition not in old]
        self.partitions = sorted([*kept, *new], key=lambda partition: partition.low)
        self.generation += 1
