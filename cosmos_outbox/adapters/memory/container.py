"""
MemoryContainer: a Cosmos DB container in memory, which defines the behavior of the Store and ChangeFeed ports.

It is for tests and simulations of programs that use this library. Every operation is atomic and lets other tasks run
first, so concurrent tasks interleave between operations as they would on a network.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import marshal
import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cosmos_outbox import errors, ports
from cosmos_outbox.partition_key import FeedRange, PartitionKey, identity, key_paths_of, key_text, parts_of
from cosmos_outbox.stored_documents import Document

_AFTER = "after:"
_KEY_SPACE = 1 << 126  # hashes of partition keys begin with 00 to 3F, as those of Cosmos DB do


_Place = tuple[Hashable, str]  # the partition key (in a hashable form) and the id of a document


@dataclass(slots=True)
class _Partition:
    id: str
    range: FeedRange
    lsn: int = 0
    documents: dict[_Place, Document] = field(default_factory=dict)
    log: list[tuple[int, _Place]] = field(default_factory=list)


class MemoryContainer:
    """
    A container whose documents have `id`, a partition key and an optional `ttl` in seconds.

    Args:
        ranges: number of physical partitions.
        key_paths: the partition key path, or up to three paths of a hierarchical key. Defaults to `/partitionKey`.
        now: a function that returns the seconds since 1970, for `_ts` and expiry. Defaults to the system clock.
    """

    def __init__(
        self,
        *,
        ranges: int = 1,
        key_paths: str | Sequence[str] = "/partitionKey",
        now: Callable[[], float] = time.time,
    ) -> None:
        self.key_paths = key_paths_of([key_paths] if isinstance(key_paths, str) else key_paths)
        self._rids = map(_container_rid, itertools.count())
        self._etags = itertools.count(1)
        self._now = now
        self.recreate(ranges=ranges)

    # Store

    async def read(
        self,
        document_id: str,
        partition_key: PartitionKey,
        *,
        if_none_match: str | None = None,
        newest: bool = False,
    ) -> Document:
        await asyncio.sleep(0)
        self._require_full(partition_key)
        document = self._find(partition_key, document_id)
        if document is None:
            raise errors.NotFound(document_id=document_id, partition_key=partition_key)
        if if_none_match is not None and if_none_match == document["_etag"]:
            raise errors.NotModified(etag=if_none_match, document_id=document_id, partition_key=partition_key)
        return copy_of(document)

    async def commit(self, partition_key: PartitionKey, writes: Sequence[ports.Write]) -> ports.CommitResult:
        await asyncio.sleep(0)
        self._require_full(partition_key)
        if not 1 <= len(writes) <= ports.MAX_BATCH_OPERATIONS:
            raise errors.InvalidRequest(
                f"A batch holds 1 to {ports.MAX_BATCH_OPERATIONS} operations, not {len(writes)}."
            )
        bodies = [_json_bytes(write.document) for write in writes]
        if sum(map(len, bodies)) > ports.MAX_BATCH_BYTES:
            raise errors.RequestTooLarge
        partition = self._partition_of(partition_key)
        staged: dict[_Place, Document | None] = {}
        etags: list[str | None] = []
        for write, body in zip(writes, bodies, strict=True):
            key = (identity(partition_key), write.id)
            current = staged[key] if key in staged else self._find(partition_key, write.id)
            staged[key] = self._apply(write, body, current, partition_key)
            stored = staged[key]
            etags.append(stored["_etag"] if stored else None)
        partition.lsn += 1
        for key, document in staged.items():
            if document is None:
                partition.documents.pop(key, None)
            else:
                partition.documents[key] = {**document, "_lsn": partition.lsn}
                partition.log.append((partition.lsn, key))
        return ports.CommitResult(etags=tuple(etags), request_charge=float(6 * len(writes)))

    async def list(
        self,
        types: Sequence[str],
        *,
        partition_key: PartitionKey | None,
        page_size: int,
        continuation: str | None,
        include_deleted: bool,
    ) -> ports.Page:
        await asyncio.sleep(0)
        if partition_key is not None:
            self._require_full(partition_key)
        wanted, after = None if partition_key is None else identity(partition_key), _after(continuation)
        found = sorted(
            (place, document)
            for partition in self._partitions
            for (key, _), document in partition.documents.items()
            if self._alive(document)
            and (wanted is None or key == wanted)
            and document.get("type") in types
            and (include_deleted or not _is_marked(document))
            and (place := self._order(document)) > after
        )
        page = found[:page_size]
        return ports.Page(
            documents=tuple(copy_of(document) for _, document in page),
            continuation=_AFTER + json.dumps(page[-1][0]) if found[page_size:] else None,
        )

    async def query(self, sql: str, parameters: Mapping[str, Any], **where: object) -> ports.Page:
        raise errors.UsageError(
            "A MemoryContainer evaluates no SQL: test code with this query on the Cosmos DB emulator of cosmos-outbox-emulators."
        )

    # ChangeFeed

    async def describe(self) -> ports.MonitoredContainer:
        return ports.MonitoredContainer(
            account_host="memory",
            database_rid="AAAAAA==",
            container_rid=self._rid,
            key_paths=self.key_paths,
        )

    async def physical_ranges(self) -> tuple[FeedRange, ...]:
        await asyncio.sleep(0)
        return tuple(partition.range for partition in self._partitions)

    async def partition_id(self, feed_range: FeedRange) -> str:
        await asyncio.sleep(0)
        return self._serving(feed_range).id

    async def read_page(
        self,
        feed_range: FeedRange,
        *,
        container_rid: str,
        continuation: str | None,
        start: ports.StartFrom | datetime,
        max_items: int,
    ) -> ports.ChangePage:
        await asyncio.sleep(0)
        if container_rid != self._rid:
            raise errors.ContainerRecreated
        partition = self._serving(feed_range)
        after, not_before = _position(partition, continuation, start)
        first = bisect_right(partition.log, after, key=lambda entry: entry[0])
        documents: list[Document] = []
        read_to = max(after, partition.lsn)  # `after` may be beyond the end of the feed: do not go back
        for lsn, key in itertools.islice(partition.log, first, None):
            if len(documents) >= max_items and lsn != documents[-1]["_lsn"]:
                read_to = documents[-1]["_lsn"]
                break
            document = partition.documents.get(key)
            if (
                document is not None
                and document["_lsn"] == lsn  # if not, a later change of the document replaced this change
                and document["_ts"] >= not_before
                and self._alive(document)
                and self._lies_in(feed_range, document)
            ):
                documents.append(copy_of(document))
        return ports.ChangePage(
            documents=tuple(documents),
            continuation=f'"{read_to}"',
            latest_lsn=partition.lsn,
            range_id=partition.id,
        )

    # The methods below do to the container what operators and Cosmos DB do, such as a split. Tests call them.

    def recreate(self, *, ranges: int = 1) -> None:
        """
        Delete the container with all its documents, and create it again under the same name, with another resource id.
        """
        bounds = ["", *(f"{_KEY_SPACE * i // ranges:032X}" for i in range(1, ranges)), "FF"]
        self._rid = next(self._rids)
        self._partitions = [
            _Partition(str(i), FeedRange(min=low, max=high))
            for i, (low, high) in enumerate(itertools.pairwise(bounds))
        ]
        self._next_id = itertools.count(ranges)

    def split(self, range_id: str) -> tuple[str, str]:
        """Split a physical partition in the middle; return the ids of its two children."""
        parent = self._partition(range_id)
        low = int(parent.range.min or "0", 16)
        high = _KEY_SPACE if parent.range.max == "FF" else int(parent.range.max, 16)
        middle = f"{(low + high) // 2:032X}"
        lower = self._move([parent], FeedRange(min=parent.range.min, max=middle))
        upper = self._move([parent], FeedRange(min=middle, max=parent.range.max))
        position = self._partitions.index(parent)
        self._partitions[position : position + 1] = [lower, upper]
        return lower.id, upper.id

    def merge(self, first_id: str, second_id: str) -> str:
        """
        Merge two neighbouring physical partitions; return the id of the merged one.

        Changes keep their LSNs. So a read that continues from a position in one of the old partitions may return a
        change again, but misses none.
        """
        first, second = self._partition(first_id), self._partition(second_id)
        merged = self._move([first, second], FeedRange(min=first.range.min, max=second.range.max))
        position = self._partitions.index(first)
        self._partitions[position : position + 2] = [merged]
        return merged.id

    def lose(self, range_id: str, transactions: int) -> None:
        """
        Remove the newest transactions of a physical partition, as a restore or a failover with loss does.

        The partition's LSN falls, and later commits reuse the removed LSNs. A document that a removed transaction had
        replaced or deleted does not come back.
        """
        partition = self._partition(range_id)
        partition.lsn = max(0, partition.lsn - transactions)
        partition.log = [entry for entry in partition.log if entry[0] <= partition.lsn]
        partition.documents = {
            key: document
            for key, document in partition.documents.items()
            if document["_lsn"] <= partition.lsn
        }

    def documents(self) -> tuple[Document, ...]:
        """Return all documents that have not expired, for the assertions of a test."""
        found = (document for partition in self._partitions for document in partition.documents.values())
        return tuple(copy_of(document) for document in found if self._alive(document))

    def _move(self, parents: Sequence[_Partition], feed_range: FeedRange) -> _Partition:
        child = _Partition(str(next(self._next_id)), feed_range, max(parent.lsn for parent in parents))
        for parent in parents:
            child.documents |= {
                key: document
                for key, document in parent.documents.items()
                if self._lies_in(feed_range, document)
            }
            child.log += [entry for entry in parent.log if entry[1] in child.documents]
        child.log.sort(key=lambda entry: entry[0])
        return child

    def _apply(
        self, write: ports.Write, body: bytes, current: Document | None, partition_key: PartitionKey
    ) -> Document | None:
        if write.kind is ports.WriteKind.CREATE and current is not None:
            raise errors.Conflict(document_id=write.id, partition_key=partition_key)
        if write.kind in (ports.WriteKind.REPLACE, ports.WriteKind.DELETE) and current is None:
            raise errors.NotFound(document_id=write.id, partition_key=partition_key)
        if write.etag is not None and current is not None and current["_etag"] != write.etag:
            raise errors.PreconditionFailed(
                expected=write.etag,
                actual=current["_etag"],
                document_id=write.id,
                partition_key=partition_key,
            )
        if write.kind is ports.WriteKind.DELETE:
            return None
        document: Document = json.loads(body)
        key = self.key_paths.key_of(document)
        if document.get("id") != write.id or key is None or identity(key) != identity(partition_key):
            raise errors.InvalidRequest("The document's id or partition key differs from that of its write.")
        return {**document, "_etag": f'"{next(self._etags):08x}"', "_ts": int(self._now())}

    def _partition(self, range_id: str) -> _Partition:
        return next(partition for partition in self._partitions if partition.id == range_id)

    def _partition_of(self, partition_key: PartitionKey) -> _Partition:
        place = effective_partition_key(partition_key)
        return next(one for one in self._partitions if one.range.min <= place < one.range.max)

    def _lies_in(self, feed_range: FeedRange, document: Document) -> bool:
        key = self.key_paths.key_of(document)
        return key is not None and feed_range.min <= effective_partition_key(key) < feed_range.max

    def _require_full(self, partition_key: PartitionKey) -> None:
        if len(parts_of(partition_key)) != len(self.key_paths.levels):
            raise errors.InvalidRequest(
                f"The container is partitioned on {self.key_paths}: give a key with a value for each."
            )

    def _order(self, document: Document) -> tuple[str, ...]:
        key = self.key_paths.key_of(document)
        return document["id"], "" if key is None else key_text(key)

    def _serving(self, feed_range: FeedRange) -> _Partition:
        for partition in self._partitions:
            if partition.range.contains(feed_range):
                return partition
        raise errors.RangeGone

    def _find(self, partition_key: PartitionKey, document_id: str) -> Document | None:
        document = self._partition_of(partition_key).documents.get((identity(partition_key), document_id))
        return document if document is not None and self._alive(document) else None

    def _alive(self, document: Document) -> bool:
        ttl = document.get("ttl")
        return not isinstance(ttl, int) or ttl < 0 or self._now() < document["_ts"] + ttl


def copy_of(document: Mapping[str, Any]) -> Document:
    """Return a deep copy of a document, as if it had come over the network."""
    copy: Document = marshal.loads(marshal.dumps(dict(document)))  # noqa: S302 - our own; several times as fast as deepcopy
    return copy


def effective_partition_key(partition_key: PartitionKey) -> str:
    """
    Return the hash of a partition key as 32 upper-case hexadecimal digits. It decides which physical partition stores
    the key, and is not the hash that Cosmos DB uses.
    """
    digest = hashlib.blake2b(key_text(partition_key).encode(), digest_size=16).digest()
    return f"{int.from_bytes(digest) % _KEY_SPACE:032X}"


def _container_rid(number: int) -> str:
    # Build a resource id like those of Cosmos DB: four bytes for the database, then four for the container.
    # The highest bit of the container's bytes is set.
    return base64.b64encode(bytes(4) + (0x80000000 + number).to_bytes(4)).decode()


def _json_bytes(document: Mapping[str, Any] | None) -> bytes:
    try:
        return json.dumps(document or {}, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:  # NaN, an infinity, or half of a surrogate pair
        raise errors.InvalidRequest(f"The document cannot be written as JSON: {error}") from error


def _is_marked(document: Document) -> bool:
    data = document.get("data")
    return isinstance(data, Mapping) and data.get("deleted", False) is not False


def _after(continuation: str | None) -> tuple[str, ...]:
    if continuation is None:
        return ()
    with suppress(ValueError, RecursionError):
        match json.loads(continuation.removeprefix(_AFTER)) if continuation.startswith(_AFTER) else None:
            case [str(last_id), str(key)]:
                return last_id, key
    raise errors.InvalidRequest("This is no token of this container: pass the last page's continuation.")


def _position(
    partition: _Partition, continuation: str | None, start: ports.StartFrom | datetime
) -> tuple[int, int]:
    if continuation is not None:
        return int(continuation.strip('"')), 0
    if isinstance(start, datetime):
        return 0, int(start.timestamp())
    return (partition.lsn if start is ports.StartFrom.NOW else 0), 0
