"""The subscriber takes every message of every session in order and completes it, on the emulator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from demo.received import RecordReader
from examples.contacts.received import ReceivedMessage
from examples.contacts.settings import SubscriberSettings
from examples.contacts.subscriber import SessionTimes, subscribe
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)

CREATED = "2026-01-01T00:00:00+00:00"


@pytest.fixture
async def server():
    async with ServiceBusServer(Broker.default(), host="127.0.0.1", port=0) as running:
        yield running


def message(session: str, number: int) -> ServiceBusMessage:
    return ServiceBusMessage(
        json.dumps({"createdAt": CREATED}),
        session_id=session,
        message_id=f"{session}-{number}",
        subject="ContactCreatedEvent",
        application_properties={"entity-version": number, "sequence": 0},
    )


async def until(fact) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while True:
            if fact():
                return
            await asyncio.sleep(0.01)


def completed(server: ServiceBusServer) -> int:
    return server.broker.stats()["topics"]["events"]["subscriptions"]["all"]["completed"]


async def test_messages_that_trickle_in_are_taken_once_in_order_and_completed(server):
    sessions, count = [f"s{n}" for n in range(6)], 12
    received: list[ReceivedMessage] = []
    settings = SubscriberSettings(servicebus_connection_string=server.connection_string, receivers=4)
    subscribing = asyncio.create_task(
        subscribe(settings, received.append, SessionTimes(accept_seconds=2, idle_seconds=0.1))
    )
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_topic_sender("events") as sender,
    ):
        for number in range(1, count + 1):
            for session in sessions:
                await sender.send_messages(message(session, number))
    await until(lambda: completed(server) == len(sessions) * count)
    subscribing.cancel()
    await asyncio.gather(subscribing, return_exceptions=True)

    by_session = defaultdict(list)
    for one in received:
        by_session[one.session_id].append(one)
    assert set(sessions) == set(by_session)
    for session, messages in by_session.items():
        assert [f"{session}-{n}" for n in range(1, count + 1)] == [one.message_id for one in messages]
        assert list(range(1, count + 1)) == [one.entity_version for one in messages]
        assert all(one.sequence_number < other.sequence_number for one, other in pairwise(messages))
    assert {("ContactCreatedEvent", 0, CREATED)} == {
        (one.subject, one.sequence, one.created_at) for one in received
    }


async def start_subscriber(record: Path, **variables: str) -> asyncio.subprocess.Process:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "examples.contacts", "subscriber", "--record", str(record)),
        env=env | variables,
        cwd=Path(__file__).parents[2],
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_process_records_before_it_completes_and_stops_cleanly_on_sigterm(server, tmp_path):
    record = tmp_path / "received.jsonl"
    process = await start_subscriber(
        record, OUTBOX_SERVICEBUS_CONNECTION_STRING=server.connection_string, OUTBOX_RECEIVERS="2"
    )
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_topic_sender("events") as sender,
    ):
        await sender.send_messages([message("a", 1), message("a", 2), message("b", 1)])
    await until(lambda: completed(server) == 3)
    process.send_signal(signal.SIGTERM)
    _, errors = await process.communicate()
    assert (0, b"") == (process.returncode, errors)
    assert {"a-1", "a-2", "b-1"} == {one.message_id for one in RecordReader(record).read_new()}


async def test_every_wrong_setting_is_named_and_the_exit_code_is_2(tmp_path):
    process = await start_subscriber(tmp_path / "record", OUTBOX_RECEIVERS="0")
    _, errors = await process.communicate()
    assert 2 == process.returncode
    assert b"OUTBOX_SERVICEBUS_CONNECTION_STRING" in errors
    assert b"OUTBOX_RECEIVERS" in errors
