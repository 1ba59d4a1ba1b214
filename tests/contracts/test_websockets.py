"""Tests of connections to Service Bus by AMQP over WebSockets: certificates, proxies and ports."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import certifi
import pytest

from cosmos_outbox.adapters.servicebus import (
    ServiceBusPublisher,
    open_service_bus_client,
)
from cosmos_outbox.errors import (
    BrokerUnavailable,
    ConfigurationError,
)
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox_emulators import certificate
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_worker.connection import Connection, https_proxy
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from tests.support.servicebus_sdk import leaky_sockets, unlogged

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated"),  # Azure's SDK causes this without TLS
]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[ServiceBusServer]:
    topic = {"name": "t", "subscriptions": [{"name": "s", "requires_session": True}]}
    async with ServiceBusServer(Broker.from_config({"topics": [topic]})) as server:
        yield server


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """
    Return the TLS context of a server with a new certificate. Let the test's clients trust only this certificate's authority.
    """
    context = certificate.server_context(tmp_path)
    monkeypatch.setattr(certifi, "where", lambda: str(tmp_path / certificate.AUTHORITY))
    return context


async def refusal_or_none(address: str) -> str | None:
    """
    Send a message to this connection string over WebSockets, with the settings of a consumer. Return the text of the error if the
    connection fails, or None.
    """
    settings = ConsumerSettings(
        cosmos_database="d",
        cosmos_container="c",
        topic="t",
        subscription="s",
        servicebus_connection_string=address,
        servicebus_transport="websockets",
    )
    unused: dict[str, Any] = dict.fromkeys(field.name for field in fields(Connection))
    message = OutboundMessage(message_id="m", session_id="a", subject="S", body=b"", properties={})
    async with (
        Connection(**unused | {"settings": settings}).service_bus() as client,
        ServiceBusPublisher(client, "t", lanes=1) as publisher,
    ):
        try:
            await publisher.publish(0, [message])
        except BrokerUnavailable as refused:
            return str(refused)
    return None


async def test_a_certificate_of_an_unknown_authority_is_refused(
    server: ServiceBusServer, tmp_path: Path
) -> None:
    async with ServiceBusServer(server.broker, tls=certificate.server_context(tmp_path)) as secure:
        with leaky_sockets(), unlogged():
            assert "certificate verify failed" in str(await refusal_or_none(secure.connection_string))


class Proxy:
    """An HTTP proxy that requires a password and connects every tunnel to the given port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[str] = []
        self.wanted = "Basic " + base64.b64encode(b"ada:p@ss").decode()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.split("\r\n")[0])
        if f"Proxy-Authorization: {self.wanted}" in head:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back, there = await asyncio.open_connection("127.0.0.1", self.port)
            await asyncio.gather(pump(reader, there), pump(back, writer))
        else:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while more := await reader.read(1 << 16):
            writer.write(more)
    except ConnectionError:
        pass
    writer.close()


async def test_connections_use_the_proxy_of_the_environment_unless_no_proxy_names_the_host(
    server: ServiceBusServer, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServiceBusServer(server.broker, tls=tls) as secure:
        proxy = Proxy(secure.port)
        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            monkeypatch.setenv("HTTPS_PROXY", f"http://ada:p%40ss@127.0.0.1:{port}")
            assert None is await refusal_or_none(secure.connection_string)
            assert {f"CONNECT 127.0.0.1:{secure.port} HTTP/1.1"} == set(proxy.asked)
            proxy.asked.clear()
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            assert None is await refusal_or_none(secure.connection_string)
            assert [] == proxy.asked


@pytest.mark.parametrize(
    "named", ["http://ada:secret@proxy:port", "http://", "http://proxy:0", "socks5://proxy"]
)
def test_the_error_of_an_invalid_proxy_url_hides_its_password(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", named)
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY: must be a URL") as refused:
        https_proxy("ns.servicebus.windows.net")
    assert "secret" not in str(refused.value)


def test_websockets_use_port_443_unless_the_endpoint_names_another() -> None:
    given = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=v"
    config = open_service_bus_client(connection_string=given, websockets=True)._config
    assert (443, None) == (config.connection_port, config.custom_endpoint_address)
