"""The HTTP server of the Cosmos DB emulator: reads requests, lets faults strike, adds latency and writes replies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from types import TracebackType
from typing import Self

from aiohttp import ClientError, web

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request, too_large
from cosmos_outbox_emulators.cosmos.faults import FaultRule, Faults, When
from cosmos_outbox_emulators.cosmos.gateway import Gateway
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, Route
from cosmos_outbox_emulators.http_log import log

# An Answer returns the true reply to a request. An Around stands between server and Answer, and may change the request or the
# reply.
Answer = Callable[[Request, Route], Reply]
Around = Callable[[Answer, Request, Route], Reply]

_MOST_BYTES_READ = 16 * 1024 * 1024
# The server closes a connection that was idle for this time. It is long, so that hardly any client is about to use the connection.
_IDLE_SECONDS = 3600.0
_LONGEST_STOP_SECONDS = 1.0


class CosmosServer:
    """
    Serves an account while the `async with` block lasts, over http, or over https with `tls`. With port 0, it takes a free port.
    """

    def __init__(
        self,
        account: Account | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        latency_s: float = 0.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.account = account or Account()
        self.gateway = Gateway(self.account)
        self.faults = Faults()
        self.around: Around | None = None
        self.latency_s = latency_s
        self.host = host
        self.port = port
        self._tls = tls
        self.before_output: Callable[[], None] | None = None
        self.listener: asyncio.Server | None = None
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    @property
    def key(self) -> str:
        return self.account.key

    @property
    def connection_string(self) -> str:
        return self.connection_string_of("primary")

    def connection_string_of(self, key: str) -> str:
        return f"AccountEndpoint={self.url}/;AccountKey={self.account.keys[key]};"

    async def __aenter__(self) -> Self:
        server = web.Server(self._handle, access_log=None, logger=log, keepalive_timeout=_IDLE_SECONDS)
        runner = web.ServerRunner(server, shutdown_timeout=_LONGEST_STOP_SECONDS)
        await runner.setup()
        try:
            loop = asyncio.get_running_loop()
            self.listener = await loop.create_server(server, self.host, self.port, backlog=512, ssl=self._tls)
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = self.listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None and self.listener is not None:
            self.listener.close()
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        reply = await self._reply(request)
        if self.before_output:
            self.before_output()
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        if reply is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        # Clients take the service's time from the Date header, so the header must agree with `_ts`, even if a test moved the clock.
        dated = {**reply.headers, "Date": formatdate(self.account.clock(), usegmt=True)}
        return web.Response(status=reply.status, body=reply.body, headers=dated)

    async def _reply(self, request: web.BaseRequest) -> Reply | None:
        body = await _read(request) if request.can_read_body else b""
        asked = Request(
            method=request.method,
            target=_origin_form(request.raw_path),
            headers=request.headers,
            body=body if isinstance(body, bytes) else b"",
            origin=f"{request.scheme}://{request.host}",
        )
        if isinstance(body, CosmosError):
            return self.gateway.refuse(asked, body)
        try:
            route = self.gateway.admit(asked)
        except CosmosError as error:
            return self.gateway.refuse(asked, error)
        fault = self.faults.strike(
            route.kind, route.container, partition=lambda: self.gateway.partition_of(asked, route)
        )
        return self.answer(asked, route) if fault is None else await self._fail(asked, route, fault)

    def answer(self, asked: Request, route: Route, fault: FaultRule | None = None) -> Reply:
        """Answer a request that was admitted. A deviation that is in force may change the answer."""
        if self.around is None:
            return self.gateway.answer(asked, route, fault)
        try:
            return self.around(partial(self.gateway.answer, fault=fault), asked, route)
        except CosmosError as error:
            return self.gateway.refuse(asked, error)

    async def _fail(self, asked: Request, route: Route, fault: FaultRule) -> Reply | None:
        """Let a fault strike one request, and return the reply. None means that the server cuts the connection instead."""
        reply = self.answer(asked, route) if fault.when is When.AFTER else None
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.drop:
            return None
        if fault.status is not None and fault.op_index is None:
            refusal = CosmosError(
                fault.status,
                "Injected fault.",
                substatus=fault.substatus,
                retry_after_ms=fault.retry_after_ms,
            )
            return self.gateway.refuse(asked, refusal)
        return reply or self.answer(asked, route, fault)


def _origin_form(target: str) -> str:
    """Return the path of a request target. Clients behind a proxy send `http://host/path` instead of `/path`."""
    return "/" + target.split("/", 3)[-1] if target.startswith(("http://", "https://")) else target


async def _read(request: web.BaseRequest) -> bytes | CosmosError:
    """Read the body of a request. If the body is wrong, return the error with which the gateway refuses the request later."""
    if request.headers.get("expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > _MOST_BYTES_READ:
                return too_large()
            chunks.append(chunk)
    except (ClientError, web.RequestPayloadError, ConnectionError):
        return bad_request("The request body could not be read.")
    return b"".join(chunks)
