"""
HttpClient: HTTP/1.1 over connections that are kept open, for a third of what aiohttp's client costs, and for what we need alone.

A connection serves one request at a time, and the next one only after exactly one whole answer. Whatever is cancelled, times out,
breaks off or is no HTTP ends its connection, and what comes unasked ends it too: no answer reaches another request. httptools
reads the answers. Redirects, proxies, compression, HEAD, and answers whose end is the end of the connection are left out.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MOST_CONNECTIONS = 100
LONGEST_HEAD = 64 * 1024
KEPT_SECONDS = 55.0  # unused; gateways and load balancers close after minutes, some without a word
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FIRST_FINAL = 200
_Answer = tuple[int, Mapping[str, str], bytes]


class HttpClient:
    """
    A `Sender`; `close` it.

    Args:
        unverified: hosts whose certificate is not verified.
    """

    def __init__(self, *, unverified: tuple[str, ...] = ()) -> None:
        self._unverified = unverified
        self._idle: dict[str, list[_Connection]] = {}  # by endpoint, the last used at the end
        self._open: set[_Connection] = set()
        self._places = asyncio.Semaphore(MOST_CONNECTIONS)

    async def send(
        self, method: str, endpoint: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> _Answer:
        """
        Send a request, as `Sender.send`.

        A GET is sent once more if a connection that was kept open ends before the first byte of its answer: the service may have
        closed it at that moment. Nothing else is repeated: the service may have executed it.
        """
        request = _bytes_of(method, endpoint, path, headers, body)
        async with self._places:
            connection = self._kept(endpoint)
            if connection is not None:
                try:
                    return await self._asked(connection, endpoint, request)
                except ConnectionError:
                    if method != "GET" or connection.heard:
                        raise
            return await self._asked(await self._connected(endpoint), endpoint, request)

    async def close(self) -> None:
        """
        Close all connections.
        """
        closed = [connection.abort() for connection in self._open]
        if closed:
            await asyncio.wait(closed)

    def _kept(self, endpoint: str) -> _Connection | None:
        idle, oldest = self._idle.get(endpoint), asyncio.get_running_loop().time() - KEPT_SECONDS
        while idle:
            connection = idle.pop()
            if connection.used_at > oldest and connection.is_quiet():
                return connection
            connection.abort()
        return None

    async def _connected(self, endpoint: str) -> _Connection:
        loop, (host, port, _, tls) = asyncio.get_running_loop(), _origin(endpoint)
        context = _tls_context(verified=host not in self._unverified) if tls else None
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._open), host, port, ssl=context
            )
        except OSError as error:
            raise ConnectionError(f"no connection to {endpoint}: {error}") from error
        return connection

    async def _asked(self, connection: _Connection, endpoint: str, request: bytes) -> _Answer:
        try:
            received = await connection.ask(request)
        except BaseException:
            connection.abort()
            raise
        if connection.may_be_kept():
            idle = self._idle.setdefault(endpoint, [])
            idle.append(connection)
            while idle[0].used_at < connection.used_at - KEPT_SECONDS:
                idle.pop(0).abort()
        else:
            connection.abort()
        return received


class _Connection(asyncio.Protocol):
    """
    One connection, which notes itself among the open ones, and the answer that arrives on it.
    """

    def __init__(self, opened: set[_Connection]) -> None:
        self.used_at = 0.0
        self.heard = False  # a byte of the answer
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._closed = self._loop.create_future()
        self._answer: asyncio.Future[_Answer] | None = None
        self._parser = HttpResponseParser(self)
        self._in_head, self._head, self._whole, self._reusable = True, 0, False, False
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    async def ask(self, request: bytes) -> _Answer:
        """
        Send a request and return the answer. A caller that stops waiting for it has to abort the connection.
        """
        self.heard = self._whole = self._reusable = False
        self._in_head, self._head, self._headers, self._body = True, 0, {}, []
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return await self._answer

    def is_quiet(self) -> bool:
        """
        Say whether it is open and nothing waits to be read: neither its end, nor an answer that was not asked for.
        """
        if self._transport.is_closing():
            return False
        if not hasattr(select, "poll"):  # Windows
            return not select.select([self._socket], [], [], 0)[0]
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not waiting.poll(0)

    def may_be_kept(self) -> bool:
        """
        Say whether another request may follow; the answer may have come before all of the request was sent.
        """
        return self._reusable and not self._transport.get_write_buffer_size()

    def abort(self) -> asyncio.Future[None]:
        """
        Close it at once; return what is done when it is closed.
        """
        self._transport.abort()
        return self._closed

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it
        self._socket: int = transport.get_extra_info("socket").fileno()
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.done():  # nothing was asked
            self._transport.abort()
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(f"the answer is no HTTP: {error!r}")
            return
        if self._whole:
            self._answer, self.used_at = None, self._loop.time()
            answer.set_result((self._parser.get_status_code(), self._headers, b"".join(self._body)))
        elif self._in_head:
            self._head += len(data)
            if self._head > LONGEST_HEAD:
                self._fail("the headers of the answer have no end")

    def connection_lost(self, error: Exception | None) -> None:
        self._opened.discard(self)
        self._closed.set_result(None)
        self._fail("the connection ended before its answer did" if error is None else str(error))

    def _fail(self, why: str) -> None:
        self._transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(why))

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._whole:
            raise ConnectionError("two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not a trailer, which a proxy may have added
            self._headers.setdefault(name.lower().decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _FIRST_FINAL:  # "go on": the answer follows
            self._in_head, self._headers = True, {}
        else:
            self._whole, self._reusable = True, self._parser.should_keep_alive()


class _Origin(NamedTuple):
    host: str
    port: int
    name: str  # in a Host header
    tls: bool


@lru_cache(maxsize=64)
def _origin(endpoint: str) -> _Origin:
    parts = urlsplit(endpoint)
    default = _DEFAULT_PORTS[parts.scheme]
    host, port = parts.hostname or "", parts.port or default
    name = f"[{host}]" if ":" in host else host
    return _Origin(host, port, name if port == default else f"{name}:{port}", parts.scheme == "https")


def _bytes_of(method: str, endpoint: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {_origin(endpoint).name}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head, ends = "\r\n".join(lines), len(lines) - 1
    if head.count("\n") != ends or head.count("\r") != ends or "\0" in head:
        raise ValueError("A header or the path contains the end of a line")
    return f"{head}\r\n\r\n".encode() + (body or b"")


@lru_cache(maxsize=2)
def _tls_context(*, verified: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verified:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
