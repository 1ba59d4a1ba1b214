"""Tests of the emulated Cosmos DB server with clients that send incomplete or unusual HTTP."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from tests.emulators.cosmos.driver import sign
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)


async def is_alive(server):
    async with (
        aiohttp.ClientSession() as session,
        session.get(server.url, headers=sign(server.key, "GET", "/")) as reply,
    ):
        return reply.status == 200


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


@pytest.mark.parametrize("partitions", [0, -1, 1001])
def test_an_account_refuses_an_impossible_number_of_partitions(partitions):
    with pytest.raises(ValueError, match="partitions"):
        Account(partitions=partitions)
