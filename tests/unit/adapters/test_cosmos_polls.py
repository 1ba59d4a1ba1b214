"""
Polls over plain REST: "nothing new" is understood, and everything else is read through the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox.adapters.cosmos import sdk_request
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client, rest_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.errors import OutboxError
from cosmos_outbox.feed_range import FeedRange
from cosmos_outbox.ports import ChangePage, StartFrom
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, RequestKind, Route
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)


class Idle:
    """
    A container of four ranges, its feed with polls and without, and what the service was asked of the feed.
    """

    def __init__(self, server: CosmosServer, container: Any, client: Any) -> None:
        self.server, self.container = server, container
        self.polled = CosmosChangeFeed(container, account_host="a", rest=rest_client(client))
        self.through_sdk = CosmosChangeFeed(container, account_host="a")
        self.asked: list[Request] = []
        self._answer, server.gateway.answer = server.gateway.answer, self.answer

    def answer(self, request: Request, route: Route | None = None, fault: FaultRule | None = None) -> Reply:
        if route is not None and route.kind is RequestKind.CHANGEFEED:
            self.asked.append(request)
        return self._answer(request, route, fault)

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
        Return a range with one document, of which all was read twice, and its continuation.
        """
        for where in await self.polled.physical_ranges():
            page = await self.read(where, None)
            if page.documents:
                last = await self.read(where, page.continuation)
                assert not last.documents
                self.asked.clear()
                return where, last.continuation
        raise AssertionError

    def ways(self) -> list[str]:
        return ["sdk" if "x-ms-client-id" in request.headers else "poll" for request in self.asked]


@pytest.fixture
async def idle() -> AsyncIterator[Idle]:
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("db")
        data = await database.create_container(
            "data ü", PartitionKey("/partitionKey"), offer_throughput=24_000
        )
        await data.create_item({"id": "a", "partitionKey": "k"})
        yield Idle(server, data, client)


async def test_a_poll_of_an_idle_range_tells_what_the_sdk_would(idle: Idle):
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


async def test_what_is_new_is_read_through_the_sdk_and_polls_go_on(idle: Idle):
    where, continuation = await idle.at_the_end()
    await idle.container.upsert_item({"id": "a", "partitionKey": "k", "changed": True})

    page = await idle.read(where, continuation)
    end = await idle.read(where, page.continuation)
    await idle.read(where, end.continuation)

    assert ["a"] == [document["id"] for document in page.documents]
    assert ["poll", "sdk", "sdk", "poll"] == idle.ways()


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "substatus": 3200},
        {"status": 410, "substatus": 1002},
        {"status": 404, "substatus": 1002},
        {"status": 403},
        {"status": 503},
        {"drop": True, "count": 2},  # a GET is sent again
    ],
    ids=str,
)
async def test_a_poll_that_fails_is_read_through_the_sdk_and_no_other_is_sent_for_a_while(
    idle: Idle, fault: dict[str, Any]
):
    where, continuation = await idle.at_the_end()
    idle.server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, **{"count": 1, **fault}))

    pages = [await idle.read(where, continuation) for _ in range(2)]

    assert [continuation] * 2 == [page.continuation for page in pages]
    assert ["sdk", "sdk"] == idle.ways()[-2:]


async def test_a_service_that_says_200_where_nothing_is_new_is_asked_once_a_poll(idle: Idle):
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


async def test_a_fault_that_lasts_is_told_as_without_polls(idle: Idle):
    where, continuation = await idle.at_the_end()
    idle.server.faults.add(
        FaultRule(operation=RequestKind.CHANGEFEED, status=429, substatus=3200, retry_after_ms=1)
    )

    told = []
    for feed in (idle.polled, idle.through_sdk):
        with pytest.raises(OutboxError) as error:
            await idle.read(where, continuation, by=feed)
        told.append(type(error.value))

    assert told[0] is told[1]


async def test_a_read_sends_the_session_token_of_its_own_range_however_many_were_read(idle: Idle):
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


async def test_a_first_read_of_a_range_sends_no_session_token(idle: Idle):
    ranges = await idle.polled.physical_ranges()

    for where in ranges:
        await idle.polled.partition_id(where)
        await idle.read(where, None)

    assert [None] * 8 == [request.headers.get("x-ms-session-token") for request in idle.asked]


async def test_the_sdk_reads_a_range_again_when_its_last_read_is_old(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sdk_request, "KNOWN_SECONDS", 0.0)
    where, continuation = await idle.at_the_end()

    await idle.read(where, continuation)

    assert ["sdk"] == idle.ways()


async def test_polls_stop_where_the_sdk_turned_to_another_region(idle: Idle):
    where, continuation = await idle.at_the_end()
    assert idle.polled._polls is not None
    headers = {
        "A-IM": "x",
        "x-ms-documentdb-partitionkeyrangeid": "9",
        "x-ms-cosmos-intended-collection-rid": "y",
    }
    idle.polled._polls.learn("another", SimpleNamespace(url="https://b/dbs/d/colls/c/docs/", headers=headers))

    await idle.read(where, continuation)
    await idle.read(where, continuation)

    assert ["sdk", "poll"] == idle.ways()
