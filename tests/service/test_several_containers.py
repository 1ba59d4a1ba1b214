"""
Tests of one worker process with several Cosmos DB containers. It relays each of them, and a container that cannot be relayed does not
stop the others. The status page, the probes and the metrics name the container.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Write, WriteKind
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_worker import load, running_worker, running_workers, several_containers
from cosmos_outbox_worker.several_containers import Workers
from cosmos_outbox_worker.several_containers_health import Snapshots
from tests.support.event_documents import event
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, eventually, fetched, json_of, opened_site
from tests.support.worker_settings import worker_settings

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDK for Service Bus leaves its socket open when a link ends. The garbage collector closes it later, with a warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TOPICS = {
    "topics": [
        {"name": name, "dedup_window_s": 600, "subscriptions": [{"name": "all"}]}
        for name in ("people", "orders")
    ]
}
TOPIC_OF = {"data": "people", "orders": "orders"}


@asynccontextmanager
async def several() -> AsyncIterator[tuple[Site, Broker]]:
    """
    Open emulators with the containers `data` and `orders`. The worker's settings also name the container `lost`, which does not
    exist.
    """
    async with ServiceBusServer(Broker.from_config(TOPICS), port=0) as bus, opened_site() as site:
        await create(site, "orders")
        site.environment.update(
            {
                "OUTBOX_COSMOS_CONTAINER": "data,orders,lost",
                "OUTBOX_SERVICEBUS_CONNECTION_STRING": bus.connection_string,
                "OUTBOX_TOPIC": "people, orders=orders",
                "OUTBOX_PARKED_CONTAINER": "parked",
            }
        )
        yield site, bus.broker


async def create(site: Site, name: str) -> None:
    database = site.client.get_database_client("contacts")
    await database.create_container(name, PartitionKey("/partitionKey"), default_ttl=-1)


async def commit(site: Site, name: str, number: int, *, size: int = 0) -> None:
    container = site.client.get_database_client("contacts").get_container_client(name)
    stored = {field: value for field, value in event(name, number, size=size).items() if field[0] != "_"}
    stored |= {"id": f"{name}.{number}"}
    await CosmosStore(container).commit(
        name, [Write(kind=WriteKind.CREATE, id=stored["id"], document=stored)]
    )


async def published(broker: Broker, topic: str, count: int) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while broker.topics[topic].published < count:  # noqa: ASYNC110 - the broker gives no sign
            await asyncio.sleep(0.02)


async def said(site: Site, *command: str, code: int) -> str:
    """Run a command of the CLI, and check its exit code. Return its standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cosmos_outbox_worker", *command),
        env=site.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert code == process.returncode, output.decode()
    return output.decode()


async def test_each_container_is_relayed_although_another_one_is_missing():
    """The relay also goes on after the worker is killed and another worker is started."""
    async with several() as (site, broker):
        for number in range(3):
            await commit(site, "data", number)
            await commit(site, "orders", number)
        first = await site.start_worker()
        url = await first.health_url()
        await published(broker, "people", 3)
        await published(broker, "orders", 3)
        answer = json_of(await eventually(f"{url}/readyz", only_the_missing_one_is_unready))
        assert answer["containers"]["orders"]["leases"]  # type: ignore[index]
        refused = json.loads(await first.said("worker.refused lost"))
        assert "lost" == refused["container"]
        metrics = await eventually(
            f"{url}/metrics", lambda status, body: 'ready{outbox_container="orders"} 1.0' in body
        )
        assert 'outbox_worker_ready{outbox_container="lost"} 0.0' in metrics
        assert 'messaging_client_sent_messages_total{messaging_destination_name="people"' in metrics
        page = await eventually(f"{url}/", lambda status, body: "It stops lost." in body)
        assert "Subscription &#39;all&#39; of topic &#39;people&#39; has no sessions" in page
        assert '<a href="/?container=orders">orders</a>' in page
        assert "Relays contacts/orders to topic orders" in (await fetched(f"{url}/?container=orders"))[1]

        first.process.kill()
        await first.exit_code()
        for number in range(3, 6):
            await commit(site, "data", number)
            await commit(site, "orders", number, size=300_000 if number == 4 else 0)
        second = await site.start_worker(OUTBOX_INSTANCE_NAME="worker-2")
        url = await second.health_url()
        await published(broker, "people", 6)
        await published(broker, "orders", 4)
        parked = await eventually(f"{url}/?container=orders", lambda status, body: "parked show" in body)
        assert "cosmos-outbox parked show orders --container orders" in parked
        found = (await fetched(f"{url}/?container=orders&key=orders"))[1]
        assert '<input type="hidden" name="container" value="orders">' in found
        assert "Parked since" in found
        assert 'name="key"' not in (await fetched(f"{url}/"))[1]
        await create(site, "lost")
        await eventually(f"{url}/readyz", lambda status, body: status == 200)
        assert await commands_name_their_container(site)
        second.process.terminate()
        assert 0 == await second.exit_code(), second.output
    ids = [one.message.identity for one in broker.queue("people/Subscriptions/all").entries.values()]
    assert [f"data.{number}" for number in range(6)] == list(dict.fromkeys(ids))


