"""
Tests of traces and metrics from end to end: from a commit, through a worker process, to a subscriber, at an OTLP endpoint.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusClient
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.memory.container import MemoryContainer
from cosmos_outbox.adapters.servicebus import processing
from cosmos_outbox.errors import BrokerUnavailable, ConfigurationError
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.records import names_of
from cosmos_outbox.relay.spans import spans_of_sends
from cosmos_outbox.relay.topics_and_refusals import Topics
from cosmos_outbox_testing.verify.child_processes import Children
from cosmos_outbox_worker.telemetry import open_telemetry
from demo.stack import StackOptions, open_stack
from examples.contacts.domain import Contact, Name
from examples.contacts.service import ContactsUnitOfWork, create
from tests.service.otlp import receiving, values
from tests.support.fleets import HEALTHY
from tests.support.patience import HUNG_SECONDS
from tests.support.site import eventually, json_of, opened_site

pytestmark = [
    pytest.mark.looptime(False),
    # Azure's SDK for Service Bus leaves its socket open when a link ends. The garbage collector closes it later, with a warning.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


COMPANY = {
    "companyName": "Engines",
    "street": "Main Street",
    "houseNumber": "1",
    "postalCode": "12345",
    "city": "London",
    "country": "UK",
}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


async def test_one_trace_leads_from_a_commit_to_its_subscriber():
    """A send of several events has its own span, which links to the spans of all their commits."""
    async with receiving() as receiver, opened_site() as site:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
        events = [await site.commit(tracer_provider=provider) for _ in range(3)]
        worker = await site.start_worker(
            OUTBOX_PARKED_CONTAINER="parked",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_METRIC_EXPORT_INTERVAL="200",
            OTEL_BSP_SCHEDULE_DELAY="100",
        )
        bus = ServiceBusClient.from_connection_string(site.bus.connection_string, retry_total=0)
        causes = []
        async with bus:
            for _ in events:
                session = bus.get_subscription_receiver(
                    "events", "all", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=60
                )
                async with session:
                    (message,) = await session.receive_messages(1, max_wait_time=60)
                    with processing(message, topic="events", subscription="all", tracer_provider=provider):
                        causes.append(await cause_of_a_commit())
                        await session.complete_message(message)
        worker.process.terminate()
        assert 0 == await worker.exit_code(), worker.output
        await asyncio.to_thread(provider.shutdown)  # `shutdown` waits for the receiver on this loop
        await receiver.until(
            lambda: len(receiver.named("process events")) == 3 and "outbox.leases.owned" in receiver.metrics
        )

    created, processed, sent = (
        receiver.named(name) for name in ("outbox.commit", "process events", "send events")
    )
    assert sorted(events) == sorted(causes)
    assert {(span.trace_id, span.span_id) for span in created} == {
        (span.trace_id, span.parent_span_id) for span in processed
    }
    assert {(span.trace_id, span.span_id) for span in created} == {
        (link.trace_id, link.span_id) for span in sent for link in span.links
    }
    assert 3 == sum(values(span.attributes)["messaging.batch.message_count"] for span in sent)
    assert {
        "messaging.system": "servicebus",
        "messaging.operation.type": "send",
        "messaging.destination.name": "events",
        "server.address": "127.0.0.1",
    }.items() <= values(sent[0].attributes).items()
    found = values(processed[0].attributes)
    assert {
        "messaging.operation.type": "process",
        "messaging.destination.subscription.name": "all",
    }.items() <= found.items()
    assert set(events) == {values(span.attributes)["messaging.message.id"] for span in processed}
    worker_resource = next(one for one in receiver.resources if one["service.name"] == "cosmos-outbox-worker")
    assert "worker-1" == worker_resource["service.instance.id"]
    assert version("cosmos-outbox-worker") == worker_resource["service.version"]
    (point,) = receiver.metrics["messaging.client.sent.messages"].sum.data_points
    assert 3 == point.as_int
    asked = [
        values(point.attributes)
        for point in receiver.metrics["azure.cosmosdb.client.operation.request_charge"].histogram.data_points
    ]
    # The worker measures the request charges of all its requests, not only of its reads of the change feed.
    assert {
        ("data", "query_change_feed"),
        ("leases", "replace_item"),  # writes leases and heartbeats
        ("leases", "query_items"),
        ("parked", "query_items"),
    } <= {(one.get("db.collection.name"), one["db.operation.name"]) for one in asked}
    # The counters of alarms exist from the start with 0. Otherwise a monitoring rule would see no increase at the first alarm.
    alarms = {
        values(point.attributes)["outbox.alarm"]: point.as_int
        for point in receiver.metrics["outbox.alarms"].sum.data_points
    }
    assert dict.fromkeys(names_of(logging.ERROR), 0) == alarms


async def test_a_request_to_the_stack_is_one_trace_from_the_api_to_the_receivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    trace_id, request_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    contact = {
        "name": {"firstName": "Ada", "lastName": "Lovelace"},
        "description": "first",
        "email": "a@b.example",
        "company": COMPANY,
    }
    of_caller = {"traceparent": f"00-{trace_id}-{request_id}-01"}
    async with receiving() as receiver, Children(tmp_path, grace_seconds=HUNG_SECONDS) as children:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        async with (
            open_stack(children, tmp_path, StackOptions(partitions=1, workers=1, consumers=1)) as stack,
            aiohttp.ClientSession(headers=of_caller) as session,
            session.post(f"{stack.api_url}/api/contacts", json=contact) as response,
        ):
            assert 201 == response.status
            for name, count in {"process events": 2, "send events": 1, "outbox.commit": 2}.items():
                await receiver.until(lambda name=name, count=count: len(receiver.named(name)) == count)
            await receiver.until(
                lambda: any(span.parent_span_id.hex() == request_id for span in receiver.spans)
            )

    def by_service(name: str) -> dict[str, Span]:
        return {receiver.services[span.span_id]: span for span in receiver.named(name)}

    commits, processes = by_service("outbox.commit"), by_service("process events")
    created, handled = commits["contacts-api"], processes["cosmos-outbox-consumer"]
    (link,) = by_service("send events")["cosmos-outbox-worker"].links
    parents = {span.span_id: span.parent_span_id for span in receiver.spans}
    outermost = created.span_id
    while outermost in parents:
        outermost = parents[outermost]
    assert (trace_id, request_id) == (created.trace_id.hex(), outermost.hex())
    assert (created.trace_id, created.span_id) == (link.trace_id, link.span_id)
    children_of = {
        (created.trace_id, created.span_id): {handled.span_id, processes["contacts-subscriber"].span_id}
    }
    children_of[handled.trace_id, handled.span_id] = {commits["cosmos-outbox-consumer"].span_id}
    for (trace_of, parent), spans in children_of.items():
        found = {
            span.span_id
            for span in receiver.spans
            if (span.trace_id, span.parent_span_id) == (trace_of, parent)
        }
        assert spans <= found


async def test_the_span_of_a_failed_message_names_the_error():
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    message = SimpleNamespace(
        application_properties={},
        message_id="m",
        delivery_count=0,
        correlation_id=None,
        enqueued_time_utc=None,
    )
    with (
        pytest.raises(ZeroDivisionError),
        processing(message, topic="t", subscription="s", tracer_provider=provider),  # type: ignore[arg-type] # all it reads
    ):
        _ = 1 / 0
    (span,) = exporter.get_finished_spans()
    assert ("ZeroDivisionError", trace.StatusCode.ERROR) == (
        span.attributes["error.type"], span.status.status_code,
    )  # fmt: skip


async def cause_of_a_commit() -> str:
    """
    Commit an entity. Return the causation id of its event, which is the id of the message that is being handled.
    """
    store = MemoryContainer()
    async with Outbox(store).unit_of_work(ContactsUnitOfWork) as uow:
        created = await create(uow, Contact(id="caused", name=Name(first_name="Ada", last_name="Lovelace")))
    event = await store.read(created.commit.events[0].id, "caused")
    return str(event["meta"]["causationId"])


async def test_the_span_of_a_failed_send_has_an_error_status():
    class Refusing:
        lanes = 1

        async def publish(self, lane, messages):
            raise BrokerUnavailable("down")

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    message = OutboundMessage(
        message_id="m", session_id="s", subject="a", body=b"{}", properties={"traceparent": "nonsense"}
    )
    with pytest.raises(BrokerUnavailable):
        await Topics({"t": Refusing()}, around=spans_of_sends(provider)).publish(0, [message])
    (span,) = exporter.get_finished_spans()
    assert ("BrokerUnavailable", trace.StatusCode.ERROR, ()) == (
        span.attributes["error.type"], span.status.status_code, tuple(span.links),
    )  # fmt: skip


def test_opentelemetry_s_variables_may_set_the_service_name_of_the_worker(monkeypatch: pytest.MonkeyPatch):
    def named() -> set[str]:
        with open_telemetry(instance="w") as telemetry:
            (line,) = re.findall(r"^target_info\{(.*)\}", telemetry.exposition()[0].decode(), re.MULTILINE)
        return set(re.findall(r'service_(?:name|instance_id)="[^"]*"', line))

    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    assert {'service_name="cosmos-outbox-worker"', 'service_instance_id="w"'} == named()
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=relay,service.instance.id=pod-7")
    assert {'service_name="relay"', 'service_instance_id="pod-7"'} == named()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "named")
    assert {'service_name="named"', 'service_instance_id="pod-7"'} == named()


def test_a_variable_that_opentelemetry_refuses_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", "nonsense")
    with (
        pytest.raises(ConfigurationError, match=r"OTEL_… variables: .*nonsense"),
        open_telemetry(instance="w"),
    ):
        pass


async def test_a_silent_otlp_endpoint_delays_the_worker_s_end_only_by_a_time_limit(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("cosmos_outbox_worker.telemetry._EXPORT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(HUNG_SECONDS)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        with open_telemetry(instance="w") as telemetry:
            telemetry.tracer_provider.get_tracer("test").start_span("send").end()
        # The block has ended, although the threads of the two exporters still wait for an answer of the endpoint.
        ending = [thread for thread in threading.enumerate() if thread.name == "telemetry-shutdown"]
        assert 2 == len(ending)
        # The test answers the requests now. Otherwise OpenTelemetry's SDK would retry for half a minute, and log warnings during
        # later tests.
        with ExitStack() as connections:
            for _ in ending:
                connection = connections.enter_context(silent.accept()[0])
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            for thread in ending:
                thread.join(HUNG_SECONDS)
                assert not thread.is_alive()


async def test_probes_metrics_and_status_page_show_that_the_broker_is_down():
    async with opened_site() as site:
        worker = await site.start_worker(OUTBOX_STALLED_SECONDS="2")
        url = await worker.health_url()
        assert {"status": "alive"} == json_of(
            await eventually(url + "/livez", lambda status, _: status == 200)
        )
        await eventually(url + "/readyz", lambda status, body: status == 200 and '"lease":' in body)

        site.bus.broker.faults.add({"action": "server-busy", "count": None})
        spans, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(spans))
        await site.commit(tracer_provider=provider)
        (committed,) = spans.get_finished_spans()
        line = json_of(await worker.said("PublishFailed"))
        assert (f"{committed.context.trace_id:032x}", f"{committed.context.span_id:016x}") == (
            line["trace_id"], line["span_id"],
        )  # fmt: skip
        body = json_of(await eventually(url + "/readyz", lambda status, _: status == 503))
        (lease,) = body["leases"]
        assert lease["stalled"]
        assert lease["lease"].rpartition("..")[2] in body["reasons"][0]
        page = await eventually(url, lambda status, page: "PublishFailed" in page and "Not ready" in page)
        assert "stalled for" in page
        await eventually(
            url + "/metrics",
            lambda _, text: "outbox_leases_stalled 1.0" in _plain(text) and 'error_type="BrokerUnavailable"' in text
            and re.search(r"outbox_oldest_unsent_age_seconds (?!0\.0)\d", _plain(text)) is not None,
        )  # fmt: skip
        assert {"status": "alive"} == json_of(
            await eventually(url + "/livez", lambda status, _: status == 200)
        )

        site.bus.broker.faults.clear()
        await eventually(url + "/readyz", lambda status, _: status == 200)
        await eventually(
            url + "/metrics",
            lambda _, text: re.search(
                r'^messaging_client_sent_messages_total\{error_type="",[^}]*\} 1.0', text, re.MULTILINE
            ),
        )


def _plain(exposition: str) -> str:
    """Return the metrics in Prometheus' text format without their labels."""
    return re.sub(r"\{[^}]*\}", "", exposition)


