"""Tests that the parts of a worker get the values of its settings."""

from __future__ import annotations

import base64
import os
from datetime import timedelta
from typing import Any

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox.changefeed import ProcessorOptions
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.stored_documents import claims_to_be_an_event
from cosmos_outbox_worker.connection import open_connection
from cosmos_outbox_worker.settings import PREFIX, Settings
from cosmos_outbox_worker.worker_assembly import assemble_worker, memory_limit, processor_options
from tests.support.site import Site, eventually, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDK for Service Bus leaves its socket open when a link ends. The garbage collector closes it later, with a warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COMPLETE: dict[str, Any] = {
    "cosmos_connection_string": "AccountEndpoint=http://127.0.0.1:1/;AccountKey=a2V5;",
    "cosmos_database": "contacts",
    "cosmos_container": "data",
    "servicebus_connection_string": "Endpoint=sb://b;SharedAccessKeyName=n;SharedAccessKey=a2V5",
    "topic": "events",
}
# Settings that the process reads before it builds the worker. The test watches only what reads settings after that.
READ_ELSEWHERE = {"log_level", "health_port"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith((PREFIX, "OTEL_"))]:
        monkeypatch.delenv(name)


def settings_of(**values: Any) -> Settings:
    return Settings(**{**COMPLETE, **values})


def test_the_options_of_the_processor_follow_from_the_settings():
    values = {
        "processor_name": "billing",
        "instance_name": "worker-7",
        "start": "now",
        "lease_expiration_seconds": 30,
        "grace_seconds": 5,
    }
    assert ProcessorOptions(
        processor_name="billing",
        instance_name="worker-7",
        start=StartFrom.NOW,
        acquire_interval=timedelta(seconds=6.5),
        renew_interval=timedelta(seconds=8.5),
        expiration=timedelta(seconds=30),
        grace_period=timedelta(seconds=5),
        memory_bytes=memory_limit() * 2 // 5,
        wanted=claims_to_be_an_event,
    ) == processor_options(settings_of(**values))
    begun = processor_options(settings_of(start="2026-01-01T00:00:00Z")).start
    assert "2026-01-01T00:00:00+00:00" == getattr(begun, "isoformat", lambda: begun)()


async def test_all_containers_share_one_send_rate():
    """The test also checks that a page has at most as many changes as the worker may send in a second."""
    assert [1, 40, 1000] == [
        processor_options(settings_of(send_rate=rate)).max_items for rate in (0.1, 40, 5000)
    ]
    async with opened_site() as site:
        settings = settings_of(cosmos_connection_string=site.cosmos.connection_string, send_rate=5)
        async with open_connection(settings) as connection:
            other = connection.to(settings)
            assert 5 == other.ceiling.per_second
            assert other.ceiling is connection.ceiling
            async with other.publisher(lanes=1) as publisher:
                assert 1 == publisher.at_once


async def test_the_worker_reads_every_one_of_its_settings():
    """A setting that the code does not read would have no effect, and the operator would not learn it."""
    read = set[str]()

    class Watched(Settings):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    async with opened_site() as site:
        values = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in site.environment.items()
            if name.startswith(PREFIX)
        }
        asked = values | {"parked_container": "parked", "message_format": "cloudevents-structured"}
        async with assemble_worker(Watched(**asked)) as worker:
            worker.snapshot()
    assert set() == set(Settings.model_fields) - read - READ_ELSEWHERE


async def planted(site: Site, name: str) -> None:
    """Create a lease of the processor `name` for the container that the site's worker relays."""
    database = site.client.get_database_client("contacts")
    properties = await database.get_container_client("data").read()
    lease = f"{name}127.0.0.1_{database_rid(properties['_rid'])}_{properties['_rid']}..0"
    await database.get_container_client("leases").create_item({"id": lease, "LeaseToken": "0"})


def database_rid(container_rid: str) -> str:
    return base64.b64encode(base64.b64decode(container_rid.replace("-", "/"))[:4]).decode().replace("/", "-")


async def test_a_worker_refuses_to_delete_events_that_another_processor_reads():
    """The worker names the other processor and ends with exit code 2."""
    async with opened_site() as site:
        await planted(site, "audit")
        worker = await site.start_worker(OUTBOX_DELETE_AFTER_PUBLISH="*")
        assert 2 == await worker.exit_code()
        assert "other processors have leases of the same container: audit" in worker.output
        beside = await site.start_worker()
        await eventually(await beside.health_url() + "/readyz", lambda status, body: '"lease":' in body)


async def test_a_worker_warns_of_an_unsuitable_time_to_live_and_goes_on():
    async with opened_site() as site:
        database = site.client.get_database_client("contacts")
        for name, seconds, said in (
            ("off", None, "'off' has no default time to live: sent events"),
            ("short", 60, "without a `ttl` of their own after 60 s"),
        ):
            await database.create_container(name, PartitionKey("/partitionKey"), default_ttl=seconds)
            worker = await site.start_worker(OUTBOX_COSMOS_CONTAINER=name, OUTBOX_PROCESSOR_NAME=name)
            await worker.said("finding.data-ttl")
            assert said in worker.output
            assert f"--ttl=-1 --name {name} --database-name contacts" in worker.output
            await eventually(await worker.health_url() + "/readyz", lambda status, body: status == 200)
        beside = await site.start_worker()
        await eventually(await beside.health_url() + "/readyz", lambda status, body: status == 200)
        assert "finding.data-ttl" not in beside.output
