"""
The change feed adapter: which requests it sends through the SDK, and which errors of the library it raises for malformed answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos import feed as cosmos_feed
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.errors import InvalidRequest, OutboxError, RangeGone, StoreUnavailable
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangePage, StartFrom
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, RequestKind, Route
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

EVERYTHING = FeedRange(min="", max="FF")


@pytest.fixture
async def feed(client: CosmosClient) -> CosmosChangeFeed:
    database = await client.create_database("db")
    data = await database.create_container("data", PartitionKey("/partitionKey"))
    await data.create_item({"id": "a", "partitionKey": "k"})
    return CosmosChangeFeed(data, account_host="localhost")


async def read(
    feed: CosmosChangeFeed,
    continuation: str | None,
    *,
    start: StartFrom | datetime = StartFrom.BEGINNING,
    max_items: int = 1,
) -> ChangePage:
    return await feed.read_page(
        EVERYTHING,
        container_rid=(await feed.describe()).container_rid,
        continuation=continuation,
        start=start,
        max_items=max_items,
    )


async def write(feed: CosmosChangeFeed, *ids: str) -> None:
    for document_id in ids:
        await feed._container.create_item({"id": document_id, "partitionKey": "k"})


def ids_of(page: ChangePage) -> list[str]:
    return [document["id"] for document in page.documents]


class Gateway:
    """
    Wraps the emulator's gateway and records the headers of each request to the change feed.

    It answers the next `sparse` reads with an empty page that moves past one change. Azure answers in this way if a change belongs
    to another part of the partition.
    """

    def __init__(self, server: CosmosServer) -> None:
        self._answer, server.gateway.answer = server.gateway.answer, self.answer
        self.asked: list[Mapping[str, str]] = []
        self.sparse = 0
        self.ends_with_200 = False
        self.spoiled: tuple[int, bytes] | None = None  # status and body that replace those of each answer

    def answer(self, request: Request, route: Route | None = None, fault: FaultRule | None = None) -> Reply:
        reply = self._answer(request, route, fault)
        if route is None or route.kind is not RequestKind.CHANGEFEED:
            return reply
        self.asked.append(request.headers)
        if self.spoiled:
            return Reply(status=self.spoiled[0], body=self.spoiled[1], headers=reply.headers)
        if self.ends_with_200 and reply.status == 304:
            return Reply(status=200, body=b'{"_rid":"","Documents":[],"_count":0}', headers=reply.headers)
        if not self.sparse:
            return reply
        self.sparse -= 1
        passed = json.loads(reply.body)["Documents"][0]["_lsn"]
        headers = {**reply.headers, "etag": f'"{passed}"'}
        return Reply(status=200, body=b'{"_rid":"","Documents":[],"_count":0}', headers=headers)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("sub_status", "meaning"),
    [(1000, StoreUnavailable), (1002, RangeGone), (1007, RangeGone), (1008, StoreUnavailable)],
)
async def test_a_persistent_status_410_is_translated_by_its_sub_status(
    server: CosmosServer, feed: CosmosChangeFeed, sub_status: int, meaning: type[OutboxError], resumed: bool
):
    continuation = (await read(feed, None)).continuation if resumed else None
    server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, status=410, substatus=sub_status))

    with pytest.raises(meaning):
        await read(feed, continuation)
    assert server.gateway.counts[RequestKind.CHANGEFEED] < 20


async def test_a_range_that_answers_a_few_times_with_410_is_read_to_its_end(
    server: CosmosServer, feed: CosmosChangeFeed
):
    await write(feed, "b", "c")
    page, found = await read(feed, None), ["a"]
    for _ in range(2):
        server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, status=410, substatus=1007, count=3))
        page = await read(feed, page.continuation)
        found += ids_of(page)

    assert ["a", "b", "c"] == found


async def test_an_empty_page_is_the_end_of_the_feed_only_if_the_service_says_so(
    server: CosmosServer, feed: CosmosChangeFeed
):
    await write(feed, "b", "c", "d")
    Gateway(server).sparse = 2
    pages = [await read(feed, None)]
    for _ in range(4):
        pages.append(await read(feed, pages[-1].continuation))

    assert [[], [], ["c"], ["d"], []] == [ids_of(page) for page in pages]
    assert [True, True, False, False, False] == [page.skipped for page in pages]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"null"),
        (200, b"{}"),
        (200, b"[]"),
        (200, b'{"Documents":null,"_count":0}'),
        (200, b'{"Documents":[1],"_count":1}'),
        (200, b'{"Docum'),
        (200, b"<html>"),
        (204, b""),
        (302, b""),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
async def test_an_answer_with_a_broken_body_does_not_move_the_position(
    server: CosmosServer, feed: CosmosChangeFeed, status: int, body: bytes, resumed: bool
):
    """
    The headers of the answer are those of a page with documents. The next read must return these documents.
    """
    await write(feed, "b")
    continuation = (await read(feed, None)).continuation if resumed else None
    gateway = Gateway(server)
    gateway.spoiled = status, body
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, the pump counts the page as failed
        await read(feed, continuation)
    gateway.spoiled = None

    assert ["b" if resumed else "a"] == ids_of(await read(feed, continuation))


async def test_a_read_with_a_continuation_does_not_send_the_start_time(
    server: CosmosServer, feed: CosmosChangeFeed
):
    await write(feed, "b")
    gateway = Gateway(server)
    since = datetime.now(UTC) - timedelta(minutes=1)
    page = await read(feed, None, start=since)
    rest = await read(feed, page.continuation, start=since)

    assert [["a"], ["b"]] == [ids_of(page), ids_of(rest)]
    told = [("if-modified-since" in asked, "if-none-match" in asked) for asked in gateway.asked]
    assert [(True, False), (False, True)] == told


async def test_a_read_that_outlasts_the_timeouts_of_the_sdk_raises_store_unavailable(
    server: CosmosServer, feed: CosmosChangeFeed, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cosmos_feed, "LONGEST_CALL_SECONDS", 0.2)
    server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, delay_s=1000))

    async with asyncio.timeout(HUNG_SECONDS):
        with pytest.raises(StoreUnavailable):
            await read(feed, None)


@pytest.mark.parametrize(
    "token",
    [None, '"7"', "bm90IGpzb24=", "e30=", "W10=", "eyJjb250aW51YXRpb24iOiB7ImNvbnRpbnVhdGlvbiI6IFtdfX0="],
)
async def test_a_page_whose_token_does_not_name_exactly_one_range_is_refused(
    feed: CosmosChangeFeed, monkeypatch: pytest.MonkeyPatch, token: str | None
):
    note = cosmos_feed._Read.note

    def noting(self: cosmos_feed._Read, headers: Mapping[str, str], results: object) -> None:
        note(self, headers, results)
        # This SDK puts its composite continuation token into `etag`. A later SDK may put something else there.
        self._headers = {} if token is None else {"etag": token}

    monkeypatch.setattr(cosmos_feed._Read, "note", noting)
    with pytest.raises(RangeGone):
        await read(feed, None)
    with pytest.raises(RangeGone):
        await feed.partition_id(EVERYTHING)


async def test_a_page_without_the_quoted_etag_of_a_range_is_refused(
    feed: CosmosChangeFeed, monkeypatch: pytest.MonkeyPatch
):
    note = cosmos_feed._Read.note

    def noting(self: cosmos_feed._Read, headers: Mapping[str, str], results: object) -> None:
        note(self, headers, results)
        self.etag = "eyJ2IjogInYyIn0="

    monkeypatch.setattr(cosmos_feed._Read, "note", noting)
    with pytest.raises(InvalidRequest, match="etag"):
        await read(feed, None)
