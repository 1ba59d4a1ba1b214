"""Serves a broker on a TCP port, which accepts both AMQP and HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.connection import Connection
from cosmos_outbox_emulators.servicebus.framing import Frames
from cosmos_outbox_emulators.servicebus.http import FirstBytes, HttpSide


class ServiceBusServer:
    """
    Serves a broker on one address while the `async with` block lasts, over plain TCP, or over TLS with `tls`. With port 0, it takes
    a free port.

    Args:
        https_port: One more port, at which clients look for HTTP management and WebSockets. Azure uses port 443. By default there
            is no such port.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        https_port: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.broker = broker
        self.host = host
        self.port = port
        self.https_port = https_port
        self._tls = tls
        self.listener: asyncio.Server | None = None
        self._https_listener: asyncio.Server | None = None
        self._http = HttpSide(broker, self._accept_frames)
        self._http_protocol: Callable[[], asyncio.Protocol] | None = None
        self._connections: set[Connection] = set()
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def connection_string(self) -> str:
        return self.connection_string_of("primary")

    def connection_string_of(self, key: str, name: str | None = None) -> str:
        """
        Return the connection string for the "primary" or the "secondary" key of an authorization rule, by default of the first
        rule.
        """
        name = name or next(iter(self.broker.keys))
        key = self.broker.keys[name][key]
        # The field UseDevelopmentEmulator makes an SDK connect without TLS.
        plain = "" if self._tls else "UseDevelopmentEmulator=true;"
        return (
            f"Endpoint=sb://{self.host}:{self.port};SharedAccessKeyName={name};SharedAccessKey={key};{plain}"
        )

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._http_protocol = await self._http.start()
        accept = self._accept if self._tls is None else lambda: _AfterHandshake(self._accept)
        self.listener = await loop.create_server(accept, self.host, self.port, backlog=512, ssl=self._tls)
        self.port = self.listener.sockets[0].getsockname()[1]
        if self.https_port is not None:
            try:
                self._https_listener = await loop.create_server(
                    accept, self.host, self.https_port, ssl=self._tls
                )
            except OSError:
                self.listener.close()
                await self._http.stop()
                raise
            self.https_port = self._https_listener.sockets[0].getsockname()[1]
        self.broker.timers.on_earlier = self._set_alarm
        self.broker.on_down = self.drop_connections
        self._set_alarm(self.broker.timers.next_due)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        listeners = [each for each in (self.listener, self._https_listener) if each]
        for listener in listeners:
            listener.close()
        for connection in list(self._connections):
            connection.close(AmqpError(Condition.CONNECTION_FORCED, "The broker is shutting down."))
            connection.abort()
        self.broker.timers.on_earlier = self.broker.on_down = None
        if self._alarm:
            self._alarm.cancel()
        await self._http.stop()
        for listener in listeners:
            await listener.wait_closed()
        # An aborted transport closes its socket in the next turn of the event loop, so this loop ends after one or two turns.
        while self._connections:  # noqa: ASYNC110  # nothing to wait for lasts longer than a turn
            await asyncio.sleep(0)

    def drop_connections(self) -> None:
        """Cut every connection without closing it in AMQP, as a lost network does."""
        for connection in list(self._connections):
            connection.abort()

    def _accept(self) -> asyncio.Protocol:
        if self.broker.is_down:
            self.broker.refused_connections += 1
            return _Refusal()
        frames = self._connect()
        return FirstBytes(frames, self._http_protocol) if self._http_protocol else frames

    def _connect(self) -> Frames:
        connection = Connection(self.broker, self._connections.discard)
        self._connections.add(connection)
        return connection.frames

    def _accept_frames(self) -> Frames | None:
        return None if self.broker.is_down else self._connect()

    def _set_alarm(self, due: float | None) -> None:
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None
        if due is not None:
            delay = max(0.0, due - self.broker.timers.now())
            self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def advance(self, seconds: float) -> None:
        """Move the broker's clock forward, and do everything that is due by then."""
        self.broker.ahead_s += seconds
        self._ring()

    def _ring(self) -> None:
        self.broker.timers.run_due()
        self._set_alarm(self.broker.timers.next_due)


class _AfterHandshake(asyncio.Protocol):
    """
    Accepts a connection once its TLS handshake has succeeded. asyncio does not tell a protocol about a failed handshake, so a
    connection object that was created earlier would never be removed.
    """

    def __init__(self, accept: Callable[[], asyncio.Protocol]) -> None:
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._accept()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # isinstance fails for uvloop's transports
        transport.abort()
