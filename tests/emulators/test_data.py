"""
Tests of the emulators' option `--data`: everything that they confirmed to a client survives a kill of their process.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sqlite3
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox_emulators.__main__ import main
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.cosmos.transaction import Operation, OperationKind, Transaction
from cosmos_outbox_emulators.data import FILE, open_data_folder
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.queue import Outcome
from cosmos_outbox_emulators.servicebus.rules import body_of, parse_rule
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.emulators.servicebus.engine import Recorder, broker, message, scheduled
from tests.emulators.servicebus.test_sas import token as sas_token
from tests.support.servicebus_sdk import leaky_sockets

pytestmark = pytest.mark.looptime(False)

ENTITIES = {
    "topics": [
        {
            "name": "events",
            "dedup_window_s": 600,
            "subscriptions": [
                {"name": "all", "requires_session": True},
                {"name": "plain", "max_delivery_count": 1},
            ],
        }
    ],
    "queues": [{"name": "q"}],
}


@asynccontextmanager
async def emulators(folder: Path, *, killed: bool):
    """
    Run the emulators on a data folder, and yield clients of both services. Afterwards, end the process with SIGKILL, or with SIGINT
    if `killed` is false.
    """
    config = folder.parent / "config.json"
    config.write_text(json.dumps(ENTITIES))
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "cosmos_outbox_emulators",
            "--json",
            "--data",
            str(folder),
            "--config",
            str(config),
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        announced = json.loads(await process.stdout.readline())
        with leaky_sockets():
            async with (
                CosmosClient.from_connection_string(announced["cosmos"]) as cosmos,
                ServiceBusClient.from_connection_string(announced["servicebus"]) as servicebus,
            ):
                yield cosmos, servicebus
        process.send_signal(signal.SIGKILL if killed else signal.SIGINT)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_killed_process_keeps_everything_that_it_confirmed_to_a_client(tmp_path: Path):
    async with emulators(tmp_path / "data", killed=True) as (client, servicebus):
        database = await client.create_database("d")
        container = await database.create_container(
            "c", PartitionKey("/pk"), default_ttl=-1, offer_throughput=20_000
        )
        await database.create_container("gone", PartitionKey("/pk"))
        for number in range(6):
            operations = [("create", ({"id": f"{number}-{part}", "pk": f"k{number}"},)) for part in "ba"]
            await container.execute_item_batch(operations, f"k{number}")
        await container.delete_item("0-a", "k0")
        await container.upsert_item({"id": "1-a", "pk": "k1", "new": True})
        await database.delete_container("gone")
        await container.replace_throughput(21_000)
        before = await everything(container)
        items, token = await drained(container, start_time="Beginning")
        async with servicebus.get_queue_sender("q") as sender:
            await sender.send_messages(ServiceBusMessage("hello"))

    async with emulators(tmp_path / "data", killed=False) as (client, servicebus):
        async with servicebus.get_queue_receiver("q") as receiver:
            assert ["hello"] == [str(one) for one in await receiver.receive_messages(1, max_wait_time=60)]
        database = client.get_database_client("d")
        assert ["c"] == [one["id"] async for one in database.list_containers()]
        container = database.get_container_client("c")
        assert before == await everything(container)
        assert items == (await drained(container, start_time="Beginning"))[0]
        created = await container.create_item({"id": "later", "pk": "k0"})
        changes, _ = await drained(container, continuation=token)
        assert ["later"] == [change["id"] for change in changes], "a continuation goes on after a restart"
        assert created["_etag"] not in {item["_etag"] for item in items}


async def test_the_cosmos_db_account_is_saved_before_each_answer():
    saved: list[int] = []
    async with CosmosServer() as server, aiohttp.ClientSession() as session:
        server.before_output = lambda: saved.append(len(server.account.databases))
        async with session.get(server.url) as reply:
            assert ([0], 401) == (saved, reply.status)


async def test_service_bus_entities_are_saved_before_an_answer_over_http():
    saved: list[int] = []
    async with ServiceBusServer(Broker.default()) as server, aiohttp.ClientSession() as session:
        server.broker.before_output = lambda: saved.append(len(server.broker.topics))
        signed = sas_token(
            f"http://127.0.0.1:{server.port}/",
            name="RootManageSharedAccessKey",
            key="SAS_KEY_VALUE",
            expires=4_000_000_000,
        )
        url = f"http://127.0.0.1:{server.port}/events?api-version=2021-05"
        async with session.delete(url, headers={"Authorization": signed}) as reply:
            assert ([0], 200) == (saved, reply.status)


async def drained(container, **options):
    """
    Read a change feed to its end. Return the changes and the continuation, from which a later read goes on.
    """
    headers = []
    feed = container.query_items_change_feed(response_hook=lambda each, _: headers.append(each), **options)
    return [item async for item in feed], headers[-1]["etag"]


async def everything(container):
    properties = await container.read()
    ranges = [one async for one in container.read_feed_ranges(force_refresh=True)]
    throughput = (await container.get_throughput()).offer_throughput
    return properties, ranges, throughput, [item async for item in container.read_all_items()]


def publish(broker, topic, *messages):
    broker.topic(topic).publish([*messages])


def settle(broker, path, *outcomes):
    """
    Receive one message for each of the outcomes, and settle it with this outcome. A message with the outcome None stays locked.
    """
    queue, receiver = broker.queue(path), Recorder(credit=len(outcomes))
    session = queue.sessions.accept(receiver, "s") if queue.sessions else None
    queue.pump(receiver, session)
    for (_, token), outcome in zip(receiver.got, outcomes, strict=True):
        if outcome:
            queue.settle(token, outcome, "no use" if outcome is Outcome.DEAD_LETTER else None)
    return session


def held(queue):
    return [(e.message.message_id, e.sequence, e.delivery_count, e.state) for e in queue.entries.values()]


def test_a_killed_broker_keeps_messages_session_state_and_message_ids(tmp_path: Path):
    """
    The test copies the data folder while the broker runs. The copy has the state that a kill would leave.
    """
    first, clock = broker(ENTITIES)
    with open_data_folder(tmp_path / "data", Account(), first) as save:
        odd = message(
            "odd", session_id="s", application={"a": 1.5, "b": b"\x00", "c": None}, annotations={"x": 1}
        )
        publish(first, "events", message("a", session_id="s"), odd)
        publish(first, "events", scheduled("later", clock() + 60, session_id="s"))
        publish(
            first,
            "q",
            *(message(name) for name in ("done", "deferred", "abandoned", "locked", "dead", "ttl")),
        )
        publish(first, "q", message("short", ttl_ms=5000))
        session = settle(first, "events/Subscriptions/all", Outcome.COMPLETE)
        first.queue("events/Subscriptions/all").sessions.set_state(session, b"half way")
        ends = (Outcome.COMPLETE, Outcome.DEFER, Outcome.ABANDON, None, Outcome.DEAD_LETTER)
        settle(first, "q", *ends)
        first.add_queue({"name": "made at run time", "lock_s": 7})
        publish(first, "made at run time", message("x"))
        bodies = (
            {"sql-filter": {"expression": "1=0"}},
            {"sql-filter": {"expression": "sys.Label = @label", "parameters": {"@label": "x"}}},
            {"correlation-filter": {"label": "y", "properties": {"n": 5}}},
        )
        rules = {f"r{number}": parse_rule(f"r{number}", body) for number, body in enumerate(bodies)}
        first.topic("events").subscriptions["plain"].rules = rules
        save()
        first.queue("q").config = replace(first.queue("q").config, max_delivery_count=3)
        save()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        paths = [path for path, queue in first.queues.items() if queue.entries]
        before = {path: held(first.queue(path)) for path in paths}

    second, clock = broker({"topics": ENTITIES["topics"]})
    with open_data_folder(tmp_path / "copy", Account(), second):
        assert before == {path: held(second.queue(path)) for path in paths}
        assert 7 == second.queue("made at run time").config.lock_s
        assert 3 == second.queue("q").config.max_delivery_count
        subscription = second.queue("events/Subscriptions/all")
        receiver = Recorder()
        session = subscription.sessions.accept(receiver, "s")
        subscription.pump(receiver, session)
        [(entry, _)] = receiver.got
        assert (odd, b"half way") == (entry.message, session.state)
        assert odd.application_properties == entry.application_properties
        publish(second, "events", message("a", session_id="s"), message("new", session_id="s"))
        clock.advance(61)
        assert ["odd", "new", "later"] == receiver.ids, "a is remembered"
        assert [2, 3, 4] == [entry.sequence for entry, _ in receiver.got]
        again = second.topic("events").subscriptions["plain"].rules
        assert [*bodies] == [body_of(rule) for rule in again.values()]
        assert not any("new" in str(one) for one in held(second.queue("events/Subscriptions/plain")))
        assert "short" not in str(held(second.queue("q"))), "it expires at its time"


def test_a_data_folder_in_use_or_of_another_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The command prints one line and ends with exit code 2."""
    with open_data_folder(tmp_path, Account(), Broker.default()):
        assert 2 == main(["--data", str(tmp_path)])
    assert "Do other emulators use it?" in capsys.readouterr().err
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert 2 == main(["--data", str(tmp_path)])
    assert "format 99" in capsys.readouterr().err


