"""
Tests of the health port with hostile clients: they must neither slow down the worker nor read partition keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from cosmos_outbox_worker import http_server
from cosmos_outbox_worker.http_server import serving_health
from cosmos_outbox_worker.worker_health import Snapshot
from tests.support.fleets import HEALTHY, TROUBLED
from tests.support.patience import HUNG_SECONDS

pytestmark = pytest.mark.looptime(False)


@asynccontextmanager
async def served(snapshot: Snapshot = HEALTHY) -> AsyncIterator[str]:
    async with serving_health(lambda: snapshot, metrics=lambda: (b"", "text/plain"), address="0") as url:
        yield url


async def test_probes_read_readiness_and_liveness_of_a_worker():
    for snapshot, status in ((HEALTHY, 200), (TROUBLED, 503)):
        async with (
            served(snapshot) as url,
            aiohttp.ClientSession(url) as client,
            client.get("/readyz") as ready,
            client.get("/livez") as alive,
        ):
            assert (status, 200) == (ready.status, alive.status)
            assert list(snapshot.unready) == (await ready.json())["reasons"]


async def half_open(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send only half of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    return reader, writer


async def test_a_connection_that_sends_only_half_a_request_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "_CONNECTION_SECONDS", 0.1)
    async with served() as url:
        reader, writer = await half_open(url)
        async with asyncio.timeout(HUNG_SECONDS):
            assert b"" == await reader.read()
        writer.close()


async def test_the_health_port_closes_the_oldest_of_too_many_connections():
    """So the health port still answers a probe."""
    async with served() as url, AsyncExitStack() as stack:
        opened = [await half_open(url) for _ in range(3 * http_server._MOST_CONNECTIONS)]
        for _, writer in opened:
            stack.callback(writer.close)
        async with aiohttp.ClientSession(url) as client, client.get("/livez") as answer:
            assert 200 == answer.status
        async with asyncio.timeout(HUNG_SECONDS):
            assert b"" == await opened[0][0].read()
        assert not opened[-1][0].at_eof()


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[::ffff:127.0.0.1]", True),
        ("localhost:8080", True),
        ("worker", True),
        ("Worker.Outbox.SVC:8080", True),
        ("worker.outbox.svc.cluster.local", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("svc.example.", False),
        ("www.evilsvc", False),
        ("www.mylocalhost", False),
        ("www.mycluster.local", False),
    ],
)
async def test_a_request_under_a_public_host_name_is_refused(host: str, shown: bool):
    """
    If the worker answered, a web site could let its own host name point at the worker's address, and read partition
    keys through a visitor's browser (DNS rebinding).
    """
    async with served() as url, aiohttp.ClientSession(url, headers={"Host": host}) as client:
        async with client.get("/") as page, client.get("/readyz") as ready:
            assert (200 if shown else 421, 200) == (page.status, ready.status)
            assert shown == ("lease" in await page.text())
            assert shown == bool(await ready.json())
        for path in ("/livez", "/metrics"):
            async with client.get(path) as answer:
                assert 200 == answer.status


async def test_a_request_without_a_host_header_is_answered(
    monkeypatch: pytest.MonkeyPatch,
):
    """
    To answer such a request is safe, because it comes from no browser: every browser sends a Host header.

    The health port does not ask aiohttp for the host: without the header, aiohttp's answer depends on its
    version and may need DNS.
    """
    monkeypatch.setattr(web.Request, "host", "worker.evil.example")
    async with served() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(HUNG_SECONDS):
            answer = await reader.read()
        writer.close()
    assert (True, True) == (answer.startswith(b"HTTP/1.0 200"), b"lease" in answer)
