"""
The lean HTTP client: an answer reaches its own request, or none, however it is split, cut off, repeated or garbled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_outbox.adapters.cosmos import http
from cosmos_outbox.adapters.cosmos.http import HttpClient, _Connection
from cosmos_outbox_emulators.certificate import server_context
from tests.support.effort import examples

pytestmark = pytest.mark.looptime(False)

Way = Callable[[asyncio.Transport, bytes], None]


def answer(text: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(text), *headers, b"", text])


class Scripted(asyncio.Protocol):
    """
    A connection of a server that treats each request as the next step of a script says; the last step stays.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.connections.append(transport)

    def data_received(self, data: bytes) -> None:
        server = self._server
        server.requests.append(data)
        step = server.script.pop(0) if len(server.script) > 1 else server.script[0]
        step(self.transport, data)


class Server:
    """
    What a scripted server was sent, and a client of it.
    """

    def __init__(self, *script: Way) -> None:
        self.script, self.client = list(script), HttpClient(unverified=("127.0.0.1",))
        self.requests: list[bytes] = []
        self.connections: list[asyncio.Transport] = []
        self.endpoint = ""

    async def ask(
        self, path: str = "/", *, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        status, _, text = await self.client.send(method, self.endpoint, path, headers, body)
        return status, text


@asynccontextmanager
async def serving(*script: Way, tls: Path | None = None) -> AsyncIterator[Server]:
    server = Server(*script)
    context = server_context(tls) if tls is not None else None
    listening = await asyncio.get_running_loop().create_server(
        lambda: Scripted(server), "127.0.0.1", 0, ssl=context
    )
    port = listening.sockets[0].getsockname()[1]
    server.endpoint = f"{'https' if tls is not None else 'http'}://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await server.client.close()
        listening.close()
        for connection in server.connections:
            connection.abort()
        await listening.wait_closed()


def echo(transport: asyncio.Transport, request: bytes) -> None:
    transport.write(answer(request.split()[1]))


def saying(text: bytes) -> Way:
    return lambda transport, _: transport.write(text)


def closing_after(text: bytes) -> Way:
    def close(transport: asyncio.Transport, _: bytes) -> None:
        transport.write(text)
        transport.close()

    return close


async def test_a_request_is_one_write_and_its_answer_comes_with_headers_in_lower_case():
    async with serving(saying(answer(b"{}", b"X-MS-Some: A, b", b"Empty:", b"Last: \xc3\xbc"))) as server:
        got = await server.client.send("POST", server.endpoint, "/dbs/%20", {"A-IM": "x"}, b"[]")

    host = server.endpoint.removeprefix("http://")
    sent = f"POST /dbs/%20 HTTP/1.1\r\nHost: {host}\r\nA-IM: x\r\nContent-Length: 2\r\n\r\n[]"
    assert [sent.encode()] == server.requests
    assert (200, {"content-length": "2", "x-ms-some": "A, b", "empty": "", "last": "ü"}, b"{}") == got


async def test_a_connection_serves_one_request_after_another_and_no_two_at_once():
    async with serving(echo) as server:
        for path in ("/a", "/b"):
            assert (200, path.encode()) == await server.ask(path)
        assert 1 == len(server.connections)

        paths = [f"/{number}" for number in range(20)]
        assert [path.encode() for path in paths] == [
            text for _, text in await asyncio.gather(*(server.ask(path) for path in paths))
        ]
        assert 20 == len(server.connections)


async def test_no_more_connections_are_opened_than_are_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 3)
    async with serving(echo) as server:
        await asyncio.gather(*(server.ask(f"/{number}") for number in range(20)))
        assert 3 == len(server.connections)


@pytest.mark.parametrize(
    "first",
    [
        saying(answer(b"/", b"Connection: close")),
        closing_after(answer(b"/")),
        saying(answer(b"/").replace(b"1.1", b"1.0")),
    ],
    ids=["says so", "closes it", "speaks HTTP/1.0"],
)
async def test_a_connection_that_the_server_ends_is_not_used_again(first: Way):
    async with serving(first, echo) as server:
        assert (200, b"/") == await server.ask()
        assert (200, b"/next") == await server.ask("/next", method="POST", body=b"")
    assert (2, 2) == (len(server.requests), len(server.connections))