def test_expired_items_are_removed_from_the_data_folder(tmp_path: Path):
    clock = AdjustableClock()
    account = Account(clock=clock)
    with open_data_folder(tmp_path, account, Broker.default()) as save:
        account.create_database({"id": "d"})
        container = account.create_container(
            "d", {"id": "c", "partitionKey": {"paths": ["/pk"]}, "defaultTtl": 10}
        )
        save()
        put(container, clock)
    assert 1 == rows(tmp_path)
    clock.advance(11)
    with open_data_folder(tmp_path, Account(clock=clock), Broker.default()):
        pass
    assert 0 == rows(tmp_path)


def test_a_restored_snapshot_is_saved_in_the_data_folder(tmp_path: Path):
    account = Account()
    with open_data_folder(tmp_path, account, Broker.default()) as save:
        account.create_database({"id": "d"})
        container = account.create_container("d", {"id": "c", "partitionKey": {"paths": ["/pk"]}})
        put(container, account.clock)
        container.take_snapshot()
        put(container, account.clock, item_id="2")
        save()
        container.restore_snapshot()
        lsn = container.partitions[0].lsn
        save()
    again = Account()
    with open_data_folder(tmp_path, again, Broker.default()):
        (partition,) = again.container("d", "c").partitions
        assert (["1"], lsn) == ([item.key[1] for item in partition.changes_after(0)], partition.lsn)


def put(container, clock, *, item_id="1"):
    transaction = Transaction(container, container.key_from_header('["a"]'), clock())
    transaction.execute(Operation(kind=OperationKind.CREATE, body={"id": item_id, "pk": "a"}))
    transaction.commit()


def rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder / FILE)) as connection:
        return connection.execute("SELECT count(*) FROM items").fetchone()[0]
