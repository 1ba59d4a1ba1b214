"""Tests that every implementation of the port ChangeFeed has to pass. Through this port, a worker reads the changes of a container."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from cosmos_outbox.changefeed.read_ahead import newest_below
from cosmos_outbox.errors import ContainerRecreated, NotFound, RangeGone
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangeFeed, ChangePage, StartFrom, Store, Write, WriteKind
from cosmos_outbox.stored_documents import Document


class ChangeFeedBackend(Protocol):
    """
    The container that a test uses: `feed` is the change feed under test, and through `store` the test writes documents.

    split: splits the physical partition with the given id. None if a test cannot split partitions, as on a real account.
    recreate: deletes the container and creates it again under the same name. None if a test cannot do that.
    """

    @property
    def store(self) -> Store: ...
    @property
    def feed(self) -> ChangeFeed: ...
    @property
    def split(self) -> Callable[[str], object] | None: ...
    @property
    def recreate(self) -> Callable[[], Awaitable[None]] | None: ...


class ChangeFeedContract:
    """
    Tests of a ChangeFeed on an empty container that is partitioned on `/partitionKey`. Override the fixtures `container` (one physical
    partition) and `wide` (four).
    """

    @pytest.fixture
    def container(self) -> ChangeFeedBackend:
        raise NotImplementedError(
            "Override the fixture `container`: it returns a container with one physical partition."
        )

    @pytest.fixture
    def wide(self) -> ChangeFeedBackend:
        raise NotImplementedError(
            "Override the fixture `wide`: it returns a container with four physical partitions."
        )

    async def test_ranges_cover_every_key_once_and_have_different_ids(self, wide: ChangeFeedBackend) -> None:
        """The ranges do not overlap and leave no gap. So the worker of exactly one lease reads the events of each partition key."""
        ranges = await wide.feed.physical_ranges()

        assert 4 == len({await wide.feed.partition_id(one) for one in ranges})
        bounds = sorted((one.min, one.max) for one in ranges)
        assert ("", "FF") == (bounds[0][0], bounds[-1][1])
        assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))

    async def test_the_ranges_together_deliver_every_document_once(self, wide: ChangeFeedBackend) -> None:
        """Workers read the ranges side by side, each by its lease. Together they miss no document and read none twice."""
        written = await _write_numbered(wide, 40)

        found = [d["id"] for r in await wide.feed.physical_ranges() for d in (await _drain(wide, r))[0]]

        assert sorted(written) == sorted(found)

    async def test_the_changes_of_a_key_come_in_commit_order_with_growing_lsns(
        self, container: ChangeFeedBackend
    ) -> None:
        """The changes of a partition key come in commit order, so a worker can send the events of the key in this order."""
        await _write_numbered(container, 30, keys=3)

        documents, _ = await _drain(container, max_items=7)

        assert list(range(30)) == [d["n"] for d in documents]
        assert sorted({d["_lsn"] for d in documents}) == [d["_lsn"] for d in documents]

    async def test_a_changed_document_is_delivered_once_at_the_place_of_its_last_change(
        self, container: ChangeFeedBackend
    ) -> None:
        """A document that was written twice is delivered once, in its newest version, at the place of its last write."""
        for number, name in enumerate("aba", start=1):
            await _write(container, "k", name, n=number)

        documents, _ = await _drain(container)

        assert [("b", 2), ("a", 3)] == [(d["id"], d["n"]) for d in documents]

    async def test_the_documents_of_a_batch_are_in_one_page_with_one_lsn(
        self, container: ChangeFeedBackend
    ) -> None:
        """All documents of a batch are in one page, so the worker can put the events of a commit in order."""
        await _write(container, "k", "first")
        await _write(container, "k", *(f"doc-{number}" for number in range(25)))

        first = await _read(container, max_items=10)
        rest, _ = await _drain(container, None, first.continuation, max_items=10)

        (whole,) = [ids for ids in (_ids(first.documents), _ids(rest)) if "doc-0" in ids]
        assert len(whole) in (25, 26)
        assert 1 == len({d["_lsn"] for d in (*first.documents, *rest) if d["id"].startswith("doc-")})

    async def test_reading_from_a_continuation_begins_after_its_page(
        self, container: ChangeFeedBackend
    ) -> None:
        """A worker that goes on from a saved position reads no change twice and skips none."""
        await _write_numbered(container, 10)
        page = await _read(container, max_items=4)

        rest, _ = await _drain(container, None, page.continuation)

        assert list(range(10)) == [d["n"] for d in (*page.documents, *rest)]
        assert page.continuation.startswith('"')

    @pytest.mark.parametrize("start", [StartFrom.BEGINNING, StartFrom.NOW])
    async def test_the_continuation_of_an_empty_page_leads_to_the_next_change(
        self, container: ChangeFeedBackend, start: StartFrom
    ) -> None:
        """A worker can save the position of a range that has no changes yet, and later read the next change from this position."""
        if start is StartFrom.NOW:
            await _write(container, "k", "old")
        empty = await _read(container, start=start)
        await _write(container, "k", "new")

        documents, _ = await _drain(container, None, empty.continuation)

        assert ((), ["new"]) == (empty.documents, _ids(documents))

    async def test_a_feed_that_starts_at_a_time_includes_the_whole_second(
        self, container: ChangeFeedBackend
    ) -> None:
        """
        OUTBOX_START may be a time. Cosmos DB stores times in whole seconds, so the feed begins with the first change of that second.
        """
        await _write(container, "k", "recent")
        (recent,) = (await _read(container)).documents
        written = datetime.fromtimestamp(recent["_ts"], UTC)
        for seconds, seen in ((-60, 1), (0, 1), (0.999, 1), (1, 0), (60, 0)):
            page = await _read(container, start=written + timedelta(seconds=seconds))
            assert ["recent"] * seen == _ids(page.documents)

    async def test_the_latest_lsn_shows_how_many_transactions_follow_a_page(
        self, container: ChangeFeedBackend
    ) -> None:
        """`latest_lsn` minus the LSN of the last document is the number of transactions that wait, which a worker shows as its lag."""
        await _write_numbered(container, 5, keys=1)
        page = await _read(container, max_items=2)

        assert page.latest_lsn is not None
        assert 3 == page.latest_lsn - page.documents[-1]["_lsn"]

    async def test_the_ranges_after_a_split_go_on_from_the_old_continuation(
        self, container: ChangeFeedBackend
    ) -> None:
        """After Cosmos DB split a range, a worker reads the new ranges from the old position. It misses no change and reads none twice."""
        if container.split is None:
            pytest.skip("a test cannot split partitions of this backend")
        parent = await _the_range(container)
        await _write_numbered(container, 20, "before")
        _, continuation = await _drain(container, parent)
        partition = await container.feed.partition_id(parent)
        container.split(partition)
        written = await _write_numbered(container, 20, "after")

        for call in (_read(container, parent, continuation), container.feed.partition_id(parent)):
            with pytest.raises(RangeGone):
                await call
        children = await container.feed.physical_ranges()
        found = [d["id"] for child in children for d in (await _drain(container, child, continuation))[0]]

        assert sorted(written) == sorted(found)
        assert partition not in {await container.feed.partition_id(child) for child in children}

    async def test_a_part_of_a_physical_range_can_be_read(self, container: ChangeFeedBackend) -> None:
        """After Cosmos DB merged two partitions, the range of a lease is only a part of a physical partition."""
        await _write_numbered(container, 40)
        middle = "20000000000000000000000000000000"
        low, _ = await _drain(container, FeedRange(min="", max=middle))
        high, _ = await _drain(container, FeedRange(min=middle, max="FF"))

        assert 40 == len({d["id"] for d in (*low, *high)}) == len(low) + len(high)
        assert low
        assert high

    async def test_a_reader_of_a_recreated_container_gets_an_error(
        self, container: ChangeFeedBackend
    ) -> None:
        """A saved position means nothing in a new container of the same name. So a read for the old container raises an error."""
        if container.recreate is None:
            pytest.skip("a test cannot recreate a container of this backend")
        await _write(container, "k", "old")
        before = (await container.feed.describe()).container_rid
        page = await _read(container)
        await container.recreate()
        # `describe` reads the id of the new container. A later read for the old container must still raise an error.
        assert before != (await container.feed.describe()).container_rid
        await _write(container, "k", "new-0", "new-1")

        for continuation in (None, page.continuation):
            with pytest.raises(ContainerRecreated):
                await _read(container, None, continuation, rid=before)
        assert ["new-0", "new-1"] == _ids((await _read(container)).documents)

    async def test_the_latest_lsn_shows_that_a_saved_position_is_beyond_the_feed(
        self, container: ChangeFeedBackend
    ) -> None:
        """After a container was restored from a backup, its `latest_lsn` is lower than the position that a lease has saved."""
        await _write_numbered(container, 5, keys=1)
        _, continuation = await _drain(container)
        ahead = await _read(container, None, '"5000"')
        reached = await _read(container, None, continuation)

        assert ((), '"5000"') == (ahead.documents, ahead.continuation)
        assert int(continuation.strip('"')) == ahead.latest_lsn
        assert newest_below('"5000"', ahead) == ahead.latest_lsn
        assert newest_below(continuation, reached) is None


async def _write(backend: ChangeFeedBackend, key: str, *ids: str, **fields: object) -> None:
    documents: list[Document] = [{"id": i, "partitionKey": key, "type": "thing", **fields} for i in ids]
    try:
        await backend.store.read(ids[0], key)
        kind = WriteKind.REPLACE
    except NotFound:
        kind = WriteKind.CREATE
    await backend.store.commit(key, [Write(kind=kind, id=one["id"], document=one) for one in documents])


async def _write_numbered(
    backend: ChangeFeedBackend, count: int, name: str = "doc", *, keys: int | None = None
) -> list[str]:
    """
    Write numbered documents, one after another, and return their ids. The documents have `keys` partition keys in turn. By default,
    each document has its own partition key.
    """
    for number in range(count):
        await _write(backend, f"key-{number % (keys or count)}", f"{name}-{number}", n=number)
    return [f"{name}-{number}" for number in range(count)]


async def _the_range(backend: ChangeFeedBackend) -> FeedRange:
    (physical,) = await backend.feed.physical_ranges()
    return physical


async def _read(
    backend: ChangeFeedBackend,
    feed_range: FeedRange | None = None,
    after: str | None = None,
    *,
    start: StartFrom | datetime = StartFrom.BEGINNING,
    max_items: int = 100,
    rid: str | None = None,
) -> ChangePage:
    return await backend.feed.read_page(
        feed_range or await _the_range(backend),
        container_rid=rid or (await backend.feed.describe()).container_rid,
        continuation=after,
        start=start,
        max_items=max_items,
    )


async def _drain(
    backend: ChangeFeedBackend,
    feed_range: FeedRange | None = None,
    after: str | None = None,
    *,
    max_items: int = 100,
) -> tuple[list[Document], str]:
    documents: list[Document] = []
    while True:
        page = await _read(backend, feed_range, after, max_items=max_items)
        after = page.continuation
        if not page.documents and not page.skipped:
            return documents, after
        documents += page.documents


def _ids(documents: Iterable[Document]) -> list[str]:
    return [document["id"] for document in documents]