async def test_an_answer_that_was_not_asked_for_is_not_taken_for_that_of_the_next_request():
    """
    It lies in the socket when the next request is sent: the loop has had no turn to read it.
    """
    async with serving(echo) as server:
        await server.ask("/a")
        server.connections[0].write(answer(b"of another"))

        assert (200, b"/b") == await server.ask("/b", method="POST", body=b"")


async def test_no_request_follows_one_that_was_answered_before_all_of_it_was_sent():
    def refuse(transport: asyncio.Transport, _: bytes) -> None:
        transport.pause_reading()
        transport.write(answer(b"too large"))

    async with serving(refuse, echo) as server:
        assert (200, b"too large") == await server.ask(method="POST", body=bytes(20_000_000))
        assert (200, b"/next") == await server.ask("/next")
        assert 2 == len(server.connections)


async def test_a_connection_that_was_long_unused_is_not_used_again(monkeypatch: pytest.MonkeyPatch):
    async with serving(echo) as server:
        await server.ask("/a")
        monkeypatch.setattr(http, "KEPT_SECONDS", 0.0)
        await server.ask("/b")
    assert 2 == len(server.connections)


@pytest.mark.parametrize(
    ("method", "said", "sent"),
    [("GET", b"", 2), ("POST", b"", 1), ("PUT", b"", 1), ("GET", b"H", 1)],
)
async def test_a_get_is_sent_once_more_if_a_kept_connection_ends_before_its_answer_begins(
    method: str, said: bytes, sent: int
):
    async with serving(echo, closing_after(said), echo) as server:
        await server.ask()
        server.requests.clear()
        if sent == 2:
            assert (200, b"/x") == await server.ask("/x", method=method)
        else:
            with pytest.raises(ConnectionError):
                await server.ask("/x", method=method)
        assert sent == len(server.requests)


async def test_a_get_on_a_new_connection_is_sent_once():
    async with serving(closing_after(b"")) as server:
        with pytest.raises(ConnectionError):
            await server.ask()
        assert 1 == len(server.requests)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 2", answer(b"half")[:-2]], ids=repr)
async def test_what_a_caller_no_longer_waits_for_reaches_no_other_request(said: bytes):
    """
    The answer comes after all, on a connection that is closed by then.
    """
    late: list[asyncio.Transport] = []

    def wait(transport: asyncio.Transport, _: bytes) -> None:
        transport.write(said)
        late.append(transport)

    async with serving(wait, echo) as server:
        asking = asyncio.create_task(server.ask("/late"))
        while not late:  # noqa: ASYNC110 - a fact of the other side
            await asyncio.sleep(0)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0)
        assert not server.client._open
        late[0].write(answer(b"half")[len(said) :])

        assert (200, b"/next") == await server.ask("/next")
        assert 2 == len(server.connections)


async def test_a_header_or_a_path_cannot_begin_another_line():
    async with serving(echo) as server:
        for end in ("\r", "\n", "\r\n", "\0"):
            with pytest.raises(ValueError, match="end of a line"):
                await server.ask(etag=f"a{end}b: c")
            with pytest.raises(ValueError, match="end of a line"):
                await server.ask(f"/a{end}b")
    assert [] == server.requests


async def test_headers_without_an_end_are_given_up():
    def flood(transport: asyncio.Transport, _: bytes) -> None:
        transport.write(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000)

    async with serving(flood) as server:
        with pytest.raises(ConnectionError, match="no end"):
            await server.ask()


async def test_nothing_that_listens_is_a_connection_error():
    async with serving(echo) as server:
        pass
    with pytest.raises(ConnectionError, match="no connection to http://127"):
        await server.ask()


async def test_a_certificate_is_verified_unless_the_host_is_exempt(tmp_path: Path):
    async with serving(echo, tls=tmp_path) as server:
        for path in ("/a", "/b"):
            assert (200, path.encode()) == await server.ask(path)
        assert 1 == len(server.connections)
        strict = HttpClient()
        with pytest.raises(ConnectionError, match="certificate verify failed"):
            await strict.send("GET", server.endpoint, "/", {}, None)
        await strict.close()
    assert 2 == len(server.requests)


