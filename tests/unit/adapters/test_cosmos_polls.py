"""
Lean polls: small requests of the library's own that ask Cosmos DB whether a range has changes. Every answer but "nothing new" makes the
adapter read the range through the SDK.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos import lean_poll_requests
from cosmos_outbox.adapters.cosmos.client import account_of
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.lean_poll_requests import LeanPolls
from cosmos_outbox.partition_key import FeedRange
from cosmos_outbox.ports import ChangePage, StartFrom
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, RequestKind, Route
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)

LEARNED = {
    "A-IM": "x",
    "x-ms-documentdb-partitionkeyrangeid": "9",
    "x-ms-cosmos-intended-collection-rid": "y",
}


class Idle:
    """
    An idle container of four ranges, with two feeds: `polled` sends lean polls, which bypass the SDK. `through_sdk` uses the SDK alone.
    `asked` lists the change feed requests that reached the emulator.
    """

    def __init__(self, server: CosmosServer, container: Any, client: Any) -> None:
        self.server, self.container = server, container
        self.polled = CosmosChangeFeed(container, account_host="a", polls=account_of(client).polls())
        self.through_sdk = CosmosChangeFeed(container, account_host="a")
        self.asked: list[Request] = []
        self.of_polls: Callable[[Reply], Reply] = lambda reply: reply
        self._answer, server.gateway.answer = server.gateway.answer, self.answer

    def answer(self, request: Request, route: Route | None = None, fault: FaultRule | None = None) -> Reply:
        reply = self._answer(request, route, fault)
        if route is None or route.kind is not RequestKind.CHANGEFEED:
            return reply
        self.asked.append(request)
        return self.of_polls(reply) if _is_lean(request) else reply

    async def read(
        self, where: FeedRange, after: str | None, *, by: CosmosChangeFeed | None = None
    ) -> ChangePage:
        feed = by or self.polled
        rid = (await feed.describe()).container_rid
        return await feed.read_page(
            where, container_rid=rid, continuation=after, start=StartFrom.BEGINNING, max_items=100
        )

    async def at_the_end(self) -> tuple[FeedRange, str]:
        """
        Read the range with the container's only document to its end. Return the range and its last continuation.
        """
        for where in await self.polled.physical_ranges():
            page = await self.read(where, None)
            if page.documents:
                for _ in range(2):  # the SDK sends two polls after a page with changes
                    last = await self.read(where, page.continuation)
                    assert not last.documents
                self.asked.clear()
                return where, last.continuation
        raise AssertionError

    def ways(self) -> list[str]:
        return ["poll" if _is_lean(request) else "sdk" for request in self.asked]


def _is_lean(request: Request) -> bool:
    return request.headers.get("accept-encoding") == "identity"


@pytest.fixture
async def idle(server: CosmosServer, client: CosmosClient) -> Idle:
    database = await client.create_database("db")
    data = await database.create_container("data ü", PartitionKey("/partitionKey"), offer_throughput=24_000)
    await data.create_item({"id": "a", "partitionKey": "k"})
    return Idle(server, data, client)


async def test_a_lean_poll_of_an_idle_range_returns_the_same_page_as_the_sdk(idle: Idle):
    where, continuation = await idle.at_the_end()

    polled = await idle.read(where, continuation)
    read = await idle.read(where, continuation, by=idle.through_sdk)

    assert ["poll", "sdk"] == idle.ways()
    assert [(), continuation] == [polled.documents, polled.continuation]
    assert [read.latest_lsn, read.range_id, read.skipped] == [
        polled.latest_lsn,
        polled.range_id,
        polled.skipped,
    ]
    assert polled.request_charge > 0


async def test_reads_and_lean_polls_send_the_configured_priority_and_throughput_bucket(
    idle: Idle, client: CosmosClient
):
    polls = account_of(client).polls()
    idle.polled = CosmosChangeFeed(
        idle.container, account_host="a", polls=polls, priority="Low", throughput_bucket=3
    )
    where, after = await idle.at_the_end()
    await idle.read(where, after)
    await idle.container.upsert_item({"id": "a", "partitionKey": "k"})
    await idle.read(where, after)
    await idle.read(where, after, by=idle.through_sdk)
    assert ["poll", "poll", "sdk", "sdk"] == idle.ways()
    names = "x-ms-cosmos-priority-level", "x-ms-cosmos-throughput-bucket"
    assert [("Low", "3")] * 3 + [(None, None)] == [
        tuple(request.headers.get(name) for name in names) for request in idle.asked
    ]


async def test_changes_that_a_lean_poll_finds_are_read_through_the_sdk(idle: Idle):
    """
    A lean poll is a read without the SDK. The SDK reads the changes that it found, and polls twice more, because more changes are
    likely. Then lean polls ask again.
    """
    where, continuation = await idle.at_the_end()
    await idle.container.upsert_item({"id": "a", "partitionKey": "k", "changed": True})

    page = await idle.read(where, continuation)
    for _ in range(3):
        await idle.read(where, page.continuation)

    assert ["a"] == [document["id"] for document in page.documents]
    assert ["poll", "sdk", "sdk", "sdk", "poll"] == idle.ways()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\netag: 1\r\ncontent-length: 9\r\n\r\n"])
async def test_a_lean_poll_whose_answer_does_not_end_is_given_up(begun: bytes):
    """The answer stops before its status, or before its body. The caller then reads the range through the SDK."""

    loop = asyncio.get_running_loop()

    async def begin(listening: socket.socket) -> None:
        connection, _ = await loop.sock_accept(listening)
        with connection:
            await loop.sock_sendall(connection, begun)
            await asyncio.Event().wait()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        answering = asyncio.create_task(begin(listening))
        async with AioHttpTransport() as transport, asyncio.timeout(20):
            polls = LeanPolls(transport, timeout_seconds=0.05)
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
            polls.learn("a", SimpleNamespace(url=url, headers=LEARNED))
            assert await polls.nothing_new("a", "1", session_token="") is None
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "substatus": 3200},
        {"status": 410, "substatus": 1002},
        {"status": 404, "substatus": 1002},
        {"status": 403},
        {"status": 503},
        {"drop": True, "count": 2},  # twice, because aiohttp repeats a GET after a cut connection
    ],
    ids=str,
)
async def test_polls_that_bypass_the_sdk_pause_after_one_of_them_failed(idle: Idle, fault: dict[str, Any]):
    where, continuation = await idle.at_the_end()
    idle.server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, **{"count": 1, **fault}))

    pages = [await idle.read(where, continuation) for _ in range(2)]

    assert [continuation] * 2 == [page.continuation for page in pages]
    assert ["sdk", "sdk"] == idle.ways()[-2:]


@pytest.mark.parametrize(
    "answer",
    [
        Reply(status=200, body=b"<html>Sign in</html>"),
        Reply(status=307, headers={"location": "/elsewhere"}),
        Reply(status=304),
        Reply(status=200, body=gzip.compress(b"{}"), headers={"content-encoding": "gzip"}),
    ],
    ids=["a page", "a redirect", "no etag", "compressed"],
)
async def test_lean_polls_pause_after_an_answer_of_an_http_proxy(idle: Idle, answer: Reply):
    """
    A proxy may answer a lean poll (a read without the SDK) by a login page or a redirect. The SDK then reads the range for a while.
    """
    where, continuation = await idle.at_the_end()
    idle.of_polls = lambda _: answer

    pages = [await idle.read(where, continuation) for _ in range(3)]

    assert [continuation] * 3 == [page.continuation for page in pages]
    assert ["poll", "sdk", "sdk", "sdk"] == idle.ways()


async def test_an_answer_to_a_lean_poll_for_another_position_is_not_trusted(idle: Idle):
    where, continuation = await idle.at_the_end()
    idle.of_polls = lambda reply: replace(reply, headers={**reply.headers, "etag": '"999"'})

    page = await idle.read(where, continuation)

    assert continuation == page.continuation
    assert ["poll", "sdk"] == idle.ways()


@pytest.mark.looptime(True)
async def test_lean_polls_back_off_while_none_of_them_gets_through():
    class Closed(AioHttpTransport):
        tried = 0

        @property
        def session(self) -> None:
            self.tried += 1

        @session.setter
        def session(self, _: object) -> None: ...

    transport = Closed()
    asking = LeanPolls(transport, timeout_seconds=1)
    for _ in range(24 * 60):
        asking.learn("a", SimpleNamespace(url="https://a/", headers=LEARNED))
        await asking.nothing_new("a", "y", session_token="")
        await asyncio.sleep(60)

    # The pause doubles up to four hours: in a day, 8 lean polls are tried after 0, 1, 3, 7, … 127 minutes, and then 5 more.
    assert 8 + 5 == transport.tried


async def test_a_range_that_answers_200_without_changes_gets_one_request_per_poll(idle: Idle):
    answer = idle.server.gateway.answer

    def without_304(request: Request, route: Route | None = None, fault: FaultRule | None = None) -> Reply:
        reply = answer(request, route, fault)
        if route is None or route.kind is not RequestKind.CHANGEFEED or reply.status != 304:
            return reply
        return Reply(status=200, body=b'{"Documents": [], "_count": 0}', headers=reply.headers)

    idle.server.gateway.answer = without_304  # type: ignore[method-assign]
    where, continuation = await idle.at_the_end()

    for _ in range(3):
        await idle.read(where, continuation)

    assert ["sdk"] * 3 == idle.ways()


async def test_a_read_sends_only_the_session_token_of_its_own_range(idle: Idle):
    ranges = await idle.polled.physical_ranges()
    ends = {where: (await idle.read(where, None)).continuation for where in ranges}
    idle.asked.clear()

    for _ in range(2):
        for where, end in ends.items():
            ends[where] = (await idle.read(where, end)).continuation

    own = [request.headers["x-ms-documentdb-partitionkeyrangeid"] for request in idle.asked]
    sent = [request.headers["x-ms-session-token"] for request in idle.asked]
    assert 4 == len(set(own))
    assert {"sdk", "poll"} == set(idle.ways())
    assert own == [token.partition(":")[0] for token in sent]
    assert not [token for token in sent if "," in token]


async def test_a_range_is_read_through_the_sdk_if_its_last_sdk_read_is_old(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lean_poll_requests, "_KNOWN_SECONDS", 0.0)
    where, continuation = await idle.at_the_end()

    await idle.read(where, continuation)

    assert ["sdk"] == idle.ways()


async def test_a_lean_poll_is_not_sent_after_the_sdk_changed_its_region(idle: Idle):
    where, continuation = await idle.at_the_end()
    assert idle.polled._polls is not None
    idle.polled._polls.learn("another", SimpleNamespace(url="https://b/dbs/d/colls/c/docs/", headers=LEARNED))

    await idle.read(where, continuation)
    await idle.read(where, continuation)

    assert ["sdk", "poll"] == idle.ways()