def only_the_missing_one_is_unready(status: int, body: str) -> bool:
    reasons: Any = json_of(body)["reasons"]
    return status == 503 and "'lost'" in body and all(one.endswith("It stops lost.") for one in reasons)


async def commands_name_their_container(site: Site) -> bool:
    # Workers found at their start that the subscriptions of two containers have no sessions, so `status` shows `found-at-start` for these.
    rows = [json.loads(line) for line in (await said(site, "status", "--json", code=4)).splitlines()]
    assert {"found-at-start"} == {row["causes"][0]["kind"] for row in rows[:2]}
    assert {"data": 0, "orders": 1, "lost": 0} == {row["container"]: row["parked_keys"] for row in rows}
    rows = [json.loads(line) for line in (await said(site, "parked", "list", "--json", code=0)).splitlines()]
    assert [0, 1, 0] == [len(row["keys"]) for row in rows]
    asked = await said(site, "parked", "show", "orders", code=2)
    assert "names data, orders, lost: choose one of them by --container NAME." in asked
    assert "not 'nowhere'" in await said(site, "status", "--container", "nowhere", code=2)
    shown = await said(site, "parked", "show", "orders", "--container", "orders", "--json", code=0)
    assert "orders.4" in shown
    assert "orders:\n" in await said(site, "doctor", code=4)  # code 4: subscriptions have no sessions
    return True


def told_of(event: str, snapshot: Snapshots) -> list[str]:
    return [one.text for one in snapshot.errors if one.event == event]


@pytest.mark.parametrize(("containers", "seconds"), [(2, 15), (8, 30), (20, 60)])
async def test_the_poll_interval_grows_with_the_number_of_containers(containers: int, seconds: float):
    names = ",".join(f"c{number}" for number in range(containers))
    telemetry: Any = SimpleNamespace(beside=lambda **_: None)
    workers = Workers(worker_settings(cosmos_container=names), telemetry, telemetry)
    assert seconds == workers.health.poll_interval.total_seconds()


async def test_a_halted_container_does_not_stop_other_containers_of_an_embedded_worker(
    monkeypatch: pytest.MonkeyPatch,
):
    async with several() as (site, broker):
        for name, value in site.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(several_containers, "_BLOCKED_LOOP_SECONDS", 0.2)
        with pytest.raises(ConfigurationError, match="running_workers"):
            running_worker(load())
        broker.set_disabled("orders", True)  # halts only the container `orders`
        await commit(site, "orders", 1)
        await commit(site, "data", 1)
        async with running_workers() as workers:
            await published(broker, "people", 1)
            async with asyncio.timeout(HUNG_SECONDS):
                while not any("in orders." in one for one in workers.snapshot().unready):  # noqa: ASYNC110 - health gives no sign
                    await asyncio.sleep(0.05)
            (refused,) = [one for one in workers.snapshot().causes() if one.kind == "topic-refuses"]
            assert ("in orders" in refused.whom, "data" in refused.whom) == (True, False)
            broker.set_disabled("orders", False)
            await published(broker, "orders", 1)
            assert {"data", "orders", "lost"} == set(workers.snapshot().of)
            time.sleep(0.5)  # noqa: ASYNC251 - the mistake
            async with asyncio.timeout(HUNG_SECONDS):
                while not (blocked := told_of("LoopBlocked", workers.snapshot())):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.05)
            assert ["data: "] == [one[:6] for one in blocked], "one watches the loop for all"
        assert all(not one.mine for one in workers.snapshot().of.values())
