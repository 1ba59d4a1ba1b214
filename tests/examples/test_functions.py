"""
Tests of the Azure Functions example: the settings that it declares to the host, and its functions on the emulators.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox import EventSizes, Outbox
from cosmos_outbox.adapters.cosmos import CosmosChangeFeed, open_cosmos_client, open_store
from cosmos_outbox.adapters.servicebus import message_from
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.ports import StartFrom
from tests.support.functions_host import documents, received
from tests.support.local import Local, emulators
from tests.support.local_outbox import Person
from tests.support.pages import ROOT

pytestmark = pytest.mark.looptime(False)

APP = ROOT / "examples/functions"
HOST = json.loads((APP / "host.json").read_text())


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    with emulators() as running:
        yield running


@pytest.fixture
def app(local: Local, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import function_app again for each test, as a new process of the host does."""
    for name, value in (local.environment | {"OUTBOX_PARKED_CONTAINER": "parked"}).items():
        if name.startswith("OUTBOX_"):
            monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "function_app", raising=False)
    return importlib.import_module("function_app")


def functions_of(app: ModuleType) -> dict[str, Any]:
    return {function.get_function_name(): function for function in app.app.get_functions()}


def seconds(text: str) -> float:
    hours, minutes, rest = map(int, text.split(":"))
    return timedelta(hours=hours, minutes=minutes, seconds=rest).total_seconds()


def test_the_relay_function_is_retried_until_it_succeeds(app: ModuleType):
    policy = functions_of(app)["relay"].get_settings_dict("retry_policy")

    assert ("fixed_delay", "-1") == (policy["strategy"], policy["max_retry_count"])


def test_the_consumer_function_gets_single_messages_of_sessions(app: ModuleType):
    """
    The host calls the consumer function with one message of a session at a time, with its body as bytes.
    """
    trigger = functions_of(app)["account"].get_trigger().get_dict_repr()

    assert (True, "binary") == (trigger["isSessionsEnabled"], str(trigger["dataType"]).lower())
    assert "many" != trigger.get("cardinality")


def test_the_host_s_time_limits_are_longer_than_the_longest_handling():
    """The time limits are the timeout of a function and the time for which the host renews locks."""
    bus = HOST["extensions"]["serviceBus"]
    longest = (Consumer("account").policy.longest_handling + timedelta(minutes=2)).total_seconds()

    assert longest < seconds(HOST["functionTimeout"]) <= seconds(bus["maxAutoLockRenewalDuration"])
    assert (0, True) == (bus["prefetchCount"], bus["autoCompleteMessages"])
    assert "retry" not in HOST


async def changes(local: Local) -> list[dict[str, Any]]:
    async with open_cosmos_client(connection_string=local.cosmos) as client:
        container = client.get_database_client(local.database).get_container_client("data")
        feed = CosmosChangeFeed(container, account_host="localhost")
        rid, found = (await feed.describe()).container_rid, []
        for feed_range in await feed.physical_ranges():
            page = await feed.read_page(
                feed_range, container_rid=rid, continuation=None, start=StartFrom.BEGINNING, max_items=100
            )
            found += page.documents
        return found


async def test_a_committed_event_takes_effect_once_through_both_functions(app: ModuleType, local: Local):
    async with open_cosmos_client(connection_string=local.cosmos) as client:
        outbox = Outbox(await open_store(client, local.database, "data"))
        async with outbox.unit_of_work() as uow:
            person = uow.repository(Person).create(Person(id="ada", name="ada"))
            person.rename("Ada", "ada-1")
            person.rename("ADA", "ada-2")
            await uow.commit()
        batch = documents(*await changes(local))
        for _ in range(2):  # the host may pass the same batch again
            await app.relay(batch)

        names = []
        async with (
            ServiceBusClient.from_connection_string(local.servicebus) as bus,
            bus.get_subscription_receiver("events", "all", session_id="ada", max_wait_time=20) as receiver,
        ):
            while len(names) < 2:
                for message in await receiver.receive_messages(1, max_wait_time=20):
                    for deliveries in (1, 2):  # the host may deliver a message twice
                        await app.account(received(message_from(message), deliveries=deliveries))
                    await receiver.complete_message(message)
                    async with outbox.unit_of_work() as uow:
                        account = await uow.repository(app.Account).read("account-ada", partition_key="ada")
                        names.append(account.name)
                        version = account.version
    await app.events.aclose()
    await app.handling.aclose()

    assert (["Ada", "ADA"], 2) == (names, version)


async def commit_what_is_too_large(app: ModuleType, local: Local) -> None:
    async with open_cosmos_client(connection_string=local.cosmos) as client:
        store, sizes = await open_store(client, local.database, "data"), EventSizes(max_message_bytes=2**20)
        async with Outbox(store, sizes=sizes).unit_of_work() as uow:
            uow.repository(Person).create(Person(id="grace", name="grace")).rename("x" * 300_000, "grace-1")
            await uow.commit()
    await app.relay(documents(*await changes(local)))
    await app.events.aclose()


def test_the_command_parked_list_shows_the_keys_that_the_relay_function_parked(app: ModuleType, local: Local):
    asyncio.run(commit_what_is_too_large(app, local))
    shown = local.rows("parked", "list", OUTBOX_PARKED_CONTAINER="parked", OUTBOX_PROCESSOR_NAME="functions")

    assert ["grace"] == [key["key"] for key in shown]