@pytest.mark.parametrize(("ceiling", "told"), [(None, []), (40.0, ["0.96", "7.0"])])
def test_metrics_show_the_use_of_the_send_rate_and_the_waits_that_it_causes(
    ceiling: float | None, told: list[str]
):
    with open_telemetry(instance="w") as telemetry:
        telemetry.observed = replace(
            HEALTHY, ceiling=ceiling, held=timedelta(seconds=7), sent_per_second=38.4
        )
        text = _plain(telemetry.exposition()[0].decode())
    assert told == re.findall(r"^outbox_send_ceiling_(?:used|wait_seconds) (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("unseen", [0, 90])
def test_metrics_show_the_age_but_no_counts_of_a_backlog_that_is_unknown(unseen: int):
    seen = replace(HEALTHY, unseen=timedelta(seconds=unseen), parked=None if unseen else HEALTHY.parked)
    with open_telemetry(instance="w") as telemetry:
        telemetry.observed = seen
        lines = _plain(telemetry.exposition()[0].decode()).splitlines()
    told = {name: float(value) for name, value in (line.split() for line in lines if line[0] != "#")}
    assert 864_000 - 1.1 - unseen == pytest.approx(told["outbox_ttl_headroom_seconds"])
    assert 1.1 + unseen == pytest.approx(told["outbox_oldest_unsent_age_seconds"])
    counted = {"outbox_lease_lag", "outbox_highest_lag", "outbox_leases_free", "outbox_parked_keys"}
    assert (set() if unseen else counted) == counted & told.keys()
