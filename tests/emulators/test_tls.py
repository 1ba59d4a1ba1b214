"""
Tests of TLS: the unmodified Azure SDKs verify the emulators' certificate, and trust only the emulators' own certificate authority.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient
from cryptography import x509

from cosmos_outbox_emulators.certificate import AUTHORITY, server_context
from cosmos_outbox_emulators.in_thread import cosmos_in_thread, servicebus_in_thread
from cosmos_outbox_emulators.usage import UsageError

pytestmark = pytest.mark.looptime(False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tls"


async def test_the_service_bus_sdk_connects_over_tls(folder: Path):
    with servicebus_in_thread(tls=folder) as emulator:
        # Only with `custom_endpoint_address` does the Service Bus SDK use a port other than 5671. Its default is WebSockets in this
        # case, so the test sets `transport_type`.
        address = emulator.connection_string.split(";")[0].removeprefix("Endpoint=")
        async with (
            ServiceBusClient.from_connection_string(
                emulator.connection_string,
                custom_endpoint_address=address,
                transport_type=TransportType.Amqp,
                connection_verify=str(folder / AUTHORITY),
            ) as client,
            client.get_topic_sender("events") as sender,
            client.get_subscription_receiver("events", "all", session_id="ada") as receiver,
        ):
            await sender.send_messages(ServiceBusMessage("hello", session_id="ada"))
            [message] = await receiver.receive_messages(1, max_wait_time=60)
            assert "hello" == str(message)
            emulator.drop_connections()


@pytest.mark.parametrize("start", [cosmos_in_thread, servicebus_in_thread])
async def test_a_client_that_does_not_trust_the_certificate_causes_no_log_line(
    start, folder: Path, caplog: pytest.LogCaptureFixture
):
    with start(tls=folder) as emulator:
        port = int(emulator.connection_string.split(";")[0].rstrip("/").rpartition(":")[2])
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"AMQP\x00\x01\x00\x00")
        await reader.read()
        writer.close()
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_certificate_is_reused_until_it_expires(folder: Path, monkeypatch: pytest.MonkeyPatch):
    files = [folder / AUTHORITY, folder / "server.pem"]
    server_context(folder)
    first = [file.read_bytes() for file in files]
    server_context(folder)
    assert first == [file.read_bytes() for file in files]
    assert 0o600 == files[1].stat().st_mode & 0o777

    expired = x509.load_pem_x509_certificate(first[1]).not_valid_after_utc
    monkeypatch.setattr(
        "cosmos_outbox_emulators.certificate.datetime", type("Clock", (), {"now": lambda _: expired})
    )
    server_context(folder)
    assert first != [file.read_bytes() for file in files]


def test_without_the_tls_package_the_error_names_the_extra_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UsageError, match=r"pip install 'cosmos-outbox-emulators\[tls\]'"):
        server_context(folder)


def test_the_emulators_announce_and_serve_their_certificate():
    command = [sys.executable, "-m", "cosmos_outbox_emulators", "--json", "--tls"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own code
        announced = json.loads(process.stdout.readline())
        authority = Path(announced["certificate"])
        trusted = ssl.create_default_context(cafile=authority)
        url = announced["cosmos"].split(";")[0].removeprefix("AccountEndpoint=")
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trusted))
        try:
            assert authority.read_bytes() == opener.open(announced["control"] + "/certificate.pem").read()
            with pytest.raises(HTTPError, match="401"):
                opener.open(url.replace("127.0.0.1", "localhost"))
        finally:
            process.terminate()
    assert (0, False) == (process.returncode, authority.exists())


def test_the_administration_client_finds_http_management_over_tls(tmp_path: Path):
    """The client gets 401 if its key has only the rights to send and to listen."""
    keys = {"Root": "one", "NoManage": {"value": "two", "rights": ["Send", "Listen"]}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"sas_keys": keys, "queues": [{"name": "q"}]}))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    options = ["--json", "--tls", "--config", str(config), "--servicebus-https-port", str(port)]
    command = [sys.executable, "-m", "cosmos_outbox_emulators", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own code
        announced = json.loads(process.stdout.readline())
        try:
            for given, expected in (("servicebus", ["q"]), ("NoManage", 401)):
                text = announced.get(given) or announced["servicebus_keys"][given]
                # The SDK expects HTTP management on port 443, as on Azure. The test may not open this port, so it puts another port
                # into the connection string.
                elsewhere = text.replace(announced["servicebus"].split(";")[0].rpartition(":")[2], str(port))
                with ServiceBusAdministrationClient.from_connection_string(
                    elsewhere, connection_verify=announced["certificate"], retry_total=0
                ) as client:
                    assert expected == listed(client)
        finally:
            process.terminate()


def listed(client: ServiceBusAdministrationClient) -> list[str] | int | None:
    try:
        return [queue.name for queue in client.list_queues()]
    except HttpResponseError as error:
        return error.status_code


def test_a_client_that_connects_while_an_emulator_stops_leaves_no_task(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    # How many times the emulator's event loop runs its callbacks before the emulator stops. At 0, the emulator has not accepted
    # the client yet. At 1 or 5, it waits for the TLS handshake.
    for turns in (0, 0, 0, 1, 5):
        with cosmos_in_thread(tls=folder) as cosmos:
            address = urlsplit(cosmos.connection_string.split("=")[1].removesuffix(";AccountKey"))
            client = socket.create_connection((address.hostname, address.port))
            for _ in range(turns):
                cosmos.requests()
        client.close()
    del cosmos
    gc.collect()
    assert "Task was destroyed" not in caplog.text
