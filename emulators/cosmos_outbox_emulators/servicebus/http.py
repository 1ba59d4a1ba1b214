"""
The protocols of the broker's port besides plain AMQP: HTTP management, and AMQP over a WebSocket.

The first bytes of a connection show whether it is AMQP or HTTP. On Azure, both HTTP protocols are at port 443.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import WSMsgType, web

from cosmos_outbox_emulators.http_log import log
from cosmos_outbox_emulators.servicebus import atom
from cosmos_outbox_emulators.servicebus.administration import Administration
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.framing import Frames
from cosmos_outbox_emulators.servicebus.sas import InvalidToken, key_name, verify

WEBSOCKET_PATH = "/$servicebus/websocket"
SUBPROTOCOL = "AMQPWSB10"
_METHODS = (b"GET ", b"PUT ", b"POST", b"DELE", b"HEAD", b"OPTI", b"PATC")
_WRITE_AT_MOST = 1 << 20
_CONTENT_TYPE = "application/atom+xml; type=entry; charset=utf-8"


class FirstBytes(asyncio.Protocol):
    """Treats a new connection as AMQP until its first bytes show that it is HTTP."""

    def __init__(self, frames: Frames, http: Callable[[], asyncio.Protocol]) -> None:
        self._frames = frames
        self._http = http
        self._transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # isinstance fails for uvloop's transports
        self._transport = transport
        self._frames.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._frames.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < 4 or self._transport is None:
            return
        protocol: asyncio.Protocol = self._frames
        if self._buffer[:4] in _METHODS:
            self._frames.connection_lost(None)
            protocol = self._http()
            protocol.connection_made(self._transport)
        self._transport.set_protocol(protocol)
        protocol.data_received(self._buffer)


class HttpSide:
    """
    Answers the HTTP requests to one broker.

    Args:
        accept: Creates the `Frames` of a new AMQP connection. It returns None while the broker is down.
    """

    def __init__(self, broker: Broker, accept: Callable[[], Frames | None]) -> None:
        self._broker = broker
        self._accept = accept
        self._administration = Administration(broker)
        application = web.Application(client_max_size=1 << 20)
        application.router.add_get(WEBSOCKET_PATH, self._websocket)
        application.router.add_route("*", "/{path:.*}", self._manage)
        self._runner = web.AppRunner(application, access_log=None, logger=log, shutdown_timeout=1.0)

    async def start(self) -> Callable[[], asyncio.Protocol]:
        await self._runner.setup()
        assert self._runner.server is not None  # noqa: S101  # setup made it
        return self._runner.server

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _manage(self, request: web.Request) -> web.Response:
        if self._broker.is_down:
            return _xml(503, atom.encode(atom.failure(503, "The service is unavailable.")))
        token, config = request.headers.get("Authorization", ""), self._broker.config
        try:
            verify(
                token,
                f"{request.scheme}://{request.host}{request.path}",
                self._broker.keys,
                self._broker.timers.now() - self._broker.ahead_s,
            )
        except InvalidToken as error:
            return _xml(401, atom.encode(atom.failure(401, str(error))))
        if "Manage" not in config.rights_of(key_name(token)):
            return _xml(401, atom.encode(atom.failure(401, "Manage claim is required for this operation.")))
        status, element = self._administration.answer(
            request.method,
            request.path,
            request.query,
            await request.read(),
            update="If-Match" in request.headers,
            address=f"{request.scheme}://{request.host}",
        )
        if self._broker.before_output:
            self._broker.before_output()
        return _xml(status, b"" if element is None else atom.encode(element))

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        frames = self._accept()
        if frames is None:
            return web.Response(status=503)
        socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), max_msg_size=0, compress=False)
        try:
            await socket.prepare(request)
        except BaseException:  # the request is not a valid WebSocket upgrade
            frames.connection_lost(None)
            raise
        transport = WebSocketTransport(socket, request.transport, frames)
        frames.connection_made(transport)
        sending = asyncio.create_task(transport.send())
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    frames.data_received(message.data)
        finally:
            sending.cancel()
            frames.connection_lost(None)
        return socket


class WebSocketTransport(asyncio.Transport):
    """Makes a WebSocket look like a TCP transport to the AMQP frames on it. Each write becomes one WebSocket message."""

    def __init__(
        self, socket: web.WebSocketResponse, below: asyncio.Transport | None, frames: Frames
    ) -> None:
        super().__init__()
        self._socket = socket
        self._below = below
        self._frames = frames
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._size = 0
        self._closing = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._below.get_extra_info(name, default) if self._below else default

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._waiting.put_nowait(bytes(data))
        self._size += len(data)
        if self._size > _WRITE_AT_MOST and not self._frames.congested:
            self._frames.pause_writing()

    async def send(self) -> None:
        """Send everything that is written, until the connection ends."""
        try:
            while (data := await self._waiting.get()) is not None:
                await self._socket.send_bytes(data)
                self._size -= len(data)
                if self._frames.congested and self._size <= _WRITE_AT_MOST // 2:
                    self._frames.resume_writing()
            await self._socket.close()
        except ConnectionError:
            self.abort()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._waiting.put_nowait(None)

    def abort(self) -> None:
        self._closing = True
        if self._below:
            self._below.abort()


def _xml(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, headers={"Content-Type": _CONTENT_TYPE})
