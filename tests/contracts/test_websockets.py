"""
AMQP over WebSockets through real sockets: what only this way to Service Bus has.

The emulator's port speaks TCP, too; the gateway in front of it speaks WebSockets only, and cuts the bytes anywhere.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import certifi
import pytest
from aiohttp import WSMsgType, web

from cosmos_outbox.adapters.servicebus import (
    ServiceBusPublisher,
    open_service_bus_client,
)
from cosmos_outbox.errors import (
    BrokerUnavailable,
    ConfigurationError,
    PublishError,
    TopicUnavailable,
)
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import Complete
from cosmos_outbox_emulators import certificate
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_testing.contracts.subscription import received
from cosmos_outbox_worker.connection import Connection, https_proxy
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from examples.contacts.received import ReceivedMessage
from examples.contacts.settings import SubscriberSettings
from examples.contacts.subscriber import subscribe
from tests.support.patience import HUNG_SECONDS
from tests.support.servicebus_sdk import leaky_sockets, unlogged

pytestmark = [
    pytest.mark.looptime(False),
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated"),  # the SDK's, without TLS
]

PATH, SUBPROTOCOL = "/$servicebus/websocket", "AMQPWSB10"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def answering(
    answer: Answer, tls: ssl.SSLContext | None = None, path: str = PATH
) -> AsyncIterator[str]:
    """Serve an answer to WebSockets, and yield the connection string of what seems to be a namespace."""
    application = web.Application()
    application.router.add_get(path, answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        ((_, port, *_),) = runner.addresses
        plain = "" if tls else "UseDevelopmentEmulator=true;"
        key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
        yield f"Endpoint=sb://127.0.0.1:{port};{key};{plain}"
    finally:
        await runner.cleanup()


class Gateway:
    """Passes the bytes of WebSockets on to a broker's TCP port, and its own back in pieces."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pieces, self.said = 0, b""  # by clients, at last
        self.connections = set[asyncio.Transport | None]()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), compress=False)
        await socket.prepare(request)
        self.connections.add(request.transport)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        back = asyncio.create_task(self._cut(reader, socket))
        try:
            async for message in socket:
                assert message.type is WSMsgType.BINARY
                self.said = message.data
                writer.write(message.data)
        finally:
            back.cancel()
            writer.close()
        return socket

    async def _cut(self, reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
        random, waiting = Random(0), b""
        while more := await reader.read(1 << 16):
            waiting += more
            while waiting:
                size = random.choice((1, 3, 7, 9, 100, 4000))
                await socket.send_bytes(waiting[:size])
                waiting = waiting[size:]
                self.pieces += 1


@pytest.fixture
async def server() -> AsyncIterator[ServiceBusServer]:
    topic = {"name": "t", "subscriptions": [{"name": "s", "requires_session": True}]}
    async with ServiceBusServer(Broker.from_config({"topics": [topic]})) as server:
        yield server


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Both ways trust the authority of this certificate only."""
    context = certificate.server_context(tmp_path)
    monkeypatch.setattr(certifi, "where", lambda: str(tmp_path / certificate.AUTHORITY))
    return context


async def relayed(address: str, **settings: Any) -> list[tuple[str, bytes]]:
    """Send messages of two sessions and receive them, each way as the settings of a consumer have it."""
    values = {"cosmos_database": "d", "cosmos_container": "c", "topic": "t", "subscription": "s"}
    asked = ConsumerSettings(
        **{
            **values,
            "servicebus_connection_string": address,
            "servicebus_transport": "websockets",
            **settings,
        }
    )
    unused = cast("Any", None)
    connection = Connection(
        settings=asked,
        client=unused,
        data=unused,
        lease_container=unused,
        parked=None,
        feed=unused,
        leases=unused,
        credential=None,
    )
    got = []
    async with connection.service_bus() as bus, ServiceBusPublisher(bus, "t", lanes=1) as publisher:
        await publisher.publish(0, [message(f"{at}/{number}") for at in "ab" for number in range(4)])
        async with connection.subscription(asked) as subscription:
            for _ in range(2):
                session = await subscription.accept(10)
                assert session is not None
                for _ in range(4):
                    one = await received(session)
                    await session.settle(one, Complete())
                    got.append((one.message_id, one.body))
                await session.close()
    return got


def message(name: str) -> OutboundMessage:
    session, _, number = name.partition("/")
    body = name.encode() * (1 + 3000 * int(number))
    return OutboundMessage(message_id=name, session_id=session, subject="S", body=body, properties={})


EXPECTED = [
    (f"{at}/{number}", f"{at}/{number}".encode() * (1 + 3000 * number)) for at in "ab" for number in range(4)
]


async def test_the_setting_takes_senders_and_receivers_over_websockets_wherever_the_bytes_are_cut(
    server: ServiceBusServer,
) -> None:
    gateway = Gateway(server.port)
    async with answering(gateway.answer) as address:
        assert sorted(await relayed(address)) == EXPECTED
    assert len(EXPECTED) < gateway.pieces


async def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        raise AssertionError

    async with answering(never, certificate.server_context(tmp_path)) as address:
        with leaky_sockets(), unlogged():
            assert "certificate verify failed" in await refusal_of_sending(address)


@pytest.mark.parametrize("status", [403, 404, 200])
async def test_what_is_no_websocket_is_named_with_its_answer(status: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    async with answering(answer) as address:
        with leaky_sockets(), unlogged():
            assert str(status) in await refusal_of_sending(address)


async def refusal_of_sending(address: str, kind: type[PublishError] = BrokerUnavailable) -> str:
    async with (
        open_service_bus_client(connection_string=address, websockets=True) as client,
        ServiceBusPublisher(client, "t", lanes=1) as publisher,
    ):
        with pytest.raises(kind) as refused:
            await publisher.publish(0, [message("a/0")])
    return str(refused.value)


async def test_a_key_that_is_refused_is_no_outage(server: ServiceBusServer) -> None:
    wrong = server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    with leaky_sockets(), unlogged():
        assert "correct the key" in await refusal_of_sending(wrong, TopicUnavailable)


class Proxy:
    """An HTTP proxy that wants a password, and tunnels whatever is asked for to one port."""

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


async def test_the_proxy_of_the_environment_is_asked_unless_it_is_to_be_passed_by(
    server: ServiceBusServer, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServiceBusServer(server.broker, tls=tls) as secure:
        proxy = Proxy(secure.port)
        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            monkeypatch.setenv("HTTPS_PROXY", f"http://ada:p%40ss@127.0.0.1:{port}")
            assert sorted(await relayed(secure.connection_string)) == EXPECTED
            assert {f"CONNECT 127.0.0.1:{secure.port} HTTP/1.1"} == set(proxy.asked)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            assert https_proxy(f"127.0.0.1:{secure.port}") is None


async def test_the_subscriber_of_the_example_has_the_same_setting_and_proxy(
    server: ServiceBusServer, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = asyncio.Queue[ReceivedMessage]()
    async with (
        open_service_bus_client(connection_string=server.connection_string) as client,
        ServiceBusPublisher(client, "t", lanes=1) as publisher,
    ):
        await publisher.publish(0, [message("a/0")])
    async with ServiceBusServer(server.broker, tls=tls) as secure:
        proxy = Proxy(secure.port)
        async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            monkeypatch.setenv("HTTPS_PROXY", f"http://ada:p%40ss@127.0.0.1:{port}")
            monkeypatch.setenv("OUTBOX_SERVICEBUS_TRANSPORT", "websockets")
            settings = SubscriberSettings(
                servicebus_connection_string=secure.connection_string,
                topic="t",
                subscription="s",
                receivers=1,
            )
            subscribing = asyncio.create_task(subscribe(settings, got.put_nowait))
            assert "a/0" == (await asyncio.wait_for(got.get(), HUNG_SECONDS)).message_id
            subscribing.cancel()
            await asyncio.gather(subscribing, return_exceptions=True)
    assert {f"CONNECT 127.0.0.1:{secure.port} HTTP/1.1"} == set(proxy.asked)


@pytest.mark.parametrize(
    "named", ["http://ada:secret@proxy:port", "http://", "http://proxy:0", "socks5://proxy"]
)
def test_a_proxy_that_is_no_url_is_named_without_its_password(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", named)
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY: must be a URL") as refused:
        https_proxy("ns.servicebus.windows.net")
    assert "secret" not in str(refused.value)


def test_it_is_port_443_unless_the_endpoint_has_another() -> None:
    given = "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=v"
    config = open_service_bus_client(connection_string=given, websockets=True)._config
    assert (443, None) == (config.connection_port, config.custom_endpoint_address)
