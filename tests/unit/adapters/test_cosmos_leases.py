"""
What the adapter makes of the lease container's answers: its splits are outages, its clock is the service's, and a renewal over
plain REST means what it means through the SDK.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox.adapters.cosmos.client import open_cosmos_client, rest_client
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.errors import (
    ConfigurationError,
    OutboxError,
    PreconditionFailed,
    StoreUnavailable,
    TooManyRequests,
)
from cosmos_outbox.ports import Document
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, RequestKind, Route
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)


@pytest.mark.parametrize("sub_status", [1002, 1007])
async def test_a_range_of_the_lease_container_that_is_gone_makes_every_call_one_that_was_not_executed(
    sub_status: int,
):
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("db")
        leases = CosmosLeases(await database.create_container("leases", PartitionKey("/id")))
        lease = await leases.create({"id": "a"})
        calls = {
            RequestKind.READ: lambda: leases.read("a", "a"),
            RequestKind.CREATE: lambda: leases.create({"id": "b"}),
            RequestKind.REPLACE: lambda: leases.replace({"id": "a"}, etag=lease["_etag"]),
            RequestKind.DELETE: lambda: leases.delete("a", "a", etag=lease["_etag"]),
        }
        for operation, call in calls.items():
            server.faults.add(FaultRule(operation=operation, status=410, substatus=sub_status))
            with pytest.raises(StoreUnavailable) as refused:
                await call()
            assert refused.value.applied is False


async def test_a_list_was_read_when_the_service_says_so_whatever_the_time_is_here():
    moment = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    async with (
        CosmosServer(Account(clock=moment.timestamp)) as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("db")
        leases = CosmosLeases(await database.create_container("leases", PartitionKey("/id")))

        assert moment == (await leases.list("p..")).read_at


@pytest.mark.parametrize("ttl", [None, -1, 3600])
async def test_a_container_that_deletes_leases_by_itself_is_refused_with_the_fix(ttl: int | None):
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("db")
        container = await database.create_container("leases", PartitionKey("/id"), default_ttl=ttl)
        leases = CosmosLeases(container)
        if ttl == 3600:
            with pytest.raises(ConfigurationError, match="time to live to -1"):
                await leases.partitioned_by_id()
        else:
            assert await leases.partitioned_by_id()


class Renewing:
    """
    A lease that was written through the SDK, a store that renews it over plain REST, and how the service was asked to.
    """

    def __init__(self, server: CosmosServer, leases: CosmosLeases, lease: Document) -> None:
        self.server, self.leases, self.lease, self.ways = server, leases, lease, list[str]()
        self._answer, server.gateway.answer = server.gateway.answer, self.answer

    def answer(self, request: Request, route: Route | None = None, fault: FaultRule | None = None) -> Reply:
        if route is not None and route.kind is RequestKind.REPLACE:
            self.ways.append("sdk" if "x-ms-client-id" in request.headers else "rest")
        return self._answer(request, route, fault)

    async def renew(self, **changed: Any) -> Document:
        return await self.leases.replace({**self.lease, **changed}, etag=self.lease["_etag"])


@asynccontextmanager
async def renewing(*, key: str = "id", database: str = "db ü") -> AsyncIterator[Renewing]:
    async with (
        CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        created_database = await client.create_database(database)
        container = await created_database.create_container("leases", PartitionKey(f"/{key}"))
        leases = CosmosLeases(container, rest=rest_client(client))
        created = await leases.create({"id": "p..é 0", "partitionKey": "ü"})
        yield Renewing(server, leases, await leases.replace(created, etag=created["_etag"]))


@pytest.mark.parametrize("key", ["id", "partitionKey"])
async def test_a_lease_is_renewed_over_plain_rest_once_the_sdk_has_written_it(key: str):
    async with renewing(key=key) as one:
        for n in range(3):
            one.lease = await one.renew(n=n, text="ü")

        assert ["rest"] * 3 == one.ways
        assert one.lease == await one.leases.read("p..é 0", one.lease[key])


async def test_a_lease_is_renewed_whatever_the_database_is_called():
    async with renewing(database="docs-eu") as one:
        one.lease = await one.renew()

        assert ["rest"] == one.ways


async def test_an_answer_that_is_no_json_leaves_open_whether_a_lease_is_renewed():
    async with renewing() as one:
        one.server.gateway.answer = lambda *_: Reply(status=200, body=b"<html>busy</html>")  # type: ignore[method-assign]

        with pytest.raises(StoreUnavailable) as told:
            await one.renew()

        assert told.value.applied is None


async def test_one_of_many_renewals_of_the_same_state_succeeds():
    async with renewing() as one:
        outcomes = await asyncio.gather(*(one.renew(n=n) for n in range(8)), return_exceptions=True)

        assert ["rest"] * 8 == one.ways
        assert 7 == sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes)


@pytest.mark.parametrize(
    ("status", "substatus"), [(400, 1024), (401, 0), (403, 3), (404, 0), (410, 1002)], ids=str
)
async def test_a_renewal_that_was_refused_unexecuted_is_done_over_through_the_sdk(
    status: int, substatus: int
):
    async with renewing() as one:
        one.server.faults.add(
            FaultRule(operation=RequestKind.REPLACE, status=status, substatus=substatus, count=1)
        )
        await one.renew()
        assert ["sdk"] == one.ways[-1:]


async def test_a_renewal_that_another_worker_overtook_is_told_and_the_next_one_goes_over_rest():
    async with renewing() as one:
        one.server.faults.add(FaultRule(operation=RequestKind.REPLACE, status=412, count=1))
        with pytest.raises(PreconditionFailed):
            await one.renew()
        await one.renew()
        assert ["rest"] == one.ways[-1:]


@pytest.mark.parametrize(
    ("fault", "meaning", "applied"),
    [
        ({"status": 429, "retry_after_ms": 7}, TooManyRequests, False),
        ({"status": 503}, StoreUnavailable, None),
        ({"drop": True, "count": 2}, StoreUnavailable, None),
    ],
    ids=str,
)
async def test_a_renewal_that_fails_is_told_as_the_sdks_and_the_next_one_is_the_sdks(
    fault: dict[str, Any], meaning: type[OutboxError], applied: bool | None
):
    async with renewing() as one:
        one.server.faults.add(FaultRule(operation=RequestKind.REPLACE, **{"count": 1, **fault}))

        with pytest.raises(meaning) as told:
            await one.renew()
        await one.renew()

        assert applied is getattr(told.value, "applied", False)
        assert ["sdk"] == one.ways[-1:]
