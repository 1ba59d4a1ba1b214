"""The promises of every Store."""

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

KEY = "key é/+'%"  # partition keys travel in a header, ids in a URL
# Some look like a continuation token, of memory or of a query.
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
    """Return valid writes, to stand in a batch before one that the store may refuse."""
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
    """Return ids and partition keys from all pages of documents of some types."""
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
    The promises of a Store on an empty container that is partitioned on `/partitionKey`: override `store`.
    """

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("Override the fixture `store`: it returns the store under test.")

    @pytest.mark.parametrize("count", [1, 2], ids=["single", "batch"])
    async def test_what_was_committed_is_read_as_it_was_written_with_the_etag_of_the_answer(
        self, store: Store, count: int
    ) -> None:
        """A commit answers with the etags that the next conditional writes need."""
        writes = [create(f"d{n}", data={"text": "ü✓", "nested": [1, None, True]}) for n in range(count)]

        result = await store.commit(KEY, writes)

        assert count == len(result.etags)
        assert result.request_charge > 0
        for write, etag in zip(writes, result.etags, strict=True):
            read = await store.read(write.id, KEY)
            assert etag == read["_etag"]
            assert write.document == {name: read[name] for name in write.document or ()}

    async def test_a_document_that_is_not_there_is_not_found(self, store: Store) -> None:
        """`NotFound` names the document."""
        with pytest.raises(NotFound) as caught:
            await store.read("missing", KEY)
        assert "missing" == caught.value.document_id

    async def test_the_same_id_in_another_partition_key_is_another_document(self, store: Store) -> None:
        """An id is unique inside its partition key only."""
        await store.commit(KEY, [create("a")])
        await store.commit("other", [create("a", key="other")])

        assert ("other", KEY) == (
            (await store.read("a", "other"))["partitionKey"],
            (await store.read("a", KEY))["partitionKey"],
        )

    async def test_a_read_with_the_current_etag_says_not_modified_and_with_an_old_one_returns_the_document(
        self,
        store: Store,
    ) -> None:
        """`NotModified` saves the transfer to a reader that has the newest version."""
        first = (await store.commit(KEY, [create("a")])).etags[0]
        with pytest.raises(NotModified) as caught:
            await store.read("a", KEY, if_none_match=first)
        assert first == caught.value.etag

        second = (await store.commit(KEY, [replace("a", first, n=2)])).etags[0]
        assert second == (await store.read("a", KEY, if_none_match=first))["_etag"]

    async def test_the_newest_is_read_whatever_a_replica_has(self, store: Store) -> None:
        """`newest` reads from the replica that takes writes: a committed document is there, and a missing one is `NotFound`."""
        first = (await store.commit(KEY, [create("a", n=1)])).etags[0]
        second = (await store.commit(KEY, [replace("a", first, n=2)])).etags[0]
        document = await store.read("a", KEY, newest=True)
        assert (second, 2) == (document["_etag"], document["n"])
        with pytest.raises(NotFound) as caught:
            await store.read("missing", KEY, newest=True)
        assert "missing" == caught.value.document_id

    @pytest.mark.parametrize("no_etag", NO_ETAGS)
    async def test_what_is_no_etag_is_no_documents_etag(self, store: Store, no_etag: str) -> None:
        """Whatever a caller sends as an etag, only the document's own etag matches it: `*` does not."""
        etag = (await store.commit(KEY, [create("a", n=1)])).etags[0]
        for form in (no_etag, f"W/{etag}", f" {etag}", str(etag).strip('"')):
            assert etag == (await store.read("a", KEY, if_none_match=form))["_etag"]
            for write in (replace("a", form, n=2), delete("a", form)):
                for count in (0, 1):
                    with pytest.raises(PreconditionFailed) as caught:
                        await store.commit(KEY, [*others(count), write])
                    assert ("a", form) == (caught.value.document_id, caught.value.expected)

    async def test_what_a_writer_or_a_reader_does_to_its_document_afterwards_is_not_stored(
        self, store: Store
    ) -> None:
        """The store keeps a copy of each document that it gets, and returns copies."""
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
    async def test_a_refused_write_names_its_document_and_nothing_is_written(
        self, store: Store, refused: Write, error: type[StoreError], named: str | None, count: int
    ) -> None:
        """The error names the document that refused the commit, and its etag. No other write of the batch is applied (G1)."""
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
    async def test_a_delete_under_the_right_etag_deletes(self, store: Store, count: int) -> None:
        """A conditional delete deletes only the version that its caller has read."""
        etag = (await store.commit(KEY, [create("a")])).etags[0]
        result = await store.commit(KEY, [*others(count), delete("a", etag)])
        assert result.etags[-1] is None
        assert [] == await present(store, "a")

    async def test_one_of_many_commits_on_the_same_etag_succeeds_with_all_it_writes(
        self, store: Store
    ) -> None:
        """Of writers at the same time, one succeeds with its whole batch, the others with nothing (G1)."""
        etag = (await store.commit(KEY, [create("a", n=-1)])).etags[0]

        async def attempt(n: int) -> int:
            await store.commit(KEY, [create(f"event{n}"), replace("a", etag, n=n)])
            return n

        outcomes = await asyncio.gather(*(attempt(n) for n in range(8)), return_exceptions=True)

        winners = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert 7 == sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes)
        assert winners == [(await store.read("a", KEY))["n"]]
        assert [f"event{winners[0]}"] == await present(store, *(f"event{n}" for n in range(8)))

    async def test_a_batch_of_as_many_operations_as_allowed_is_written(self, store: Store) -> None:
        """100 operations are one transaction."""
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
    async def test_what_is_no_transaction_is_refused_whole_and_never_split(
        self, store: Store, writes: list[Write], errors: type[StoreError] | tuple[type[StoreError], ...]
    ) -> None:
        """
        A batch has 100 operations, 2 MB and one partition key at most; an error that lasts is not retriable.
        """
        with pytest.raises(errors) as caught:
            await store.commit(KEY, writes)
        assert not caught.value.retriable
        assert [] == await present(store, "other0", "other1", "other100")

    @pytest.mark.parametrize("page_size", [1, 2, 3, 100])
    async def test_all_documents_of_a_type_are_paged_once_over_all_partition_keys(
        self, store: Store, page_size: int
    ) -> None:
        """This includes documents of one id in many partition keys: a page that ends between two of them loses neither."""
        written = [("a", "x"), *(("b", key) for key in ("k", "n", "l", "m", "0")), ("c", "y"), ("c", "x")]
        for document_id, key in written:
            await store.commit(key, [create(document_id, key=key)])
        await store.commit("k", [create("event", key="k", type="domainEvent")])

        found = await pages(store, "thing", page_size=page_size)

        assert sorted(written) == sorted(place for page in found for place in page)

    @pytest.mark.parametrize("page_size", [1, 2, 3, 100])
    async def test_documents_of_a_partition_key_are_paged_by_id(self, store: Store, page_size: int) -> None:
        """No other partition key is read."""
        for document_id in "dbace":
            await store.commit(KEY, [create(document_id)])
        await store.commit("other", [create("b", key="other")])

        found = await pages(store, "thing", page_size=page_size, partition_key=KEY)

        assert [(document_id, KEY) for document_id in "abcde"] == [place for page in found for place in page]

    async def test_a_list_of_several_types_omits_what_is_deleted_unless_it_is_asked_for(
        self, store: Store
    ) -> None:
        """`include_deleted` decides about documents that are marked as deleted."""
        await store.commit(KEY, [create("a"), create("b", data={"deleted": True}), create("c", type="other")])
        assert ["a", "c"] == await ids(store, "thing", "other", include_deleted=False)
        assert ["a", "b"] == await ids(store, "thing")

    async def test_whether_a_document_is_marked_as_deleted_is_said_by_true_and_false_alone(
        self, store: Store
    ) -> None:
        """Only `true` marks a document as deleted."""
        marks = [True, False, None, 0, "false"]
        writes = [create(str(n), data={"id": str(n), "deleted": mark}) for n, mark in enumerate(marks)]
        await store.commit(KEY, writes)
        assert ["1"] == await ids(store, "thing", include_deleted=False)

    async def test_no_documents_of_a_type_are_one_empty_page(self, store: Store) -> None:
        """A list that finds nothing has one page."""
        assert [[]] == await pages(store, "nothing", page_size=5)

    async def test_a_reader_sees_its_own_writes_at_once(self, store: Store) -> None:
        """A store reads what it committed, not a replica that is behind."""
        etag = (await store.commit(KEY, [create("a", n=0)])).etags[0]
        for n in range(1, 6):
            etag = (await store.commit(KEY, [create(f"e{n}"), replace("a", etag, n=n)])).etags[1]
            assert (n, etag) == ((read := await store.read("a", KEY))["n"], read["_etag"])

    @pytest.mark.parametrize("partition_key", [KEY, None])
    @pytest.mark.parametrize("continuation", NO_TOKENS)
    async def test_a_continuation_that_no_store_gave_out_is_refused(
        self, store: Store, continuation: str, partition_key: str | None
    ) -> None:
        """A token that the store did not give out is refused, not taken for the beginning."""
        await store.commit(KEY, [create("a"), create("b")])
        with pytest.raises(InvalidRequest):
            await store.list(
                ("thing",),
                partition_key=partition_key,
                page_size=1,
                continuation=continuation,
                include_deleted=True,
            )
