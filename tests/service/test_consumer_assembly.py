"""
Tests of consumers that run as a process of their own (`cosmos-outbox consume`), and inside another program.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from azure.cosmos import PartitionKey

from cosmos_outbox.adapters.cosmos.parked import open_parked
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox_worker import load_consumer, running_consumer
from cosmos_outbox_worker.consumer_assembly import assemble_consumer, session_options
from cosmos_outbox_worker.consumer_settings import CONSUMER_FIELDS, ConsumerSettings
from cosmos_outbox_worker.main import consume
from cosmos_outbox_worker.settings import PREFIX
from tests.service import invoices
from tests.support.patience import HUNG_SECONDS
from tests.support.site import Site, eventually, fetched, json_of, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDK for Service Bus leaves its socket open when a link ends. The garbage collector closes it later, with a warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith((PREFIX, "OTEL_"))]:
        monkeypatch.delenv(name)


async def until(fact: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(HUNG_SECONDS):
        while not await fact():  # noqa: ASYNC110 - any fact
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("receiver", ["sdk", "amqp"])
async def test_a_consumer_process_handles_messages_and_drains_on_sigterm(receiver: str):
    """The health server of the process answers, and its metrics count the handled messages."""
    async with opened_site() as site:
        await site.send(("a", 1), ("a", 2), ("b", 1))
        consumer = await site.start_consumer("made", OUTBOX_RECEIVER=receiver)

        async def handled() -> bool:
            return len(await site.invoices()) == 3

        await until(handled)
        assert [("a", 1), ("a", 2), ("b", 1)] == sorted(await site.invoices())
        url = await consumer.health_url()
        ready = json_of(await eventually(url + "/readyz", lambda status, _: status == 200))
        assert ("ready", "running") == (ready["status"], ready["phase"])
        metrics = await eventually(url + "/metrics", lambda _, text: "outbox_consumer_ready 1.0" in text)
        assert re.search(r"messaging_process_duration_seconds_count\{[^}]*\} 3.0", metrics)
        assert re.search(r"messaging_client_consumed_messages_total\{[^}]*\} 3.0", metrics)
        assert "outbox_leases" not in metrics
        assert "invoicing" in await eventually(url + "/", lambda status, _: status == 200)
        consumer.process.send_signal(signal.SIGTERM)
        assert 0 == await consumer.exit_code()
        assert "consumer.draining on SIGTERM" in consumer.output
        assert "consumer.stopped" in consumer.output


async def test_the_messages_of_a_killed_consumer_take_effect_once_in_another():
    async with opened_site() as site:
        first = await site.start_consumer("consumer", STUCK_AT="a-2")
        await site.send(("a", 1), ("a", 2), ("a", 3))
        await first.said("stuck")
        first.process.kill()
        await site.start_consumer("consumer")

        async def handled() -> bool:
            return len(await site.invoices()) == 3

        await until(handled)
        assert [("a", 1), ("a", 2), ("a", 3)] == sorted(await site.invoices())


async def test_a_consumer_process_collects_garbage_less_often_than_by_default():
    async with opened_site() as site:
        await site.send(("a", 1))
        consumer = await site.start_consumer("consumer", STUCK_AT="a-1")
        assert "runs after 10000 new objects" in await consumer.said("stuck")


async def test_a_handler_that_takes_too_long_makes_the_consumer_unready():
    """On SIGTERM, the process waits for this handler only for the grace period."""
    async with opened_site() as site:
        await site.send(("a", 1))
        consumer = await site.start_consumer(
            "consumer", STUCK_AT="a-1", OUTBOX_STALLED_SECONDS="0.5", OUTBOX_GRACE_SECONDS="0.5"
        )
        url = await consumer.health_url()
        body = await eventually(
            url + "/readyz", lambda _, text: "A message is being handled for long" in text
        )
        assert "session 'a'" in body
        consumer.process.send_signal(signal.SIGTERM)
        assert 0 == await consumer.exit_code()
        assert [] == await site.invoices()


async def test_a_consumer_process_ends_although_a_handler_swallows_its_cancellation():
    async with opened_site() as site:
        await site.send(("a", 1))
        consumer = await site.start_consumer(
            "consumer", STUCK_AT="a-1", SWALLOWS="1", OUTBOX_GRACE_SECONDS="0.5"
        )
        await consumer.said("stuck")
        consumer.process.send_signal(signal.SIGTERM)
        assert 0 == await consumer.exit_code()
        assert "consumer.stopped" in consumer.output
        assert "swallows its cancellation" in consumer.output
        assert [] == await site.invoices()


async def test_a_parked_key_appears_in_the_log_the_metrics_and_the_status_page():
    async with opened_site() as site:
        await site.send(("a", -1), ("a", 2), ("b", 1))
        consumer = await site.start_consumer("consumer")
        await consumer.said('"outcome": "held"')
        url = await consumer.health_url()
        metrics = await eventually(url + "/metrics", lambda _, text: "outbox_parked_events 2.0" in text)
        assert "outbox_parked_keys 1.0" in metrics
        assert "outbox_parked_age_seconds" in metrics
        page = await eventually(url + "/", lambda _, text: "Oldest parked" in text)
        assert "ValueError: an order of -1 cannot be invoiced" in page
        assert "Held: 2, 1 of them behind" in (await fetched(url + "/?key=a"))[1]
        await eventually(url + "/?key=b", lambda _, text: "invoicing handled" in text)
        await eventually(
            url + "/metrics",
            lambda _, text: 'outbox_messages_handled_total{outbox_outcome="handled"} 1.0' in text,
        )
        assert [("b", 1)] == await site.invoices()


@pytest.mark.parametrize(
    ("name", "variables", "said"),
    [
        ("idle", {}, "'idle' has no handler"),
        ("wrongly_made", {}, "has to return a Consumer"),
        ("session_of", {}, "line 66 in session_of"),
        ("consumer", {"OUTBOX_PARKED_CONTAINER": None}, "OUTBOX_PARKED_CONTAINER"),
        ("consumer", {"OUTBOX_PARKED_CONTAINER": "missing"}, "'missing'"),
        ("consumer", {"OUTBOX_COSMOS_CONTAINER": "missing"}, "'missing'"),
        (
            "consumer",
            {"OUTBOX_COSMOS_CONTAINER": "endless"},
            "Time to live is off on the container 'endless'",
        ),
    ],
)
async def test_a_consumer_that_can_never_handle_a_message_is_refused_at_the_start(
    name: str, variables: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch
):
    async with opened_site() as site:
        database = site.client.get_database_client("contacts")
        await database.create_container("endless", PartitionKey("/partitionKey"))
        settings = settings_of(site, monkeypatch, **variables)
        assembled = assemble_consumer(getattr(invoices, name), settings)
        with pytest.raises(ConfigurationError, match=said):
            await assembled.__aenter__()


async def test_a_consumer_process_without_a_handler_ends_with_exit_code_2():
    async with opened_site() as site:
        consumer = await site.start_consumer("idle")
        assert 2 == await consumer.exit_code()
        assert (
            "consumer.refused The consumer cannot run: The consumer 'idle' has no handler." in consumer.output
        )
        assert "Traceback" not in consumer.output


def settings_of(site: Site, monkeypatch: pytest.MonkeyPatch, **variables: str | None) -> ConsumerSettings:
    asked = {"OUTBOX_SUBSCRIPTION": "all", "OUTBOX_PARKED_CONTAINER": "parked"}
    for name, value in (site.environment | asked | variables).items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    return load_consumer()


async def test_a_consumer_that_dead_letters_needs_no_parked_container(monkeypatch: pytest.MonkeyPatch):
    async with opened_site() as site:
        settings = settings_of(site, monkeypatch, OUTBOX_PARKED_CONTAINER=None)
        async with assemble_consumer(invoices.dropping, settings):
            pass


async def test_a_consumer_inside_another_program_drains_at_the_end_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
):
    async with opened_site() as site:
        await site.send(("a", 1), ("a", 2))
        async with running_consumer(invoices.consumer, settings_of(site, monkeypatch)) as consumer:
            assert consumer.health_url is None

            async def handled() -> bool:
                return consumer.snapshot().handled == 2

            await until(handled)
            assert "ready" == consumer.snapshot().readiness()["status"]
            assert b"outbox_consumer_ready" in consumer.metrics()[0]
        assert "has ended" in consumer.snapshot().unready[0]
        assert [("a", 1), ("a", 2)] == sorted(await site.invoices())


async def test_a_consumer_holds_the_messages_of_a_key_that_an_operator_parked(
    monkeypatch: pytest.MonkeyPatch,
):
    async with opened_site() as site:
        async with running_consumer(invoices.consumer, settings_of(site, monkeypatch)) as consumer:

            async def handled() -> bool:
                return consumer.snapshot().handled == 1

            async def parked(events: int) -> bool:
                return (seen := consumer.snapshot().parked) is not None and (1, events) == (
                    seen.count,
                    seen.events,
                )

            await site.send(("a", 1))
            await until(handled)
            store = await open_parked(site.client, "contacts", "parked")
            scope = Scope(processor="invoicing", container="events/all")
            await ParkedKeys(store, scope=scope).park("a", reason="it waits")
            await until(lambda: parked(0))
            await site.send(("a", 2))
            await until(lambda: parked(1))
        assert [("a", 1)] == await site.invoices()


async def test_the_consumer_reads_every_one_of_its_settings(monkeypatch: pytest.MonkeyPatch):
    """A setting that the code does not read would have no effect, and the operator would not learn it."""
    read = set[str]()

    class Watched(ConsumerSettings):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    async with opened_site() as site:
        settings = settings_of(site, monkeypatch)
        async with assemble_consumer(invoices.consumer, Watched(**settings.model_dump())):
            pass
    assert set() == set(CONSUMER_FIELDS) - read - {"log_level", "health_port"}
    relaying = set(ConsumerSettings.model_fields) - set(CONSUMER_FIELDS)
    # A consumer does not use these settings of a worker. But its connections are opened by a worker's code, which reads them.
    assert {"lease_container", "send_rate", "priority", "throughput_bucket"} == read & relaying


def test_the_time_limit_of_a_message_covers_all_of_its_attempts(monkeypatch: pytest.MonkeyPatch):
    values = {"cosmos_database": "d", "cosmos_container": "c", "subscription": "s", "topic": "t"}
    settings = ConsumerSettings(**values, concurrent_sessions=3, grace_seconds=7)  # type: ignore[arg-type]
    options = session_options(settings, invoices.consumer)
    assert invoices.consumer.policy.longest_handling < options.max_handling
    assert (3, timedelta(seconds=7)) == (options.max_concurrent_sessions, options.grace_period)


@pytest.mark.usefixtures("logging_of_a_program")
def test_a_consumer_without_topic_or_subscription_ends_with_exit_code_2(
    capsys: pytest.CaptureFixture[str],
):
    assert 2 == consume(["tests.service.invoices:consumer"])
    assert "OUTBOX_TOPIC: is required" in capsys.readouterr().err
    assert 2 == consume([])
    assert "OUTBOX_SUBSCRIPTION" in capsys.readouterr().err


def test_a_consumer_s_container_may_have_the_name_leases():
    """
    A consumer has no lease container, so the name is allowed, unlike for a worker. The test also covers consumers of a queue, which
    have no subscription.
    """
    values = {"cosmos_database": "d", "cosmos_container": "leases"}
    queue = ConsumerSettings(**values, topic="orders")  # type: ignore[arg-type]
    assert ("orders", []) == (queue.source, queue.contradictions())
    assert "t/s" == ConsumerSettings(**values, topic="t", subscription="s").source  # type: ignore[arg-type]
