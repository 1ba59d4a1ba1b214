"""
Tests of parking with real processes: a worker parks a key, the next worker knows this, and the key is released under
load.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceiveMode

from cosmos_outbox.adapters.cosmos.parked import open_parked
from cosmos_outbox.adapters.servicebus.publisher import ServiceBusPublisher, open_service_bus_client
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox.relay.released_events import resending
from tests.support.event_documents import event
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.system,
    # The SDK leaves its socket open when a link ends, and the garbage collector closes it later with a warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

EDITED = {"action": "Renamed", "number": 2}


async def commit(site: Site, key: str, number: int, *, size: int = 0) -> None:
    fields = {name: value for name, value in event(key, number, size=size).items() if name[0] != "_"}
    document: dict[str, Any] = {**fields, "id": f"{key}.{number}"}
    await site.store.commit(key, [Write(kind=WriteKind.CREATE, id=document["id"], document=document)])


async def holds(keys: ParkedKeys, count: int) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while [count] != [key.held for key in await keys.list()]:  # noqa: ASYNC110 - the store gives no sign
            await asyncio.sleep(0.05)


async def received(site: Site, key: str, *, count: int) -> list[str]:
    ids: list[str] = []
    async with (
        open_service_bus_client(connection_string=site.bus.connection_string) as client,
        client.get_subscription_receiver(
            "events", "all", session_id=key, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver,
    ):
        while len(ids) < count and (more := await receiver.receive_messages(100, max_wait_time=60)):
            ids += [str(message.message_id) for message in more]
        ids += [str(message.message_id) for message in await receiver.receive_messages(1, max_wait_time=0.2)]
    return ids


async def test_a_parked_key_outlives_its_worker_and_can_be_released_under_load() -> None:
    async with opened_site() as site, AsyncExitStack() as stack:
        site.environment["OUTBOX_PARKED_CONTAINER"] = "parked"
        first = await site.start_worker()
        await commit(site, "b", 1)
        await commit(site, "b", 2, size=300_000)
        await commit(site, "a", 1)
        store = await open_parked(site.client, "contacts", "parked")
        bus = await stack.enter_async_context(
            open_service_bus_client(connection_string=site.bus.connection_string)
        )
        publisher = await stack.enter_async_context(ServiceBusPublisher(bus, "events", lanes=1))
        rid = str(
            (await site.client.get_database_client("contacts").get_container_client("data").read())["_rid"]
        )
        keys = ParkedKeys(store, resending(publisher), scope=Scope(processor="outbox", container=rid))
        await holds(keys, 1)
        first.process.kill()
        await first.exit_code()

        second = await site.start_worker(OUTBOX_INSTANCE_NAME="worker-2")
        await commit(site, "b", 3)
        await commit(site, "a", 2)
        await holds(keys, 2)

        released = asyncio.Event()

        async def load() -> int:
            for number in itertools.count(4):
                await commit(site, "b", number)
                if released.is_set():
                    return number
            raise AssertionError

        loading = asyncio.create_task(load())
        result = await keys.release("b", edited=EDITED, event_id="b.2")
        released.set()
        last = await loading
        assert result.handed_back
        assert [f"b.{number}" for number in range(1, last + 1)] == await received(site, "b", count=last)
        assert ["a.1", "a.2"] == await received(site, "a", count=2)
        assert () == await keys.list()
        second.process.terminate()
        assert 0 == await second.exit_code()
