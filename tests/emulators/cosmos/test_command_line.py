"""Tests of the command `python -m cosmos_outbox_emulators` and of its control API."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from typing import Any

import aiohttp
import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.cosmos.exceptions import CosmosResourceExistsError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError

from cosmos_outbox_emulators.__main__ import main
from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker

pytestmark = pytest.mark.looptime(False)


async def start(*arguments):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cosmos_outbox_emulators",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(*arguments):
    """
    Run a command in a thread of this process. Return its exit code, stdout and stderr.

    Starting a process for each command would take most of the time of these tests.
    """
    out, err = io.StringIO(), io.StringIO()

    def command():
        with redirect_stdout(out), redirect_stderr(err):
            try:
                return main(arguments)
            except SystemExit as ended:  # argparse exits after a wrong argument
                return ended.code

    status = await asyncio.to_thread(command)
    return status, out.getvalue().strip(), err.getvalue().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_emulators_with_exit_code_0(number):
    process = await start("--json", "--partitions", "2")
    announced = json.loads(await process.stdout.readline())
    assert {"cosmos", "servicebus", "control"} == announced.keys()
    async with CosmosClient.from_connection_string(announced["cosmos"]) as client:
        database = await client.create_database("d")
        container = await database.create_container("c", PartitionKey("/pk"))
        assert 2 == len([r async for r in container.read_feed_ranges()])
        if number is signal.SIGTERM:
            await commands_steer(announced["control"], container)
    process.send_signal(number)
    _, err = await process.communicate()
    assert (0, b"") == (process.returncode, err)


async def commands_steer(control, container):
    where = ("--database", "d", "--container", "c", "--control", control)
    assert (0, '{"children": ["2", "3"]}', "") == await run("split", "--range", "0", *where)
    assert 3 == len([r async for r in container.read_feed_ranges(force_refresh=True)])
    status, _, error = await run("split", "--range", "0", *where)
    assert (2, True) == (status, "ranges are 2, 3, 1" in error)
    assert (0, '{"child": "4"}', "") == await run("merge", "--range", "2", "3", *where)
    rule = '{"operation": "create", "status": 449, "count": 1}'
    assert (0, "ok", "") == await run("fault", rule, "--control", control)
    with pytest.raises(Exception, match="Injected fault"):
        await container.create_item({"id": "a", "pk": "k"})
    assert (0, "ok", "") == await run("fault", "--clear", "--emulator", "servicebus", "--control", control)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--bogus"], "--bogus"),
        (["serve", "--cosmos-port", "99999"], "99999"),
        (["--partitions", "0"], "partitions"),
        (["--cosmos-latency-ms", "-1"], "latency"),
        (["--config", "/does/not/exist"], "/does/not/exist"),
        (["--deviate", "sometimes"], "half-batches"),
        (["explode"], "explode"),
        (["split"], "--range"),
        (["split", "--range", "0", "--control", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["fault", "--control", "http://127.0.0.1:1"], "JSON"),
        (["fault", "{}", "--control", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["fault", "{}", "--control", "file:///etc/passwd"], "http://"),
    ],
)
async def test_a_wrong_argument_gives_one_line_and_exit_code_2(arguments, named):
    status, out, error = await run(*arguments)
    assert (2, "", 1) == (status, out, len(error.splitlines()))
    assert named in error


async def test_the_command_split_finds_the_container_if_clients_read_only_one_change_feed(monkeypatch):
    async with controlled() as (cosmos, url, _):
        monkeypatch.setenv("EMULATORS_CONTROL", url)
        cosmos.account.create_container("d", {"id": "leases", "partitionKey": {"paths": ["/id"]}})
        status, _, error = await run("split", "--range", "0")
        assert (2, True) == (status, error.endswith("clients read: none)"))
        async with CosmosClient.from_connection_string(cosmos.connection_string) as client:
            containers = [
                client.get_database_client("d").get_container_client(name) for name in ("c", "leases")
            ]
            assert [] == [change async for change in containers[0].query_items_change_feed()]
            assert (0, '{"children": ["1", "2"]}', "") == await run("split", "--range", "0")
            assert [] == [change async for change in containers[1].query_items_change_feed()]
            status, _, error = await run("split", "--range", "1")
            assert (2, True) == (status, error.endswith("clients read: dbs/d/colls/c, dbs/d/colls/leases)"))


async def test_two_pairs_of_emulators_have_different_control_addresses():
    processes = [await start("--json"), await start("--json")]
    controls = [json.loads(await process.stdout.readline())["control"] for process in processes]
    assert len(set(controls)) == 2
    for process in processes:
        process.terminate()
        assert 0 == await process.wait()


async def test_a_space_separates_the_name_of_a_key_from_its_connection_string(tmp_path):
    """
    The emulators print a connection string for each key, with a space before it even if the name of the key is long.
    """
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"sas_keys": {"Root": "one", "a": "two", "nomanage": "three", "no manage at all": "four"}})
    )
    process = await start("--config", str(config))
    lines = [(await process.stdout.readline()).decode() for _ in range(6)]
    process.terminate()
    await process.communicate()
    strings = [
        line.partition(" Endpoint=sb://")[0].split(maxsplit=1) for line in lines if "Endpoint=sb" in line
    ]
    assert [["Service", "Bus"], ["as", "a"], ["as", "nomanage"], ["as", "no manage at all"]] == [
        [word.strip() for word in words] for words in strings
    ]


@pytest.mark.parametrize("name", ["creations-overwrite", "large-messages"])
async def test_the_option_deviate_applies_to_the_service_that_has_the_deviation(name):
    process = await start("--json", "--deviate", name)
    announced = json.loads(await process.stdout.readline())
    overwritten = accepted = True
    async with CosmosClient.from_connection_string(announced["cosmos"]) as client:
        container = await (await client.create_database("d")).create_container("c", PartitionKey("/pk"))
        await container.create_item({"id": "a", "pk": "k"})
        try:
            await container.create_item({"id": "a", "pk": "k"})
        except CosmosResourceExistsError:
            overwritten = False
    bus = ServiceBusClient.from_connection_string(announced["servicebus"])
    async with bus, bus.get_topic_sender("events") as sender:
        try:
            await sender.send_messages(ServiceBusMessage("x" * 300_000, session_id="a"))
        except MessageSizeExceededError:
            accepted = False
    process.terminate()
    await process.communicate()
    assert (name == "creations-overwrite", name == "large-messages") == (overwritten, accepted)


async def test_a_port_in_use_gives_one_line_and_exit_code_2():
    async with CosmosServer() as server:
        process = await start("--cosmos-port", str(server.port))
        out, error = await process.communicate()
    assert (2, b"", 1) == (process.returncode, out, len(error.splitlines()))
    assert str(server.port) in error.decode()


@asynccontextmanager
async def controlled() -> AsyncIterator[tuple[CosmosServer, str, Callable[..., Awaitable[Any]]]]:
    """
    Run both emulators under a control server.

    Yield the Cosmos DB server, the address of the control server, and a function that sends a request to the control server and
    returns status and JSON.
    """
    clock = AdjustableClock()
    broker = Broker.default()
    async with (
        CosmosServer(Account(clock=clock)) as cosmos,
        ControlServer(cosmos, broker, clock=clock, servicebus_latency_s=0.01) as control,
        aiohttp.ClientSession() as session,
    ):
        cosmos.account.create_database({"id": "d"})
        cosmos.account.create_container("d", {"id": "c", "partitionKey": {"paths": ["/pk"]}})

        async def send(method: str, path: str, **options: Any) -> tuple[int, Any]:
            async with session.request(method, control.url + path, **options) as reply:
                return reply.status, await reply.json(content_type=None) if reply.status != 204 else None

        yield cosmos, control.url, send


async def test_the_control_api_splits_ranges_moves_the_clock_and_sets_faults():
    async with controlled() as (cosmos, _, send):
        assert (200, {"status": "ok"}) == await send("GET", "/health")
        where = {"database": "d", "container": "c", "range": 0}
        assert (200, {"children": ["1", "2"]}) == await send("POST", "/cosmos/split", json=where)
        _, stats = await send("GET", "/cosmos/stats")
        assert ["1", "2"] == [part["id"] for part in stats["containers"]["dbs/d/colls/c"]["ranges"]]
        before = cosmos.account.clock()
        _, clock = await send("POST", "/cosmos/clock", json={"advance_s": 3600})
        assert clock["now"] >= before + 3600
        assert (204, None) == await send("POST", "/cosmos/faults", json={"status": 503})
        assert 1 == len(cosmos.faults)
        assert (204, None) == await send("DELETE", "/cosmos/faults")
        assert 0 == len(cosmos.faults)
        assert "events" in (await send("GET", "/servicebus/stats"))[1]["topics"]


async def test_the_control_api_starts_and_ends_deviations_of_each_service():
    async with controlled() as (cosmos, _, send):
        ids_are_strict = []
        for body in ({"name": "ids-refused"}, {"name": "slow"}):
            assert (204, None) == await send("POST", "/cosmos/deviation", json=body)
            ids_are_strict.append(cosmos.account.strict_ids)
        assert (204, None) == await send("DELETE", "/cosmos/deviation")
        assert ([True, False], 0.0) == (ids_are_strict, cosmos.latency_s)
        assert (204, None) == await send("POST", "/servicebus/deviation", json={"name": "bus-ahead"})
        assert (204, None) == await send("DELETE", "/servicebus/deviation")
        status, problem = await send("POST", "/servicebus/deviation", json={"name": "slow"})
        assert (400, True) == (status, "duplicates-kept" in problem["detail"])


async def test_the_control_api_regenerates_the_keys_of_each_service():
    async with controlled() as (_, _, send):
        for service in ("cosmos", "servicebus"):
            _, before = await send("POST", f"/{service}/keys")
            for key, other in (("primary", "secondary"), ("secondary", "primary")):
                _, now = await send("POST", f"/{service}/keys", json={"regenerate": key})
                assert (now[other], True) == (before[other], now[key] != before[key])
                before = now


async def test_clearing_faults_keeps_the_latency_that_the_command_line_set():
    async with controlled() as (_, _, send):
        assert (204, None) == await send("POST", "/servicebus/faults", json={"action": "reject"})
        assert (204, None) == await send("DELETE", "/servicebus/faults")
        _, stats = await send("GET", "/servicebus/stats")
        assert ["latency"] == [fault["action"] for fault in stats["faults"]]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/cosmos/split", b"", 400),
        ("POST", "/cosmos/split", b"{", 400),
        ("POST", "/cosmos/split", b"\xff", 400),
        ("POST", "/cosmos/split", b"[" * 100_000, 400),
        ("POST", "/cosmos/split", b"[]", 400),
        ("POST", "/cosmos/split", b'{"database": "d", "container": "c"}', 400),
        ("POST", "/cosmos/split", b'{"database": "d", "container": "nope", "range": "0"}', 400),
        ("POST", "/cosmos/split", b'{"database": "d", "container": "c", "range": "7"}', 400),
        (
            "POST",
            "/cosmos/split",
            b'{"database": "d", "container": "c", "range": "0", "completing": -1}',
            400,
        ),
        ("POST", "/cosmos/merge", b'{"database": "d", "container": "c", "ranges": ["0"]}', 400),
        ("POST", "/cosmos/merge", b'{"database": "d", "container": "c", "ranges": ["0", "0"]}', 400),
        ("POST", "/cosmos/clock", b'{"advance_s": "1"}', 400),
        ("POST", "/cosmos/clock", b'{"advance_s": -1}', 400),
        ("POST", "/cosmos/clock", b'{"advance_s": NaN}', 400),
        ("POST", "/cosmos/faults", b'{"status": 1}', 400),
        ("POST", "/cosmos/keys", b'{"regenerate": "third"}', 400),
        ("POST", "/servicebus/faults", b'{"action": "explode"}', 400),
        ("GET", "/nope", b"", 404),
        ("PUT", "/cosmos/faults", b"", 405),
    ],
)
async def test_the_control_api_answers_a_wrong_request_with_a_problem_document(method, path, body, status):
    async with controlled() as (_, url, _), aiohttp.request(method, url + path, data=body) as reply:
        problem = await reply.json(content_type="application/problem+json")
    assert (status, status) == (reply.status, problem["status"])
    assert problem["detail"]
