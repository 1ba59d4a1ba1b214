"""The server under clients that do not speak HTTP, or only half of it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.emulators.cosmos.driver import sign
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)


async def exchange(server, raw, *, end=True):
    """
    Send raw bytes on a new connection and return all that comes back until the server closes, or b"" if it just closes.
    """
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(raw)
        await writer.drain()
        if end:
            writer.write_eof()
        async with asyncio.timeout(HUNG_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def is_alive(server):
    async with (
        aiohttp.ClientSession() as session,
        session.get(server.url, headers=sign(server.key, "GET", "/")) as reply,
    ):
        return reply.status == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\xff" * 50,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"AMQP\x00\x01\x00\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET http://[::1/dbs HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /dbs HTTP/1.1\r\nHost: \xff\r\nConnection: close\r\n\r\n",
        b"GET /dbs HTTP/1.1\r\nHost: a\r\nauthorization: \xff\xff\r\nx-ms-date: \xff\r\nConnection: close\r\n\r\n",
        b"GET /dbs HTTP/1.1\r\nHost: a\r\nx-ms-activity-id: \xff\x01\r\nConnection: close\r\n\r\n",
        b"POST /dbs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /dbs HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf",
        b"POST /dbs HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope",
        b"POST /dbs HTTP/1.1\r\nHost: a\r\nContent-Encoding: br\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_good_request_are_answered_or_cut_and_do_no_harm(raw, caplog):
    async with CosmosServer() as server:
        answer = await exchange(server, raw)
        assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:300]
        assert "request.failed" not in caplog.messages
        assert await is_alive(server)


async def test_a_silent_connection_does_not_keep_the_server_from_stopping():
    async with CosmosServer() as server:
        connections = [await asyncio.open_connection(server.host, server.port) for _ in range(3)]
        connections[0][1].write(b"POST /dbs HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
        assert await is_alive(server)
        loop = asyncio.get_running_loop()
        begun = loop.time()
    assert loop.time() - begun < 3
    for _, writer in connections:
        writer.close()


async def test_a_body_over_sixteen_megabytes_is_refused():
    async with CosmosServer() as server, aiohttp.ClientSession() as session:
        headers = sign(server.key, "POST", "/dbs")

        async def endless():
            for _ in range(40):
                yield b"x" * 1_000_000

        async with session.post(server.url + "/dbs", data=endless(), headers=headers) as reply:
            assert 413 == reply.status


async def test_a_client_that_expects_100_continue_gets_it():
    async with CosmosServer() as server:
        lines = [f"{name}: {value}" for name, value in sign(server.key, "POST", "/dbs").items()]
        head = "\r\n".join(
            [
                "POST /dbs HTTP/1.1",
                "Host: a",
                "Content-Length: 10",
                "Expect: 100-continue",
                "Connection: close",
                *lines,
            ]
        )
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(head.encode() + b"\r\n\r\n")
        async with asyncio.timeout(HUNG_SECONDS):
            assert b"HTTP/1.1 100 Continue\r\n" == await reader.readline()
            writer.write(b'{"id":"d"}')
            assert b" 201 " in await reader.read()
        writer.close()


async def test_the_account_advertises_the_address_that_the_client_used():
    async with CosmosServer() as server, aiohttp.ClientSession() as session:
        headers = {**sign(server.key, "GET", "/"), "Host": "cosmos.example:8081"}
        async with session.get(server.url, headers=headers) as reply:
            location = (await reply.json())["writableLocations"][0]
    assert "http://cosmos.example:8081/" == location["databaseAccountEndpoint"]


async def test_an_account_may_have_a_key_of_its_own():
    async with CosmosServer(Account(key="c2VjcmV0")) as server:
        assert await is_alive(server)
        assert "AccountKey=c2VjcmV0;" in server.connection_string


async def test_a_taken_port_is_an_os_error():
    async with CosmosServer() as server:
        with pytest.raises(OSError, match="in use"):
            await CosmosServer(port=server.port).__aenter__()


@pytest.mark.parametrize("partitions", [0, -1, 1001])
def test_an_account_has_a_sensible_number_of_partitions(partitions):
    with pytest.raises(ValueError, match="partitions"):
        Account(partitions=partitions)
