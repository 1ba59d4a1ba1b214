"""
What every Store promises.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    NotModified,
    PreconditionFailed,
    RequestTooLarge,
    StoreError,
    UsageError,
)
from cosmos_outbox.ports import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Query, Store, Write, WriteKind
from tests.contracts.backends import BACKENDS, opened
from tests.support.faulty_store import FaultyStore
from tests.support.notes import Line, Note

pytestmark = pytest.mark.looptime(False)

KEY = "key é/+'%"  # partition keys travel in a header, ids in a URL


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with opened(request.param, ranges=2) as container:
        yield container.store


def a_document(document_id: str, *, key: str = KEY, **fields: Any) -> dict[str, Any]:
    return {"id": document_id, "partitionKey": key, "type": "thing", "data": {"id": document_id}, **fields}


def create(document_id: str, *, key: str = KEY, **fields: Any) -> Write:
    return Write(kind=WriteKind.CREATE, id=document_id, document=a_document(document_id, key=key, **fields))


def replace(document_id: str, etag: str | None, **fields: Any) -> Write:
    return Write(
        kind=WriteKind.REPLACE, id=document_id, document=a_document(document_id, **fields), etag=etag
    )


async def present(store: Store, *document_ids: str) -> list[str]:
    found = []
    for document_id in document_ids:
        try:
            found.append((await store.read(document_id, KEY))["id"])
        except NotFound:
            continue
    return found


@pytest.mark.parametrize("count", [1, 2], ids=["single", "batch"])
async def test_what_was_committed_is_read_as_it_was_written_with_the_etag_of_the_answer(
    store: Store, count: int
):
    documents = [a_document(f"d{n}", data={"text": "ü✓", "nested": [1, None, True]}) for n in range(count)]

    result = await store.commit(
        KEY, [Write(kind=WriteKind.CREATE, id=d["id"], document=d) for d in documents]
    )

    assert count == len(result.etags)
    assert result.request_charge > 0
    for document, etag in zip(documents, result.etags, strict=True):
        read = await store.read(document["id"], KEY)
        assert etag == read["_etag"]
        assert document == {name: read[name] for name in document}


async def test_a_document_that_is_not_there_is_not_found(store: Store):
    with pytest.raises(NotFound) as caught:
        await store.read("nobody", KEY)
    assert "nobody" == caught.value.document_id


async def test_the_same_id_in_another_partition_key_is_another_document(store: Store):
    await store.commit(KEY, [create("a")])
    await store.commit("other", [create("a", key="other")])

    assert ("other", KEY) == (
        (await store.read("a", "other"))["partitionKey"],
        (await store.read("a", KEY))["partitionKey"],
    )


async def test_a_read_with_the_current_etag_says_not_modified_and_with_an_old_one_returns_the_document(
    store: Store,
):
    first = (await store.commit(KEY, [create("a")])).etags[0]
    with pytest.raises(NotModified) as caught:
        await store.read("a", KEY, if_none_match=first)
    assert first == caught.value.etag

    second = (await store.commit(KEY, [replace("a", first, n=2)])).etags[0]
    assert second == (await store.read("a", KEY, if_none_match=first))["_etag"]


NO_ETAGS = ["*", "", " ", "no etag", '"two", "etags"', '""quoted""', '"\u00e9"', '"a b"', '"a"\nX: y']


@pytest.mark.parametrize("no_etag", NO_ETAGS)
async def test_what_is_no_etag_is_no_documents_etag(store: Store, no_etag: str):
    etag = (await store.commit(KEY, [create("a", n=1)])).etags[0]
    for form in (no_etag, f"W/{etag}", f" {etag}", str(etag).strip('"')):
        assert etag == (await store.read("a", KEY, if_none_match=form))["_etag"]
        for write in (replace("a", form, n=2), Write(kind=WriteKind.DELETE, id="a", etag=form)):
            for others in ([], [create("other")]):
                with pytest.raises(PreconditionFailed) as caught:
                    await store.commit(KEY, [*others, write])
                assert ("a", form) == (caught.value.document_id, caught.value.expected)


@pytest.mark.parametrize("others", [0, 1], ids=["single", "batch"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "\ud800"], ids=repr)
async def test_what_json_cannot_say_is_refused_and_nothing_is_written(
    store: Store, value: object, others: int
):
    with pytest.raises(InvalidRequest):
        await store.commit(
            KEY, [*(create(f"other{n}") for n in range(others)), create("a", data={"n": value})]
        )
    assert [] == await present(store, "a", "other0")


async def test_what_its_writer_does_to_a_document_afterwards_is_not_stored(store: Store):
    document = a_document("a", data={"tags": ["one"]})
    await store.commit(KEY, [Write(kind=WriteKind.CREATE, id="a", document=document)])
    document["data"]["tags"].append("two")
    assert ["one"] == (await store.read("a", KEY))["data"]["tags"]


async def test_what_a_reader_does_to_its_copy_is_not_stored(store: Store):
    await store.commit(KEY, [create("a", data={"tags": ["one"]})])
    page = await store.query_types(("thing",), page_size=1, continuation=None, include_deleted=True)
    for copy in (await store.read("a", KEY), *page.documents):
        copy["data"]["tags"].append("two")
    assert ["one"] == (await store.read("a", KEY))["data"]["tags"]


@pytest.mark.parametrize("others", [0, 2], ids=["single", "batch"])
async def test_creating_an_id_that_is_taken_is_a_conflict_and_writes_nothing(store: Store, others: int):
    await store.commit(KEY, [create("taken", n=1)])

    with pytest.raises(Conflict) as caught:
        await store.commit(KEY, [*(create(f"other{n}") for n in range(others)), create("taken", n=2)])

    assert "taken" == caught.value.document_id
    assert 1 == (await store.read("taken", KEY))["n"]
    assert [] == await present(store, "other0", "other1")


@pytest.mark.parametrize("others", [0, 2], ids=["single", "batch"])
async def test_replacing_under_an_old_etag_fails_the_precondition_and_writes_nothing(
    store: Store, others: int
):
    old = (await store.commit(KEY, [create("a")])).etags[0]
    await store.commit(KEY, [replace("a", old, n=2)])

    with pytest.raises(PreconditionFailed) as caught:
        await store.commit(KEY, [*(create(f"other{n}") for n in range(others)), replace("a", old, n=3)])

    assert ("a", old) == (caught.value.document_id, caught.value.expected)
    assert 2 == (await store.read("a", KEY))["n"]
    assert [] == await present(store, "other0", "other1")


@pytest.mark.parametrize("others", [0, 2], ids=["single", "batch"])
async def test_replacing_or_deleting_what_is_not_there_is_not_found_and_writes_nothing(
    store: Store, others: int
):
    for write in (replace("gone", '"etag"'), Write(kind=WriteKind.DELETE, id="gone", etag='"etag"')):
        with pytest.raises(NotFound) as caught:
            await store.commit(KEY, [*(create(f"other{n}") for n in range(others)), write])
        assert "gone" == caught.value.document_id
    assert [] == await present(store, "other0", "other1")


@pytest.mark.parametrize("others", [0, 1], ids=["single", "batch"])
async def test_a_delete_under_the_right_etag_deletes_and_under_another_does_not(store: Store, others: int):
    etag = (await store.commit(KEY, [create("a")])).etags[0]
    extra = [create(f"other{n}") for n in range(others)]

    with pytest.raises(PreconditionFailed):
        await store.commit(KEY, [*extra, Write(kind=WriteKind.DELETE, id="a", etag='"wrong"')])
    assert ["a"] == await present(store, "a", "other0")

    result = await store.commit(KEY, [*extra, Write(kind=WriteKind.DELETE, id="a", etag=etag)])
    assert result.etags[-1] is None
    assert [] == await present(store, "a")


async def test_one_of_many_commits_on_the_same_etag_succeeds_with_all_it_writes(store: Store):
    etag = (await store.commit(KEY, [create("a", n=-1)])).etags[0]

    async def attempt(n: int) -> int:
        await store.commit(KEY, [create(f"event{n}"), replace("a", etag, n=n)])
        return n

    outcomes = await asyncio.gather(*(attempt(n) for n in range(8)), return_exceptions=True)

    winners = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert 7 == sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes)
    assert winners == [(await store.read("a", KEY))["n"]]
    assert [f"event{winners[0]}"] == await present(store, *(f"event{n}" for n in range(8)))


async def test_a_batch_of_as_many_operations_as_allowed_is_written_and_of_one_more_refused(store: Store):
    most = [create(f"d{n}") for n in range(MAX_BATCH_OPERATIONS)]
    assert MAX_BATCH_OPERATIONS == len((await store.commit(KEY, most)).etags)

    with pytest.raises(InvalidRequest):
        await store.commit(KEY, [create(f"x{n}") for n in range(MAX_BATCH_OPERATIONS + 1)])
    assert [] == await present(store, "x0", "x100")


# aiohttp's advice on bodies of more than 1 MB is for the SDK, which chooses how it sends them.
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
async def test_a_batch_that_is_too_large_is_refused_whole(store: Store):
    half = "x" * (MAX_BATCH_BYTES // 2)
    with pytest.raises((RequestTooLarge, InvalidRequest)):
        await store.commit(KEY, [create("a", text=half), create("b", text=half)])
    assert [] == await present(store, "a", "b")


async def test_a_document_of_another_partition_key_is_refused(store: Store):
    with pytest.raises(StoreError) as caught:
        await store.commit(KEY, [create("a"), create("b", key="other")])
    assert not caught.value.retriable
    assert [] == await present(store, "a")


async def test_all_documents_of_a_type_are_paged_by_id_without_the_deleted_ones(store: Store):
    ids = sorted(str(uuid.UUID(int=n << 64)) for n in range(7))
    for n, document_id in enumerate(ids):
        data = {"id": document_id, **({} if n % 3 == 0 else {"deleted": n == 4})}
        await store.commit(document_id, [create(document_id, key=document_id, data=data)])
    await store.commit("event", [create("event", key="event", type="domainEvent")])

    async def all_pages(*, include_deleted: bool) -> list[list[str]]:
        pages, continuation = [], None
        while True:
            page = await store.query_types(
                ("thing",), page_size=2, continuation=continuation, include_deleted=include_deleted
            )
            pages.append([document["id"] for document in page.documents])
            if (continuation := page.continuation) is None:
                return pages

    alive = [document_id for n, document_id in enumerate(ids) if n != 4]
    assert [alive[0:2], alive[2:4], alive[4:6]] == await all_pages(include_deleted=False)
    assert [ids[0:2], ids[2:4], ids[4:6], ids[6:7]] == await all_pages(include_deleted=True)


async def paged(store: Store, query: Query, *, page_size: int) -> list[str]:
    found: list[str] = []
    continuation = None
    while True:
        page = await store.query(query, page_size=page_size, continuation=continuation)
        assert len(page.documents) <= page_size
        found += [document["id"] for document in page.documents]
        if (continuation := page.continuation) is None:
            return found


async def with_data(store: Store, *values: dict[str, Any]) -> None:
    for n, data in enumerate(values):
        await store.commit(KEY, [create(f"d{n}", data=data)])
    await store.commit("other", [create("d0", key="other", data=values[0])])
    await store.commit(KEY, [create("event", type="domainEvent", data=values[0])])


@pytest.mark.parametrize("page_size", [1, 2, 100])
@pytest.mark.parametrize("descending", [False, True])
async def test_documents_of_a_partition_key_are_paged_in_the_order_of_a_property_of_any_type(
    store: Store, page_size: int, descending: bool
):
    values: list[Any] = [3, "b", None, 2.5, False, "a", 2.5, True]
    await with_data(store, *({"at": value} for value in values), {})
    query = Query(partition_key=KEY, types=("thing",), order_by=("data", "at"), descending=descending)
    found = await paged(store, query, page_size=page_size)
    expected = [None, None, False, True, 2.5, 2.5, 3, "a", "b"]
    if descending:
        expected.reverse()
    assert expected == [[*values, None][int(document_id[1:])] for document_id in found]
    assert 9 == len(set(found))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"a": 1}, ["d0", "d5"]),
        ({"a": True}, ["d1"]),
        ({"a": None}, ["d2"]),
        ({"a": ["x", {"y": 1}]}, ["d3"]),
        ({"a": 1, 'b"] c': "é"}, ["d5"]),
        ({"nothing": None}, []),
    ],
)
async def test_documents_are_found_by_the_values_of_their_data(
    store: Store, wanted: dict[str, Any], expected: list[str]
):
    values = [{"a": 1}, {"a": True}, {"a": None}, {"a": ["x", {"y": 1}]}, {}, {"a": 1.0, 'b"] c': "é"}]
    await with_data(store, *values)
    query = Query(partition_key=KEY, types=("thing", "none"), data=wanted)
    assert expected == await paged(store, query, page_size=10)


async def test_a_query_of_several_types_omits_what_is_deleted_unless_it_is_asked_for(store: Store):
    await store.commit(KEY, [create("a"), create("b", data={"deleted": True}), create("c", type="other")])
    query = Query(partition_key=KEY, types=("thing", "other"), include_deleted=False)
    assert ["a", "c"] == await paged(store, query, page_size=10)
    assert ["a", "b"] == await paged(store, Query(partition_key=KEY, types=("thing",)), page_size=10)


async def test_a_condition_is_evaluated_with_its_parameters(store: Store):
    if isinstance(store, MemoryContainer):
        pytest.skip("a container in memory evaluates no SQL")
    outbox = Outbox(store)
    async with outbox.unit_of_work() as uow:
        for n in range(5):
            uow.repository(Line).create(Line(id=f"l{n}", book=KEY, text=f"text {n}"))
        await uow.commit()
        lines = uow.repository(Line)
        condition = "c.data.text > @after OR c.data.text = @first"
        texts = {"after": "text 2", "@first": "text 0"}
        page = await lines.query(condition, texts, partition_key=KEY, order_by="-text", page_size=2)
        rest = await lines.query(
            condition, texts, partition_key=KEY, order_by="-text", continuation=page.continuation
        )
        assert ["text 4", "text 3", "text 0"] == [line.text for line in (*page.entities, *rest.entities)]
        assert () == (await lines.query(condition, texts, partition_key="other")).entities
        with pytest.raises(InvalidRequest):
            await lines.query("c.data.text >", partition_key=KEY)


async def test_events_name_the_one_before_them_whatever_was_read_listed_and_written_between(store: Store):
    outbox, key = Outbox(store), "n"
    async with outbox.unit_of_work() as uow:
        uow.repository(Note).create(Note(id="n")).file_as("x")
        await uow.commit()
    sent = []
    for change in (lambda note: note.change("y"), lambda note: setattr(note, "text", "z"), Note.glance):
        async with outbox.unit_of_work() as uow:
            (note,) = (await uow.repository(Note).list(key)).entities
            change(note)
            sent += (await uow.commit()).events
    metas = [(await store.read(event.id, key))["meta"] for event in sent]
    assert [(2, 0, 1, 1), (4, 0, 2, 0)] == [
        tuple(meta[name] for name in ("entityVersion", "sequence", "previousVersion", "previousSequence"))
        for meta in metas
    ]
    assert {"version": 4, "sequence": 0}.items() <= (await store.read("n", key))["lastEvent"].items()


async def test_a_continuation_of_no_query_is_refused(store: Store):
    await store.commit(KEY, [create("a"), create("b")])
    with pytest.raises(InvalidRequest):
        await store.query(
            Query(partition_key=KEY, types=("thing",)), page_size=1, continuation="not one that was given out"
        )


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
async def test_documents_of_one_id_in_many_partition_keys_are_all_paged_once(store: Store, page_size: int):
    written = [("a", "x"), *(("b", key) for key in ("k", "n", "l", "m", "0")), ("c", "y"), ("c", "x")]
    for document_id, key in written:
        await store.commit(key, [create(document_id, key=key)])

    found: list[tuple[str, str]] = []
    continuation = None
    while True:
        page = await store.query_types(
            ("thing",), page_size=page_size, continuation=continuation, include_deleted=True
        )
        found += [(document["id"], document["partitionKey"]) for document in page.documents]
        assert len(page.documents) <= page_size
        if (continuation := page.continuation) is None:
            break

    assert ["a", *"bbbbb", "c", "c"] == [document_id for document_id, _ in found]
    assert sorted(written) == sorted(found)


async def test_a_refused_commit_names_the_document_and_both_etags(store: Store):
    outbox = Outbox(store)
    async with outbox.unit_of_work() as mine, outbox.unit_of_work() as theirs:
        theirs.repository(Note).create(note := Note(id="n"))
        await theirs.commit()
        (await mine.repository(Note).read("n")).change("mine")
        note.change("theirs")
        await theirs.commit()
        expected = (await mine.repository(Note).read("n")).etag
        with pytest.raises(PreconditionFailed) as caught:
            await mine.commit()

    error = caught.value
    assert ("n", expected, note.etag) == (error.document_id, error.expected, error.actual)
    for named in ("'n'", expected, note.etag):
        assert str(named) in str(error)


async def test_a_refused_creation_names_the_document(store: Store):
    outbox = Outbox(store)
    for refused in (False, True):
        async with outbox.unit_of_work() as uow:
            uow.repository(Note).create(Note(id="taken"))
            if refused:
                with pytest.raises(Conflict, match="'taken'"):
                    await uow.commit()
            else:
                await uow.commit()


@pytest.mark.parametrize("key", ["", "\ud800", "é" * 1024 + "x", {}], ids=["empty", "half", "long", "object"])
async def test_a_partition_key_that_cosmos_db_does_not_take_is_refused_before_anything_is_sent(
    store: Store, key: str
):
    watched = FaultyStore(store)
    async with Outbox(watched).unit_of_work() as uow:
        uow.repository(Line).create(Line.model_construct(id="l", book=key))
        with pytest.raises(UsageError, match="cannot be the partition key of line"):
            await uow.commit()
        uow.rollback()
        with pytest.raises(UsageError, match="cannot be the partition key of line"):
            await uow.repository(Line).read("l", partition_key=key)
    assert (0, 0) == (watched.commits, watched.reads)


async def test_a_long_partition_key_is_taken(store: Store):
    async with Outbox(store).unit_of_work() as uow:
        line = uow.repository(Line).create(Line(id="l", book="é" * 1000))
        await uow.commit()
        uow.rollback()
        assert line.etag == (await uow.repository(Line).read("l", partition_key=line.book)).etag


@pytest.mark.parametrize("document_id", [".", "..", "a ", "a\t", "a\n", "\ra"])
async def test_an_id_that_no_request_can_name_is_refused_before_anything_is_sent(
    store: Store, document_id: str
):
    watched = FaultyStore(store)
    async with Outbox(watched).unit_of_work() as uow:
        with pytest.raises(UsageError, match="cannot be the id"):
            uow.repository(Note).create(Note(id=document_id))
        with pytest.raises(UsageError, match="cannot be the id"):
            await uow.repository(Note).read(document_id)
    assert (0, 0) == (watched.commits, watched.reads)


@pytest.mark.parametrize("document_id", ["...", ".a", " a", "a b", "%2E", "a\u00a0", "+", "%"])
async def test_any_other_id_leads_back_to_its_document(store: Store, document_id: str):
    for others in range(2):
        async with Outbox(store).unit_of_work() as uow:
            line = uow.repository(Line).create(Line(id=document_id, book=f"b{others}"))
            if others:
                uow.repository(Line).create(Line(id="other", book=line.book))
            await uow.commit()
            line.text = "changed"
            uow.repository(Line).update(line)
            await uow.commit()
            uow.rollback()
            assert "changed" == (await uow.repository(Line).read(document_id, partition_key=line.book)).text
            await uow.repository(Line).delete(document_id, partition_key=line.book)
            await uow.commit()


async def test_whether_a_document_is_marked_as_deleted_is_said_by_true_and_false_alone(store: Store):
    marks = [True, False, None, 0, "false"]
    documents = [
        {**a_document(str(n)), "data": {"id": str(n), "deleted": mark}} for n, mark in enumerate(marks)
    ]
    await store.commit(KEY, [Write(kind=WriteKind.CREATE, id=d["id"], document=d) for d in documents])
    page = await store.query_types(("thing",), page_size=10, continuation=None, include_deleted=False)
    assert ["1"] == [document["id"] for document in page.documents]


async def test_no_documents_of_a_type_are_one_empty_page(store: Store):
    page = await store.query_types(("nothing",), page_size=5, continuation=None, include_deleted=True)
    assert ((), None) == (page.documents, page.continuation)


def tokens_of_nobody() -> dict[str, str]:
    """
    What looks like a token of one of the stores, and is none.
    """
    inside = {
        "number": "1",
        "numbers": "[1, 2]",
        "nothing": "[]",
        "many": '["a", "b", "c"]',
        "deep": "[" * 5000,
    }
    return {
        **{
            f"as a query's {name}": base64.urlsafe_b64encode(text.encode()).decode()
            for name, text in inside.items()
        },
        **{f"as memory's {name}": f"after:{text}" for name, text in inside.items()},
        "after": "after:",
    }


@pytest.mark.parametrize(
    "continuation",
    ["", "no token", "\0", "é", *(pytest.param(t, id=n) for n, t in tokens_of_nobody().items())],
)
async def test_a_continuation_that_nobody_gave_out_is_refused(store: Store, continuation: str):
    with pytest.raises(InvalidRequest):
        await store.query_types(("thing",), page_size=1, continuation=continuation, include_deleted=True)


async def test_a_reader_sees_its_own_writes_at_once(store: Store):
    etag = (await store.commit(KEY, [create("a", n=0)])).etags[0]
    for n in range(1, 6):
        etag = (await store.commit(KEY, [create(f"e{n}"), replace("a", etag, n=n)])).etags[1]
        assert (n, etag) == ((read := await store.read("a", KEY))["n"], read["_etag"])


async def test_unknown_fields_survive(store: Store):
    written = a_document("a", meta={"by": "another program"}, extra=json.loads("[1.5, {}]"))
    await store.commit(KEY, [Write(kind=WriteKind.CREATE, id="a", document=written)])
    assert written == {name: value for name, value in (await store.read("a", KEY)).items() if name in written}
