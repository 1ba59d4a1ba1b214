"""
A container that is deleted and created again under its old name: old positions must not be read on the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient, DatabaseProxy

from cosmos_outbox.adapters.cosmos.client import account_of, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions, estimate_lag
from cosmos_outbox.ports import ChangeBatch
from cosmos_outbox.records import LeasesLost, Record
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)


@asynccontextmanager
async def account() -> AsyncIterator[tuple[CosmosServer, CosmosClient, DatabaseProxy]]:
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("db")
        await database.create_container("data", PartitionKey("/partitionKey"))
        await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
        yield server, client, database


def replace(server: CosmosServer) -> None:
    """
    Replace the container as another program does: this client's caches keep the old one.

    In one step, so that no look falls into the moment in which there is none.
    """
    server.account.delete_container("db", "data")
    server.account.create_container("db", {"id": "data", "partitionKey": PartitionKey("/partitionKey")})


async def write(database: DatabaseProxy, *ids: str) -> None:
    for item_id in ids:
        await database.get_container_client("data").create_item({"id": item_id, "partitionKey": "k"})


@pytest.mark.parametrize("watched", [False, True], ids=["alone", "beside a lag watch that looks first"])
async def test_a_processor_raises_the_alarm_and_reads_the_new_container_from_the_start(watched: bool):
    handled: list[str] = []
    records: list[Record] = []

    async def handle(batch: ChangeBatch) -> None:
        handled.extend(document["id"] for document in batch.documents)

    async def until(item_id: str) -> None:
        async with asyncio.timeout(HUNG_SECONDS):
            while item_id not in handled:  # noqa: ASYNC110 - the handler knows nothing of this test
                await asyncio.sleep(0.01)

    async with account() as (server, client, database):
        feed = CosmosChangeFeed(database.get_container_client("data"), account_host=account_of(client).host)
        leases = CosmosLeases(database.get_container_client("leases"))
        options = ProcessorOptions(processor_name="p", max_poll_interval=timedelta(seconds=0.5))
        processor = ChangeFeedProcessor(feed, leases, handle, options, hooks=[records.append])
        task = asyncio.create_task(processor.run())
        await write(database, *(f"old-{number}" for number in range(5)))
        await until("old-4")
        if watched:
            await asyncio.sleep(0.9)  # let it poll rarely: the watch has to be the first to look
        replace(server)
        if watched:
            await estimate_lag("p", feed=feed, leases=leases)
        await write(database, "new-0", "new-1")  # positions that the old container is past
        await until("new-1")
        processor.stop()
        await task
    assert [*(f"old-{number}" for number in range(5)), "new-0", "new-1"] == handled
    assert 1 == sum(isinstance(record, LeasesLost) for record in records)
