"""
What the change feed of the SDK does when the service refuses for good, and that it ends in a word of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox.adapters import cosmos_feed
from cosmos_outbox.adapters.cosmos_client import open_cosmos_client
from cosmos_outbox.adapters.cosmos_feed import CosmosChangeFeed
from cosmos_outbox.errors import OutboxError, RangeGone, StoreUnavailable
from cosmos_outbox.leases import FeedRange
from cosmos_outbox.ports import ChangePage, StartFrom
from emulators.cosmos.faults import FaultRule
from emulators.cosmos.protocol import RequestKind
from emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)

EVERYTHING = FeedRange(min="", max="FF")


@pytest.fixture
async def server() -> AsyncIterator[CosmosServer]:
    async with CosmosServer() as running:
        yield running


@pytest.fixture
async def feed(server: CosmosServer) -> AsyncIterator[CosmosChangeFeed]:
    async with open_cosmos_client(connection_string=server.connection_string) as client:
        database = await client.create_database("db")
        data = await database.create_container("data", PartitionKey("/partitionKey"))
        await data.create_item({"id": "a", "partitionKey": "k"})
        yield CosmosChangeFeed(data, account_host="localhost")


async def read(feed: CosmosChangeFeed, continuation: str | None) -> ChangePage:
    return await feed.read_page(
        EVERYTHING,
        container_rid=(await feed.describe()).container_rid,
        continuation=continuation,
        start=StartFrom.BEGINNING,
        max_items=1,
    )


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("sub_status", "meaning"),
    [(1000, StoreUnavailable), (1002, RangeGone), (1007, RangeGone), (1008, StoreUnavailable)],
)
async def test_a_410_that_does_not_end_is_told_as_what_it_means(
    server: CosmosServer, feed: CosmosChangeFeed, sub_status: int, meaning: type[OutboxError], resumed: bool
):
    continuation = (await read(feed, None)).continuation if resumed else None
    server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, status=410, substatus=sub_status))

    with pytest.raises(meaning):
        await read(feed, continuation)
    assert server.gateway.counts[RequestKind.CHANGEFEED] < 20


async def test_a_split_that_is_completed_soon_is_waited_for(server: CosmosServer, feed: CosmosChangeFeed):
    continuation = (await read(feed, None)).continuation
    server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, status=410, substatus=1007, count=3))

    assert () == (await read(feed, continuation)).documents


async def test_the_ranges_of_a_split_that_is_not_completed_are_gone_too(
    server: CosmosServer, feed: CosmosChangeFeed
):
    server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, status=410, substatus=1007))

    with pytest.raises(RangeGone):
        await feed.physical_ranges()


async def test_a_call_that_outlasts_all_timeouts_of_the_sdk_ends_as_one_without_an_answer(
    server: CosmosServer, feed: CosmosChangeFeed, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cosmos_feed, "LONGEST_CALL_SECONDS", 0.2)
    server.faults.add(FaultRule(operation=RequestKind.CHANGEFEED, delay_s=5))

    async with asyncio.timeout(3):
        with pytest.raises(StoreUnavailable):
            await read(feed, None)
