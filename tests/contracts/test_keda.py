"""
KEDA's Cosmos DB scalers can read the leases of this library, and compute the right lag and number of replicas from them.

The tests send the same requests as the scalers, without the SDK and without this library. Requests, headers and formulas are those of
kedacore/keda (`azure_cosmosdb_scaler.go`). The lease ids are those of the external scaler, which uses the .NET estimator.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote_plus, urlsplit

import aiohttp
import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import DatabaseProxy

from cosmos_outbox.adapters.cosmos.client import global_host, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions, estimate_lag
from cosmos_outbox.ports import ChangeBatch
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_worker.heartbeats import Fleet, Heartbeat
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

NAME = "billing"
GLOBAL_ENDPOINT = "https://acct.documents.azure.com:443/"


class Scaler:
    """Sends the HTTP requests of a KEDA scaler, which signs in with an account key."""

    def __init__(self, http: aiohttp.ClientSession, endpoint: str, key: str) -> None:
        self._http, self._endpoint, self._key = http, endpoint, key

    async def lags(self, prefix: str) -> dict[str, int]:
        """Compute the lag of each lease as the scaler does. Return it under the token of the lease."""
        found = {}
        for lease in await self._leases(prefix):
            if lease.get("LeaseToken"):
                found[lease["LeaseToken"]] = await self._lag(lease)
        return found

    async def _leases(self, prefix: str) -> list[dict[str, Any]]:
        query = "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)"
        body = json.dumps(
            {"query": query, "parameters": [{"name": "@prefix", "value": prefix}]}, separators=(",", ":")
        )
        headers = {
            "Content-Type": "application/query+json",
            "x-ms-documentdb-isquery": "true",
            "x-ms-documentdb-query-enablecrosspartition": "true",
        }
        documents: list[dict[str, Any]] = []
        while True:
            async with self._request("POST", "dbs/db/colls/leases", headers, body) as answer:
                assert 200 == answer.status
                documents += (await answer.json())["Documents"]
                if "x-ms-continuation" not in answer.headers:
                    return documents
                headers["x-ms-continuation"] = answer.headers["x-ms-continuation"]

    async def _lag(self, lease: dict[str, Any]) -> int:
        headers = {
            "x-ms-documentdb-partitionkeyrangeid": lease["LeaseToken"],
            "A-IM": "Incremental feed",
            "x-ms-max-item-count": "1",
        }
        if lease["ContinuationToken"]:
            headers["If-None-Match"] = lease["ContinuationToken"]
        async with self._request("GET", "dbs/db/colls/data", headers) as answer:
            if answer.status == 304:
                return 0
            assert 200 == answer.status, await answer.text()
            first = (await answer.json())["Documents"][0]["_lsn"]
            segments = answer.headers["x-ms-session-token"].partition(":")[2].split("#")
            newest = int(segments[1] if len(segments) > 1 else segments[0])
            return newest - first + 1

    def _request(self, verb: str, link: str, headers: dict[str, str], body: str | None = None) -> Any:
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        text = f"{verb.lower()}\ndocs\n{link}\n{date.lower()}\n\n"
        made = hmac.new(base64.b64decode(self._key), text.encode(), hashlib.sha256).digest()
        signed = {
            **headers,
            "Authorization": quote_plus(f"type=master&ver=1.0&sig={base64.b64encode(made).decode()}"),
            "x-ms-date": date,
            "x-ms-version": "2018-12-31",
        }
        return self._http.request(verb, f"{self._endpoint}/{link}/docs", headers=signed, data=body)


def replicas(lags: dict[str, int], *, threshold: int = 100) -> int:
    """
    Return how many replicas KEDA asks for: `min(totalLag, active * threshold)` divided by `threshold`, rounded up.
    """
    active = sum(1 for lag in lags.values() if lag > 0)
    return math.ceil(min(sum(lags.values()), active * threshold) / threshold)


class World:
    def __init__(self, server: CosmosServer, database: DatabaseProxy, host: str, scaler: Scaler) -> None:
        self.server, self.scaler = server, scaler
        data = database.get_container_client("data")
        self._data = data
        self.feed = CosmosChangeFeed(data, account_host=host)
        self.leases = CosmosLeases(database.get_container_client("leases"))
        # KEDA looks for leases whose ids begin with the processor's name and the first part of the account's host name.
        self.keda_prefix = f"{NAME}{host.partition('.')[0]}."

    async def dotnet_prefix(self) -> str:
        container = await self.feed.describe()
        return f"{NAME}{container.account_host}_{container.database_rid}_{container.container_rid}.."

    async def write(self, count: int, *, first: int = 0) -> None:
        for n in range(first, first + count):
            await self._data.create_item({"id": str(n), "partitionKey": f"key-{n % 20}"})

    async def process(self, changes: int) -> None:
        """
        Run a processor until it has handled this number of changes and saved a position in every lease. Then stop it.
        """
        seen = 0

        async def handle(batch: ChangeBatch) -> None:
            nonlocal seen
            seen += len(batch.documents)

        processor = ChangeFeedProcessor(
            self.feed, self.leases, handle, ProcessorOptions(processor_name=NAME), hooks=()
        )
        task = asyncio.create_task(processor.run())
        ranges = len(await self.feed.physical_ranges())
        async with asyncio.timeout(HUNG_SECONDS):
            while seen < changes or await self._saved() < ranges:  # noqa: ASYNC110 - a document is no event
                await asyncio.sleep(0.02)
        processor.stop()
        await task

    async def _saved(self) -> int:
        documents = (await self.leases.list(NAME)).documents
        return sum(bool(document.get("ContinuationToken")) for document in documents)


@asynccontextmanager
async def a_world(*, ranges: int) -> AsyncIterator[World]:
    account = Account()
    async with (
        CosmosServer(account) as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
        aiohttp.ClientSession() as http,
    ):
        database = await client.create_database("db")
        # Create the lease container with one physical partition, because KEDA reads a single page, and a page has rows of one partition.
        await database.create_container("leases", PartitionKey("/id"), default_ttl=-1)
        account.partitions = ranges
        await database.create_container("data", PartitionKey("/partitionKey"))
        # .NET puts the host name of the global endpoint into lease ids, and not that of a region. An emulator has no such host name,
        # so this test makes one up.
        host = urlsplit(GLOBAL_ENDPOINT).hostname
        assert host == global_host(
            "acct", endpoints=["https://acct-westeurope.documents.azure.com:443/", GLOBAL_ENDPOINT]
        )
        yield World(server, database, host, Scaler(http, server.url, server.key))


async def test_both_keda_scalers_find_all_leases_and_no_other_documents():
    async with a_world(ranges=3) as world:
        await world.process(0)
        fleet = Fleet(world.leases, processor=NAME, container="db/data")
        await fleet.beat(Heartbeat(worker="w", every=timedelta(seconds=15), phase="running"))
        assert ["w"] == [one.worker for one in await fleet.heartbeats()]
        found = (await world.leases.list(world.keda_prefix)).documents
        assert {True} == {"LeaseToken" in one or one["id"].endswith(".info") for one in found}, (
            "a page that KEDA reads has other documents"
        )

        assert {"0": 0, "1": 0, "2": 0} == await world.scaler.lags(await world.dotnet_prefix())
        assert {"0": 0, "1": 0, "2": 0} == await world.scaler.lags(world.keda_prefix)
        assert {} == await world.scaler.lags(f"{NAME}-extended")


async def test_keda_and_the_estimator_of_the_library_find_the_same_lag():
    async with a_world(ranges=3) as world:
        await world.write(30)
        await world.process(30)
        await world.write(75, first=30)

        lags = await world.scaler.lags(world.keda_prefix)
        ours = await estimate_lag(NAME, feed=world.feed, leases=world.leases)
        assert 75 == sum(lags.values())
        assert lags == {lease.token: lease.transactions for lease in ours.leases}

        await world.process(75)
        assert 0 == sum((await world.scaler.lags(world.keda_prefix)).values())


async def test_keda_scales_an_idle_processor_to_zero():
    """
    Scaling to zero needs a continuation (the position) in each lease, even if the worker has read no changes. Without it,
    KEDA reads the change feed from its beginning and finds a lag.
    """
    async with a_world(ranges=2) as world:
        await world.process(0)

        assert 0 == replicas(await world.scaler.lags(world.keda_prefix))

        await world.write(250)
        lags = await world.scaler.lags(world.keda_prefix)
        assert 250 == sum(lags.values())
        assert min(2, math.ceil(250 / 100)) == replicas(lags)


async def test_keda_sees_no_lag_in_the_children_of_a_split_range():
    async with a_world(ranges=2) as world:
        await world.write(40)
        await world.process(40)
        world.server.account.container("db", "data").split("0")
        await world.write(10, first=40)
        await world.process(10)

        assert {"1": 0, "2": 0, "3": 0} == await world.scaler.lags(world.keda_prefix)
        await world.write(12, first=50)
        assert 12 == sum((await world.scaler.lags(world.keda_prefix)).values())
