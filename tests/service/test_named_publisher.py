"""
Tests of OUTBOX_PUBLISHER: what it may name, the errors for unusable names, and a worker that sends to Event Hubs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cosmos_outbox.adapters.memory.broker import MemoryBroker
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Publisher, Write, WriteKind
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_worker.named_publisher import open_publisher
from tests.support.event_documents import event
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, eventually, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDKs for Service Bus and Event Hubs leave a socket open when the broker closes the connection. The garbage collector
    # closes it later, with a warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MODULE = "tests.service.test_named_publisher"
EVENT_HUBS = "examples.eventhubs.opening:opened"
HUB = {"topics": [{"name": "hub", "subscriptions": [{"name": "all", "requires_session": False}]}]}
KEYS, EACH = "abcde", 20
number = 3


def plain(topic: str, lanes: int) -> Publisher:
    return MemoryBroker().publisher(lanes=lanes)


async def awaited(topic: str, lanes: int) -> Publisher:
    return plain(topic, lanes)


async def generated(topic: str, lanes: int) -> AsyncIterator[Publisher]:
    yield plain(topic, lanes)


managed = asynccontextmanager(generated)


class Unsaying:
    """A publisher that neither names its messaging system nor has a `check` method."""

    def __init__(self, topic: str, lanes: int) -> None:
        self.lanes, self.publish = lanes, plain(topic, lanes).publish


def failing(topic: str, lanes: int) -> Publisher:
    raise KeyError("BROKER_URL")


def nothing(topic: str, lanes: int) -> None: ...


class Blocking:
    def __init__(self, topic: str, lanes: int) -> None:
        self.lanes = lanes

    def publish(self, lane: int, messages: object) -> None: ...


def without_lanes(topic: str, lanes: int) -> Publisher:
    return plain(topic, lanes=0)


@pytest.mark.parametrize("name", ["plain", "awaited", "generated", "managed", "Unsaying"])
async def test_outbox_publisher_may_name_any_supported_kind_of_function(name: str):
    async with open_publisher(f"{MODULE}:{name}", "t", lanes=2) as publisher:
        assert 2 == publisher.lanes


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (MODULE, "write package.module:publisher"),
        (f"{MODULE}:plane", f"Did you mean {MODULE}:plain?"),
        (f"{MODULE}:number", "is 3. It has to be a function that takes the topic and the number of lanes"),
        (f"{MODULE}:failing", "raised KeyError('BROKER_URL') in"),
        (f"{MODULE}:nothing", "opened None, which is no publisher"),
        (f"{MODULE}:Blocking", "and `async def publish(lane, messages)`"),
        (f"{MODULE}:without_lanes", "which is no publisher: a publisher has `lanes`, at least 1"),
    ],
)
async def test_the_error_for_an_unusable_publisher_is_one_sentence(name: str, said: str):
    with pytest.raises(ConfigurationError) as refused:
        async with open_publisher(name, "t", lanes=2):
            pass
    assert str(refused.value).startswith("OUTBOX_PUBLISHER: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def hub() -> Broker:
    return Broker.from_config(HUB)


@asynccontextmanager
async def site_with(hub: Broker) -> AsyncIterator[Site]:
    """
    Open emulators and an environment in which a worker sends to this event hub, and has no settings of Service Bus.
    """
    async with ServiceBusServer(hub) as server, opened_site() as site:
        site.environment["EVENT_HUBS_CONNECTION_STRING"] = server.connection_string
        site.environment.update({"OUTBOX_PUBLISHER": EVENT_HUBS, "OUTBOX_TOPIC": "hub"})
        del site.environment["OUTBOX_SERVICEBUS_CONNECTION_STRING"]
        yield site


def arrived(hub: Broker) -> dict[str, list[str]]:
    """
    Return the ids of the events that arrived for each partition key. Later copies of an event are left out.
    """
    found: dict[str, list[str]] = {key: [] for key in KEYS}
    for entry in hub.queue("hub/Subscriptions/all").entries.values():
        ids = found[str(entry.message.partition_key)]
        ids += [entry.message.identity] if entry.message.identity not in ids else []
    return found


async def has(hub: Broker, count: int) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while sum(map(len, arrived(hub).values())) < count:  # noqa: ASYNC110 - the hub gives no sign
            await asyncio.sleep(0.02)


async def commit(site: Site, numbers: range) -> None:
    for one in numbers:
        for key in KEYS:
            stored = {name: value for name, value in event(key, one).items() if name[0] != "_"}
            stored |= {"id": f"{key}.{one}", "data": stored["data"] | {"id": f"{key}.{one}"}}
            await site.store.commit(key, [Write(kind=WriteKind.CREATE, id=stored["id"], document=stored)])


async def test_event_hubs_gets_every_event_in_order_although_a_worker_is_killed(hub: Broker):
    async with site_with(hub) as site:
        first = await site.start_worker()
        await commit(site, range(EACH // 2))
        await has(hub, len(KEYS) * EACH // 4)
        hub.faults.add({"action": "drop-after-store"})
        committing = asyncio.create_task(commit(site, range(EACH // 2, EACH)))
        await has(hub, len(KEYS) * EACH // 2 + 1)
        first.process.kill()
        await first.exit_code()
        await committing

        second = await site.start_worker(OUTBOX_INSTANCE_NAME="worker-2")
        url = await second.health_url()
        await has(hub, len(KEYS) * EACH)
        assert {key: [f"{key}.{one}" for one in range(EACH)] for key in KEYS} == arrived(hub)
        await eventually(f"{url}/readyz", lambda status, body: status == 200)
        metrics = await eventually(f"{url}/metrics", lambda status, body: "client_sent_messages" in body)
        assert 'messaging_system="eventhubs"' in metrics
        assert 'messaging_system="servicebus"' not in metrics
        await eventually(f"{url}/", lambda status, body: "to topic hub" in body)
        second.process.terminate()
        assert 0 == await second.exit_code(), second.output


async def test_a_refusing_event_hub_makes_the_worker_unready(hub: Broker):
    """`cosmos-outbox doctor` reports the refusal too."""
    hub.set_disabled("hub", True)
    async with site_with(hub) as site:
        worker = await site.start_worker()
        refused = await eventually(
            await worker.health_url() + "/readyz",
            lambda status, body: "The event hub cannot be sent to" in body,
        )
        assert "unready" == json.loads(refused)["status"]
        found = await doctor(site)
        assert "The event hub cannot be sent to" in found["permissions"]
        assert "topic" not in found
        hub.set_disabled("hub", False)
        assert "permissions" not in await doctor(site)
        assert "has no `check()`" in (await doctor(site, OUTBOX_PUBLISHER=f"{MODULE}:Unsaying"))["publisher"]
        assert "nowhere" in (await doctor(site, OUTBOX_PUBLISHER="nowhere:opened"))["topic"]


async def doctor(site: Site, **variables: str) -> dict[str, str]:
    """Run `cosmos-outbox doctor`. Return the message of each finding under the name of its check."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cosmos_outbox_worker", "doctor", "--json"),
        env=site.environment | variables,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return {one["check"]: one["message"] for one in json.loads(output)["findings"]}


async def test_a_missing_publisher_ends_the_worker_with_exit_code_2(hub: Broker):
    async with site_with(hub) as site:
        worker = await site.start_worker(OUTBOX_PUBLISHER="nowhere:opened")
        assert 2 == await worker.exit_code()
        assert "OUTBOX_PUBLISHER: There is no module 'nowhere'" in worker.output
