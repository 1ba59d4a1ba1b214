"""
Tests of the `init` service of the compose stack: it waits for both emulators, and then creates database and containers.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from azure.cosmos.aio import CosmosClient

pytestmark = pytest.mark.looptime(False)

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "infra/compose/init.py"
# By container: the path of its partition key, and its default time to live.
EXPECTED = {
    "data": ("/partitionKey", -1),
    "leases": ("/id", -1),
    "held": ("/partitionKey", None),
    "effects": ("/partitionKey", -1),
    "messages": ("/partitionKey", None),
}


@pytest.fixture
async def late_service() -> AsyncIterator[tuple[str, list[int]]]:
    """
    Run a service that is not ready for its first two requests; yield its URL and the list of its answers.
    """
    answers: list[int] = []

    async def ready(_: web.Request) -> web.Response:
        answers.append(503 if len(answers) < 2 else 200)
        return web.Response(text=f"answer {len(answers)}", status=answers[-1])

    application = web.Application()
    application.add_routes([web.get("/ready", ready)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/ready", answers
    await runner.cleanup()


@pytest.fixture
async def cosmos() -> AsyncIterator[str]:
    command = (sys.executable, "-m", "cosmos_outbox_emulators", "--json")
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    yield json.loads(await process.stdout.readline())["cosmos"]
    process.terminate()
    await process.wait()


async def initialise(urls: str, connection_string: str, *, seconds: str) -> tuple[int, str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    } | {
        "PYTHONPATH": str(ROOT),
        "WAIT_FOR": urls,
        "WAIT_SECONDS": seconds,
        "OUTBOX_COSMOS_CONNECTION_STRING": connection_string,
        "OUTBOX_COSMOS_DATABASE": "contacts",
        "OUTBOX_COSMOS_CONTAINER": "data",
        "OUTBOX_LEASE_CONTAINER": "leases",
        "OUTBOX_PARKED_CONTAINER": "held",
        "CONSUMER_CONTAINER": "effects",
        "CONSUMER_PARKED_CONTAINER": "messages",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), env=environment, stderr=subprocess.PIPE
    )
    _, errors = await process.communicate()
    return process.returncode or 0, errors.decode()


async def test_the_init_service_creates_containers_when_both_emulators_are_ready(
    late_service: tuple[str, list[int]], cosmos: str
):
    url, answers = late_service
    assert (0, "") == await initialise(url, cosmos, seconds="30")
    assert [503, 503, 200] == answers
    async with CosmosClient.from_connection_string(cosmos) as client:
        database = client.get_database_client("contacts")
        made = [await database.get_container_client(name).read() for name in EXPECTED]
    assert EXPECTED == {one["id"]: (*one["partitionKey"]["paths"], one.get("defaultTtl")) for one in made}


async def test_the_init_service_fails_and_names_a_service_that_is_not_ready_in_time():
    code, errors = await initialise("http://127.0.0.1:1/ready", "unused", seconds="0")
    assert 1 == code
    assert "http://127.0.0.1:1/ready is not ready after 0 s" in errors


async def test_the_probe_s_exit_code_tells_whether_a_service_is_ready(late_service: tuple[str, list[int]]):
    """The exit code of probe.py is 0 if the service is ready. The probe also prints the answer."""
    url, _ = late_service
    probed = []
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "worker/probe.py"), url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        shown, _ = await process.communicate()
        probed.append((process.returncode, shown.decode().splitlines()[-1]))
    assert [(1, "answer 1"), (1, "answer 2"), (0, "answer 3")] == probed
