"""
The store over plain REST sends as the SDK last did, and leaves to the SDK what it does not understand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox import AccessDenied, Conflict, NotFound, StoreUnavailable, TooManyRequests
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client, rest_client
from cosmos_outbox.adapters.cosmos.rest_store import RestStore
from cosmos_outbox.partition_key import ON_PARTITION_KEY
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox_emulators.cosmos.faults import FaultRule, Faults, When
from cosmos_outbox_emulators.cosmos.protocol import Reply, RequestKind
from cosmos_outbox_emulators.cosmos.regions import fail_over
from cosmos_outbox_emulators.cosmos.server import CosmosServer

pytestmark = pytest.mark.looptime(False)


class Counted:
    """
    A container of the SDK that counts what goes through it.
    """

    def __init__(self, container: Any) -> None:
        self._container = container
        self.calls = 0

    async def read_item(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return await self._container.read_item(*args, **options)

    async def execute_item_batch(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return await self._container.execute_item_batch(*args, **options)


@asynccontextmanager
async def opened(given: CosmosServer | None = None) -> AsyncIterator[tuple[RestStore, Counted, Faults]]:
    """
    Open a store that has learned how to send, with nothing counted yet.
    """
    async with (
        given or CosmosServer() as server,
        open_cosmos_client(connection_string=server.connection_string) as client,
    ):
        database = await client.create_database("d")
        container = await database.create_container("c", PartitionKey("/partitionKey"), default_ttl=-1)
        counted = Counted(container)
        store = RestStore(counted, ON_PARTITION_KEY, rest_client(client))  # type: ignore[arg-type] # it looks like one
        await store.commit("k", creations("first"))
        await store.read("first", "k")
        counted.calls = 0
        yield store, counted, server.faults


def creations(*ids: str) -> list[Write]:
    return [Write(kind=WriteKind.CREATE, id=name, document={"id": name, "partitionKey": "k"}) for name in ids]


async def test_once_the_sdk_has_shown_how_it_is_not_asked_again():
    async with opened() as (store, counted, _):
        (etag,) = (await store.commit("k", creations("é %"))).etags
        document = await store.read("é %", "k")
        assert etag == document["_etag"]
        with pytest.raises(Conflict):
            await store.commit("k", creations("new", "é %"))
        with pytest.raises(NotFound):
            await store.read("new", "k")
        changed = Write(kind=WriteKind.REPLACE, id="é %", document=document, etag=etag)
        await store.commit("k", [changed])
        assert (await store.commit("k", [Write(kind=WriteKind.DELETE, id="é %")])).request_charge > 0
        assert 0 == counted.calls


@pytest.mark.parametrize(("status", "substatus"), [(401, 0), (403, 3), (404, 1002), (410, 1000)])
async def test_what_was_refused_before_it_was_executed_is_sent_again_through_the_sdk(
    status: int, substatus: int
):
    async with opened() as (store, counted, faults):
        faults.add(FaultRule(operation=RequestKind.BATCH, status=status, substatus=substatus, count=1))
        await store.commit("k", creations("a"))
        assert 1 == counted.calls
        await store.commit("k", creations("b"))
        await store.commit("k", creations("c"))
        assert 2 == counted.calls, "the SDK shows how to send once more"


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 408}, {"status": 500}, {"drop": True}])
@pytest.mark.parametrize("when", When)
async def test_where_a_commit_may_have_been_executed_the_caller_is_told_and_the_sdk_sends_the_next(
    fault: dict[str, Any], when: When
):
    async with opened() as (store, counted, faults):
        faults.add(FaultRule(operation=RequestKind.BATCH, when=when, count=1, **fault))
        with pytest.raises(StoreUnavailable) as caught:
            await store.commit("k", creations("a"))
        assert caught.value.applied is None
        assert 0 == counted.calls
        await store.commit("k", creations("b"))
        assert 1 == counted.calls


async def test_throttling_is_the_callers_and_the_next_commit_goes_over_rest():
    async with opened() as (store, counted, faults):
        faults.add(
            FaultRule(operation=RequestKind.BATCH, status=429, substatus=3200, retry_after_ms=70, count=1)
        )
        with pytest.raises(TooManyRequests) as caught:
            await store.commit("k", creations("a"))
        assert 0.07 == caught.value.retry_after
        await store.commit("k", creations("a"))
        assert 0 == counted.calls


async def test_a_throttled_read_is_the_callers_to_repeat():
    async with opened() as (store, counted, faults):
        faults.add(FaultRule(operation=RequestKind.READ, status=429, retry_after_ms=70, count=1))
        with pytest.raises(TooManyRequests) as caught:
            await store.read("first", "k")
        assert (0.07, 0) == (caught.value.retry_after, counted.calls)


async def test_a_read_that_fails_is_done_over_through_the_sdk():
    async with opened() as (store, counted, faults):
        faults.add(FaultRule(operation=RequestKind.READ, status=503, count=1))
        assert "first" == (await store.read("first", "k"))["id"]
        assert 1 == counted.calls


async def test_what_the_sdk_is_refused_too_is_the_answer():
    async with opened() as (store, _, faults):
        faults.add(FaultRule(operation=RequestKind.BATCH, status=403))
        with pytest.raises(AccessDenied):
            await store.commit("k", creations("a"))


async def test_reads_follow_the_writes_to_the_region_that_takes_them_now():
    server = CosmosServer()
    fail_over(server.account)
    async with opened(server) as (store, counted, _):
        fail_over(server.account)
        await store.commit("k", creations("a"))
        counted.calls = 0
        await store.read("first", "k")
        assert 1 == counted.calls, "the SDK shows where it reads by now"


async def test_an_answer_that_is_no_json_leaves_the_outcome_open():
    server = CosmosServer()
    async with opened(server) as (store, _, _faults):
        server.gateway.answer = lambda *_: Reply(status=200, body=b"<html>busy</html>")  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable) as caught:
            await store.commit("k", creations("a"))
        assert caught.value.applied is None