class Line(asyncio.Transport):
    """
    A transport that notes whether it was aborted, and sends nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: Any) -> None:
        del data

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name, default
        return self

    def fileno(self) -> int:
        return 0


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    """
    Draw an answer: its status, its body, and its bytes.
    """
    status = draw(st.sampled_from([200, 201, 204, 304, 404, 412, 429, 503]))
    text = b"" if status in (204, 304) else draw(st.binary(max_size=40))
    interim = b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\n" * draw(st.integers(0, 2))
    head = b'HTTP/1.1 %d Some Reason\r\nEtag: "1"\r\n' % status
    if status in (204, 304):
        # The length of what is not sent again
        return status, text, interim + head + draw(st.sampled_from([b"", b"Content-Length: 9\r\n"])) + b"\r\n"
    if draw(st.booleans()):
        return status, text, interim + head + b"Content-Length: %d\r\n\r\n" % len(text) + text
    parts = [part for part in pieces(text, draw(cuts(text))) if part]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    trailer = draw(st.sampled_from([b"", b"X-Early: 1\r\n"]))
    return (
        status,
        text,
        interim + head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n",
    )


def cuts(data: bytes) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(data)), max_size=8).map(sorted)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def asked() -> tuple[_Connection, Line, asyncio.Task[Any]]:
    connection, line = _Connection(set()), Line()
    connection.connection_made(line)
    return connection, line, asyncio.create_task(connection.ask(b"GET"))


async def fed(data: st.DataObject, connection: _Connection, line: Line, *streams: bytes) -> None:
    """
    Give a connection bytes in random pieces until it is given up.
    """
    await asyncio.sleep(0)
    whole = [b"".join(streams)] if data.draw(st.booleans()) else streams
    for stream in whole:
        for piece in pieces(stream, data.draw(cuts(stream))):
            if piece and not line.aborted:
                connection.data_received(piece)


@given(data=st.data())
@settings(max_examples=examples(60, many=2000))
async def test_answers_one_after_another_are_read_whole_however_they_are_split(data: st.DataObject):
    connection, line, asking = asked()
    for number, (status, text, stream) in enumerate(data.draw(st.lists(answers(), min_size=1, max_size=4))):
        asking = asking if not number else asyncio.create_task(connection.ask(b"GET"))
        await fed(data, connection, line, stream)
        got_status, headers, got = await asking
        assert (status, '"1"', None, text) == (got_status, headers["etag"], headers.get("x-early"), got)
        assert connection.may_be_kept()


@given(data=st.data(), first=answers(), more=st.one_of(st.binary(min_size=1, max_size=20), answers()))
@settings(max_examples=examples(60, many=2000))
async def test_what_follows_an_answer_is_never_an_answer_and_ends_the_connection(
    data: st.DataObject, first: tuple[int, bytes, bytes], more: bytes | tuple[int, bytes, bytes]
):
    """
    The request has its own answer where that came alone, and else an error.
    """
    connection, line, asking = asked()
    extra = more if isinstance(more, bytes) else more[2]
    await fed(data, connection, line, first[2], extra)
    with suppress(ConnectionError):
        status, _, text = await asking
        assert first[:2] == (status, text)
    assert line.aborted or not extra.strip(b"\r\n")


@given(data=st.data(), sent=answers())
@settings(max_examples=examples(60, many=2000))
async def test_an_answer_that_is_cut_off_or_garbled_is_none_or_whole(
    data: st.DataObject, sent: tuple[int, bytes, bytes]
):
    connection, line, asking = asked()
    _, _, stream = sent
    cut = data.draw(st.integers(0, len(stream) - 1))
    garbled = data.draw(st.binary(max_size=5))
    await fed(data, connection, line, stream[:cut] + garbled)
    connection.connection_lost(None)
    if garbled:
        with suppress(ConnectionError):
            await asking
    else:
        with pytest.raises(ConnectionError):
            await asking
    assert line.aborted
