"""
Fuzz tests with arbitrary HTTP requests to both emulators and their control port. The server answers each
request, a refused request changes nothing, and no request raises an unforeseen error.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.emulators.cosmos.driver import DOCUMENTS, Driver
from tests.support.effort import examples

pytestmark = pytest.mark.looptime(False)

# Recorded requests: each one that once raised an unforeseen error, and one for each kind of refusal.
CORPUS = Path(__file__).parent / "cosmos/corpus"


def picture(driver: Driver):
    """
    Return the etag and the LSNs of each container. They change with each write, so equal pictures mean that
    no request wrote anything.
    """
    return {
        container.path: (container.properties["_etag"], [part.lsn for part in container.partitions])
        for database in driver.account.databases.values()
        for container in database.containers.values()
    } | dict.fromkeys(driver.account.databases)


def test_the_cosmos_db_emulator_refuses_each_recorded_request_with_its_status():
    """The requests are refused and change nothing."""
    driver = Driver()
    driver.upsert("k", "i")
    before, kept = picture(driver), json.loads((CORPUS / "requests.json").read_text())
    answers = [
        driver.send(one["method"], one["path"], bytes.fromhex(one["hex"]), **one["headers"]) for one in kept
    ]
    assert [one["status"] for one in kept] == [answer.status for answer in answers]
    assert before == picture(driver)


def test_the_emulators_answer_or_cut_off_each_recorded_byte_stream():
    """The test also checks that no task of the emulators still runs for a connection that is over."""
    for data in json.loads((CORPUS / "streams.json").read_text()):
        asyncio.run(_talk(bytes.fromhex(data)))


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/dbs/\udcff", {}),
        ("POST", DOCUMENTS, {"x-ms-documentdb-partitionkey": "[" * 100_000}),
        ("POST", DOCUMENTS, {"x-ms-documentdb-partitionkey": "[1e400]"}),
        ("GET", DOCUMENTS, {"x-ms-activity-id": "1\r\nx: y"}),
    ],
)
def test_the_cosmos_db_emulator_can_encode_its_reply_to_any_request(method, path, headers):
    reply = Driver().send(method, path, **headers)
    assert 200 <= reply.status < 500
    assert json.loads(reply.body)
    for name, value in reply.headers.items():
        (name + value).encode()
        assert not {"\r", "\n"} & set(value)


PIECES = st.binary(max_size=20) | st.sampled_from(
    (
        b"GET / HTTP/1.1\r\n",
        b"POST /dbs HTTP/1.1\r\n",
        b"GET http://x/dbs HTTP/1.0\r\n",
        b"GET /$servicebus/websocket HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
        b"GET /explorer/queue?path=%ff&page=%00 HTTP/1.1\r\n",
        b"POST /cosmos/split HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: -5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"AMQP\x00\x01\x00\x00",
        b"[" * 900,
    )
)


@settings(max_examples=examples(40, many=400), deadline=None)
@example(
    b"GET /$servicebus/websocket HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nHost: x\r\n\r\n"
)
@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_the_emulators_answer_or_cut_off_any_bytes_on_any_port(data):
    """After the answer, no task of the emulators still handles these bytes."""
    asyncio.run(_talk(data))


async def _talk(data: bytes) -> None:
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append
    logging.getLogger().addHandler(handler)
    clock, broker = AdjustableClock(), Broker.default()
    try:
        async with (
            CosmosServer() as cosmos,
            ServiceBusServer(broker) as servicebus,
            ControlServer(cosmos, broker, clock=clock) as control,
        ):
            before = len(asyncio.all_tasks())
            for port in (cosmos.port, servicebus.port, control.port):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                writer.write_eof()
                async with asyncio.timeout(30):
                    await reader.read(1)  # the first byte of an answer, or the end of the connection
                writer.close()
            async with asyncio.timeout(30):
                while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110  # the servers have no event for it
                    await asyncio.sleep(0)
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection("127.0.0.1", cosmos.port)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 401")
                writer.close()
    finally:
        logging.getLogger().removeHandler(handler)
    assert ([], []) == (errors, [record.getMessage() for record in records])
