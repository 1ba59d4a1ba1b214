"""Tests that every implementation of the port Store has to pass. Through this port, an outbox reads and commits entities and events."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import math
from typing import Any

import pytest

from cosmos_outbox.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    NotModified,
    PreconditionFailed,
    RequestTooLarge,
    StoreError,
)
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Store, Write, WriteKind

KEY = "key é/+'%"  # with special characters, because a partition key is sent in an HTTP header
# Texts that are no continuation tokens. Some look like tokens of the store in memory, or of a Cosmos DB query.
NO_TOKENS = [
    "no token",
    "\0",
    "é",
    "after:",
    *(f"after:{text}" for text in ("1", "[]", "[1, 2]", "[" * 5000)),
]
NO_TOKENS += [base64.urlsafe_b64encode(text.encode()).decode() for text in ("1", "[]", "[1, 2]", "[" * 5000)]
NO_ETAGS = ["*", "", " ", "no etag", '"two", "etags"', '""quoted""', '"\u00e9"', '"a b"', '"a"\nX: y']


def a_document(document_id: str, *, key: str = KEY, **fields: Any) -> dict[str, Any]:
    return {"id": document_id, "partitionKey": key, "type": "thing", "data": {"id": document_id}, **fields}


def create(document_id: str, *, key: str = KEY, **fields: Any) -> Write:
    return Write(kind=WriteKind.CREATE, id=document_id, document=a_document(document_id, key=key, **fields))


def replace(document_id: str, etag: str | None, *, key: str = KEY, **fields: Any) -> Write:
    document = a_document(document_id, key=key, **fields)
    return Write(kind=WriteKind.REPLACE, id=document_id, document=document, etag=etag)


def delete(document_id: str, etag: str | None = None) -> Write:
    return Write(kind=WriteKind.DELETE, id=document_id, etag=etag)


def others(count: int) -> list[Write]:
    """Return `count` valid writes. A test puts them into a batch before a write that the store may refuse."""
    return [create(f"other{n}") for n in range(count)]


async def present(store: Store, *document_ids: str) -> list[str]:
    found = []
    for document_id in document_ids:
        try:
            found.append((await store.read(document_id, KEY))["id"])
        except NotFound:
            continue
    return found


async def pages(
    store: Store,
    *types: str,
    page_size: int,
    partition_key: str | None = None,
    include_deleted: bool = True,
) -> list[list[tuple[str, str]]]:
    """List all documents of the given types. Return a list for each page, with the id and the partition key of each document."""
    found: list[list[tuple[str, str]]] = []
    continuation = None
    while True:
        page = await store.list(
            types,
            partition_key=partition_key,
            page_size=page_size,
            continuation=continuation,
            include_deleted=include_deleted,
        )
        found.append([(document["id"], document["partitionKey"]) for document in page.documents])
        assert len(page.documents) <= page_size
        if (continuation := page.continuation) is None:
            return found


async def ids(store: Store, *types: str, include_deleted: bool = True) -> list[str]:
    found = await pages(store, *types, page_size=10, partition_key=KEY, include_deleted=include_deleted)
    return [document_id for page in found for document_id, _ in page]


class StoreContract:
    """
    Tests of a Store on an empty container that is partitioned on `/partitionKey`. Override the fixture `store`.
    """

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("Override the fixture `store`: it returns the store under test.")

    @pytest.mark.parametrize("count", [1, 2], ids=["single", "batch"])
    async def test_a_committed_document_is_read_as_it_was_written(self, store: Store, count: int) -> None:
        """A read returns what was committed. A commit returns the etags of its documents, so the next conditional write needs no read."""
        writes = [create(f"d{n}", data={"text": "ü✓", "nested": [1, None, True]}) for n in range(count)]

        result = await store.commit(KEY, writes)

        assert count == len(result.etags)
        assert result.request_charge > 0
        for write, etag in zip(writes, result.etags, strict=True):
            read = await store.read(write.id, KEY)
            assert etag == read["_etag"]
            assert write.document == {name: read[name] for name in write.document or ()}

    async def test_a_read_of_a_missing_document_raises_not_found(self, store: Store) -> None:
        """A read of a document that does not exist raises `NotFound`, which names the document."""
        with pytest.raises(NotFound) as caught:
            await store.read("missing", KEY)
        assert "missing" == caught.value.document_id

    async def test_two_partition_keys_can_have_documents_with_the_same_id(self, store: Store) -> None:
        """In Cosmos DB an id is unique only within a partition key, so two partition keys may each have a document with the same id."""
        await store.commit(KEY, [create("a")])
        await store.commit("other", [create("a", key="other")])

        assert ("other", KEY) == (
            (await store.read("a", "other"))["partitionKey"],
            (await store.read("a", KEY))["partitionKey"],
        )

    async def test_a_read_with_the_current_etag_raises_not_modified(
        self,
        store: Store,
    ) -> None:
        """If the reader has the newest version already, `NotModified` says so, and the document is not transferred again."""
        first = (await store.commit(KEY, [create("a")])).etags[0]
        with pytest.raises(NotModified) as caught:
            await store.read("a", KEY, if_none_match=first)
        assert first == caught.value.etag

        second = (await store.commit(KEY, [replace("a", first, n=2)])).etags[0]
        assert second == (await store.read("a", KEY, if_none_match=first))["_etag"]

    async def test_a_read_of_the_newest_version_finds_the_last_commit(self, store: Store) -> None:
        """
        Cosmos DB may answer a read from a replica that is behind. With `newest=True`, the read returns the last committed version, and
        raises `NotFound` only if the document does not exist.
        """
        first = (await store.commit(KEY, [create("a", n=1)])).etags[0]
        second = (await store.commit(KEY, [replace("a", first, n=2)])).etags[0]
        document = await store.read("a", KEY, newest=True)
        assert (second, 2) == (document["_etag"], document["n"])
        with pytest.raises(NotFound) as caught:
            await store.read("missing", KEY, newest=True)
        assert "missing" == caught.value.document_id

    @pytest.mark.parametrize("no_etag", NO_ETAGS)
    async def test_a_text_that_is_no_etag_matches_no_document(self, store: Store, no_etag: str) -> None:
        """Only the document's own etag matches it. Another text that a caller passes as an etag, such as `*`, never matches."""
        etag = (await store.commit(KEY, [create("a", n=1)])).etags[0]
        for form in (no_etag, f"W/{etag}", f" {etag}", str(etag).strip('"')):
            assert etag == (await store.read("a", KEY, if_none_match=form))["_etag"]
            for write in (replace("a", form, n=2), delete("a", form)):
                for count in (0, 1):
                    with pytest.raises(PreconditionFailed) as caught:
                        await store.commit(KEY, [*others(count), write])
                    assert ("a", form) == (caught.value.document_id, caught.value.expected)

    async def test_a_later_change_to_a_document_object_is_not_stored(self, store: Store) -> None:
        """The store keeps a copy of each document that it is given, and returns copies. So callers may change their objects."""
        written = a_document("a", data={"tags": ["one"]})
        await store.commit(KEY, [Write(kind=WriteKind.CREATE, id="a", document=written)])
        page = await store.list(
            ("thing",), partition_key=KEY, page_size=1, continuation=None, include_deleted=True
        )
        for copy in (written, await store.read("a", KEY), *page.documents):
            copy["data"]["tags"].append("two")
        assert ["one"] == (await store.read("a", KEY))["data"]["tags"]

    @pytest.mark.parametrize("count", [0, 2], ids=["single", "batch"])
    @pytest.mark.parametrize(
        ("refused", "error", "named"),
        [
            pytest.param(create("taken", n=3), Conflict, "taken", id="id taken"),
            pytest.param(replace("taken", "old", n=3), PreconditionFailed, "taken", id="replace, old etag"),
            pytest.param(delete("taken", '"wrong"'), PreconditionFailed, "taken", id="delete, other etag"),
            pytest.param(replace("gone", '"etag"'), NotFound, "gone", id="replace, not there"),
            pytest.param(delete("gone", '"etag"'), NotFound, "gone", id="delete, not there"),
            *(
                pytest.param(create("a", data={"n": value}), InvalidRequest, None, id=repr(value))
                for value in (math.nan, math.inf, -math.inf, "\ud800")  # values that JSON cannot express
            ),
        ],
    )
    async def test_the_error_of_a_refused_commit_names_the_document(
        self, store: Store, refused: Write, error: type[StoreError], named: str | None, count: int
    ) -> None:
        """The error names the document whose write was refused, and the expected etag. No write of the batch is applied."""
        old = (await store.commit(KEY, [create("taken", n=1)])).etags[0]
        await store.commit(KEY, [replace("taken", old, n=2)])
        write = dataclasses.replace(refused, etag=old if refused.etag == "old" else refused.etag)

        with pytest.raises(error) as caught:
            await store.commit(KEY, [*others(count), write])

        if named is not None:
            assert named == caught.value.document_id
        if isinstance(caught.value, PreconditionFailed):
            assert write.etag == caught.value.expected
        assert 2 == (await store.read("taken", KEY))["n"]
        assert [] == await present(store, "a", "other0", "other1")

    @pytest.mark.parametrize("count", [0, 1], ids=["single", "batch"])
    async def test_a_delete_with_the_current_etag_succeeds(self, store: Store, count: int) -> None:
        """A delete with the document's current etag deletes the document."""
        etag = (await store.commit(KEY, [create("a")])).etags[0]
        result = await store.commit(KEY, [*others(count), delete("a", etag)])
        assert result.etags[-1] is None
        assert [] == await present(store, "a")

    async def test_only_one_of_several_commits_with_the_same_etag_succeeds(self, store: Store) -> None:
        """If several writers commit at the same time with the same etag, one writes its whole batch and the others write nothing."""
        etag = (await store.commit(KEY, [create("a", n=-1)])).etags[0]

        async def attempt(n: int) -> int:
            await store.commit(KEY, [create(f"event{n}"), replace("a", etag, n=n)])
            return n

        outcomes = await asyncio.gather(*(attempt(n) for n in range(8)), return_exceptions=True)

        winners = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert 7 == sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes)
        assert winners == [(await store.read("a", KEY))["n"]]
        assert [f"event{winners[0]}"] == await present(store, *(f"event{n}" for n in range(8)))

    async def test_a_batch_of_100_operations_is_written(self, store: Store) -> None:
        """A batch of 100 operations, the limit of Cosmos DB, is written as one transaction."""
        most = [create(f"d{n}") for n in range(MAX_BATCH_OPERATIONS)]
        assert MAX_BATCH_OPERATIONS == len((await store.commit(KEY, most)).etags)

    @pytest.mark.parametrize(
        ("writes", "errors"),
        [
            pytest.param(others(MAX_BATCH_OPERATIONS + 1), InvalidRequest, id="one operation too many"),
            pytest.param(
                [create(f"other{n}", text="x" * (MAX_BATCH_BYTES // 2)) for n in range(2)],
                (RequestTooLarge, InvalidRequest),
                id="more than 2 MB",
            ),
            pytest.param([*others(1), create("b", key="other")], StoreError, id="another partition key"),
        ],
    )
    async def test_a_batch_beyond_the_limits_is_refused_as_a_whole(
        self, store: Store, writes: list[Write], errors: type[StoreError] | tuple[type[StoreError], ...]
    ) -> None:
        """
        A batch may have at most 100 operations, 2 MB and one partition key. The error for any other batch is not retriable, so no caller
        tries again.
        """
        with pytest.raises(errors) as caught:
            await store.commit(KEY, writes)
        assert not caught.value.retriable
        assert [] == await present(store, "other0", "other1", "other100")

    @pytest.mark.parametrize("page_size", [1, 2, 3, 100])
    async def test_the_pages_of_all_partition_keys_have_each_document_once(
        self, store: Store, page_size: int
    ) -> None:
        """Documents with the same id in several partition keys are all listed, even if a page ends between two of them."""
        written = [("a", "x"), *(("b", key) for key in ("k", "n", "l", "m", "0")), ("c", "y"), ("c", "x")]
        for document_id, key in written:
            await store.commit(key, [create(document_id, key=key)])
        await store.commit("k", [create("event", key="k", type="domainEvent")])

        found = await pages(store, "thing", page_size=page_size)

        assert sorted(written) == sorted(place for page in found for place in page)

    @pytest.mark.parametrize("page_size", [1, 2, 3, 100])
    async def test_the_pages_of_a_partition_key_are_ordered_by_id(self, store: Store, page_size: int) -> None:
        """A list of one partition key returns its documents in the order of their ids, and no documents of other keys."""
        for document_id in "dbace":
            await store.commit(KEY, [create(document_id)])
        await store.commit("other", [create("b", key="other")])

        found = await pages(store, "thing", page_size=page_size, partition_key=KEY)

        assert [(document_id, KEY) for document_id in "abcde"] == [place for page in found for place in page]

    async def test_a_list_omits_deleted_documents_by_default(self, store: Store) -> None:
        """Documents that are marked as deleted are listed only with `include_deleted=True`."""
        await store.commit(KEY, [create("a"), create("b", data={"deleted": True}), create("c", type="other")])
        assert ["a", "c"] == await ids(store, "thing", "other", include_deleted=False)
        assert ["a", "b"] == await ids(store, "thing")

    async def test_only_the_value_true_marks_a_document_as_deleted(self, store: Store) -> None:
        """A document is marked as deleted only if its field `deleted` is `true`, not if it is null, 0 or a text."""
        marks = [True, False, None, 0, "false"]
        writes = [create(str(n), data={"id": str(n), "deleted": mark}) for n, mark in enumerate(marks)]
        await store.commit(KEY, writes)
        assert ["1"] == await ids(store, "thing", include_deleted=False)

    async def test_a_list_without_results_is_one_empty_page(self, store: Store) -> None:
        """A list that finds no document returns one empty page, without a continuation."""
        assert [[]] == await pages(store, "nothing", page_size=5)

    async def test_a_store_reads_its_own_writes(self, store: Store) -> None:
        """After a commit, a read through the same store returns what was committed, and not the older state of a replica."""
        etag = (await store.commit(KEY, [create("a", n=0)])).etags[0]
        for n in range(1, 6):
            etag = (await store.commit(KEY, [create(f"e{n}"), replace("a", etag, n=n)])).etags[1]
            assert (n, etag) == ((read := await store.read("a", KEY))["n"], read["_etag"])

    @pytest.mark.parametrize("partition_key", [KEY, None])
    @pytest.mark.parametrize("continuation", NO_TOKENS)
    async def test_an_unknown_continuation_token_is_refused(
        self, store: Store, continuation: str, partition_key: str | None
    ) -> None:
        """A continuation token that no store returned is refused. If the list began at its first page instead, callers would loop."""
        await store.commit(KEY, [create("a"), create("b")])
        with pytest.raises(InvalidRequest):
            await store.list(
                ("thing",),
                partition_key=partition_key,
                page_size=1,
                continuation=continuation,
                include_deleted=True,
            )
