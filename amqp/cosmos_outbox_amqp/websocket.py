"""
WebSocket: the byte stream of AMQP over port 443, for networks that let nothing else out.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from aiohttp import (
    ClientError,
    ClientHttpProxyError,
    ClientResponseError,
    ClientSession,
    ClientWebSocketResponse,
    WSMsgType,
)

_PATH, _SUBPROTOCOL = "/$servicebus/websocket", "AMQPWSB10"


async def open_websocket(
    protocol: asyncio.Protocol, host: str, port: int, tls: ssl.SSLContext | None, *, proxy: str | None
) -> None:
    """
    Connect a protocol as `create_connection` does over TCP.

    Raises:
        OSError: it cannot be connected.
    """
    url = f"{'wss' if tls else 'ws'}://{host}:{port}{_PATH}"
    session = ClientSession()
    try:
        socket = await session.ws_connect(url, protocols=(_SUBPROTOCOL,), ssl=tls or True, proxy=proxy)
    except BaseException as error:
        await session.close()
        if isinstance(error, ClientResponseError):
            who = "the proxy" if isinstance(error, ClientHttpProxyError) else "it"
            raise ConnectionError(f"{who} answers with HTTP {error.status}: {error.message}") from error
        if isinstance(error, ClientError) and not isinstance(error, OSError):
            raise ConnectionError(str(error)) from error
        raise
    if socket.protocol != _SUBPROTOCOL:
        await _drop(session, socket)
        raise ConnectionError(f"it answers, but does not speak {_SUBPROTOCOL}")
    protocol.connection_made(_Stream(session, socket, protocol))


class _Stream(asyncio.Transport):
    """
    The WebSocket as a transport of asyncio; where a message ends means nothing.
    """

    def __init__(
        self, session: ClientSession, socket: ClientWebSocketResponse, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self._session, self._socket, self._protocol = session, socket, protocol
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: the end
        self._receiving = asyncio.create_task(self._receive())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._out.put_nowait(bytes(data))

    def is_closing(self) -> bool:
        return self._receiving.done() or self._receiving.cancelling() > 0

    def close(self) -> None:
        self._out.put_nowait(None)

    def abort(self) -> None:
        self._receiving.cancel()

    async def _receive(self) -> None:
        sending = asyncio.create_task(self._send())
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY:
                    break
                self._protocol.data_received(message.data)
        finally:
            sending.cancel()
            code = self._socket.close_code
            self._protocol.connection_lost(
                ConnectionError(f"the WebSocket ended with {code}") if code else None
            )
            await _drop(self._session, self._socket)

    async def _send(self) -> None:
        with suppress(ConnectionError):  # the other task gets this error too
            while (data := await self._out.get()) is not None:
                await self._socket.send_bytes(data)
            self.abort()


async def _drop(session: ClientSession, socket: ClientWebSocketResponse) -> None:
    # Without a goodbye, for AMQP has its own. Where the peer is gone, aiohttp does not close the response, and reports that.
    socket._response.close()  # noqa: SLF001 - has no other name
    await session.close()
