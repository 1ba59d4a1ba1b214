"""
Tests that spans and metrics follow OpenTelemetry's semantic conventions for messaging and Cosmos DB, in the version of the
schema URL.

The expected attributes are those of `docs/messaging/messaging-metrics.md`, `azure-messaging.md` and `docs/db/cosmosdb.md`
of the conventions, as far as they apply here. No attribute may be missing, and none may be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from pydantic import BaseModel

from cosmos_outbox import Outbox
from cosmos_outbox.adapters.memory import MemoryContainer
from cosmos_outbox.changefeed import Lag
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.correlation import SCHEMA_URL
from cosmos_outbox.domain.events import utc_now
from cosmos_outbox.errors import BrokerUnavailable
from cosmos_outbox.message_format import Message, OutboundMessage, message_of
from cosmos_outbox.relay.routing import parse_routes
from cosmos_outbox.relay.topics_and_refusals import Topics
from cosmos_outbox.stored_documents import stored_event
from cosmos_outbox_worker.measured_subscription import MeasuredSubscription
from cosmos_outbox_worker.request_charges import charge_of
from cosmos_outbox_worker.telemetry import Telemetry, open_telemetry
from tests.support.fleets import HEALTHY, lag
from tests.support.lease_statuses import status
from tests.support.notes import Note, NoteFiled


class Noted(BaseModel):
    """The payload of a message from a program without this library."""


HOST = "namespace.example"
OF_MESSAGES = {
    "messaging.operation.name",
    "messaging.system",
    "messaging.destination.name",
    "server.address",
}
OF_A_SUBSCRIPTION = OF_MESSAGES | {"messaging.destination.subscription.name"}
OF_A_REQUEST = {"db.operation.name", "db.collection.name", "db.namespace", "server.address"}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
SENT, CONSUMED = "messaging.client.sent.messages", "messaging.client.consumed.messages"
OPERATIONS, PROCESSED = "messaging.client.operation.duration", "messaging.process.duration"
CHARGES = "azure.cosmosdb.client.operation.request_charge"


class Telling:
    """A Telemetry object whose spans and metrics a test can read."""

    def __init__(self, *, consumer: bool = False) -> None:
        self._reader, self._exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(self.meters, consumer=consumer, tracer_provider=self.tracers)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def metrics(self) -> dict[str, Metric]:
        data = self._reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        assert {SCHEMA_URL} == {scope.schema_url for scope in scopes}
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name: str) -> Iterator[tuple[dict[str, Any], Any]]:
        for point in self.metrics[name].data.data_points:
            yield dict(point.attributes), point


@dataclass
class Broker:
    """A broker. While it is down, it accepts only the first message of each call, and raises an error."""

    lanes: int = 1
    down: bool = False

    async def publish(self, lane: int, messages: list[OutboundMessage]) -> None:
        if self.down:
            raise BrokerUnavailable("no answer within 60 s", accepted=1)


def outbound(name: str, properties: Mapping[str, Any] | None = None) -> OutboundMessage:
    return OutboundMessage(
        message_id=name, session_id="s", subject=name, body=b"{}", properties=properties or {}
    )


async def test_each_attempt_to_send_is_counted_and_timed_by_topic_and_error():
    told, broker = Telling(), Broker()
    routes = parse_routes("entity:contact=second", default="events")
    around = told.telemetry.around_sends("servicebus", HOST, routes.topics)
    topics = Topics(dict.fromkeys(routes.topics, broker), routes, around=around)
    contacts = [outbound(str(number), {"entity-type": "contact"}) for number in range(3)]
    await topics.publish(0, contacts)
    broker.down = True
    with suppress(BrokerUnavailable):
        await topics.publish(0, contacts)

    sent = {
        (point["messaging.destination.name"], point.get("error.type")): found.value
        for point, found in told.points(SENT)
    }
    calls = {
        (point["messaging.destination.name"], point.get("error.type")): found.count
        for point, found in told.points(OPERATIONS)
    }
    assert {("events", None): 0, ("second", None): 4, ("second", "BrokerUnavailable"): 2} == sent
    assert {("second", None): 1, ("second", "BrokerUnavailable"): 1} == calls
    for name, known in {SENT: OF_MESSAGES, OPERATIONS: OF_MESSAGES | {"messaging.operation.type"}}.items():
        assert {frozenset(known)} == {
            frozenset(point.keys() - {"error.type"}) for point, _ in told.points(name)
        }
    assert SECONDS == next(told.points(OPERATIONS))[1].explicit_bounds
    assert ("{message}", "s") == (told.metrics[SENT].unit, told.metrics[OPERATIONS].unit)


async def test_a_send_that_is_given_up_is_measured_with_its_error():
    told = Telling()
    with suppress(TimeoutError), told.telemetry.around_sends("servicebus", HOST, ["t"])("t", [outbound("a")]):
        raise TimeoutError
    ((attributes, _),) = told.points(OPERATIONS)
    assert "TimeoutError" == attributes["error.type"]


@pytest.mark.parametrize("create_spans_for", [None, "servicebus"])
async def test_an_event_gets_a_span_of_its_own_only_if_create_spans_for_is_set(
    create_spans_for: str | None,
):
    """Without `create_spans_for`, the events have the span of their commit."""
    told, container = Telling(), MemoryContainer()
    outbox = Outbox(container, tracer_provider=told.tracers, create_spans_for=create_spans_for)
    async with outbox.unit_of_work() as uow:
        note = uow.repository(Note).create(Note(id="p"))
        uow.record(NoteFiled(note_id="p", folder="f"), about=note)
        commit = await uow.commit()
    *created, committed = told.spans
    assert ("outbox.commit", SpanKind.INTERNAL) == (committed.name, committed.kind)
    assert [] == [name for name in committed.attributes or {} if name.startswith("messaging.")]
    causes = []
    for event in commit.events:
        stored = stored_event(await container.read(event.id, "p"), container.key_paths)
        assert stored is not None
        causes.append(int(str(message_of(stored).properties["traceparent"]).split("-")[2], 16))
    if create_spans_for is None:
        assert ([], [committed.context.span_id] * 2) == (created, causes)
        return
    assert [span.context.span_id for span in created] == causes
    assert {("create", SpanKind.PRODUCER, SCHEMA_URL, committed.context.span_id)} == {
        (span.name, span.kind, span.instrumentation_scope.schema_url, span.parent and span.parent.span_id)
        for span in created
    }
    assert [
        {
            "messaging.system": "servicebus",
            "messaging.operation.type": "create",
            "messaging.operation.name": "create",
            "messaging.message.id": event.id,
        }
        for event in commit.events
    ] == [dict(span.attributes or {}) for span in created]


async def test_a_consumer_measures_deliveries_attempts_and_settlements():
    told = Telling(consumer=True)
    consumer = Consumer(
        "c", Outbox(MemoryContainer(), tracer_provider=told.tracers), on_failure="dead_letter"
    )

    @consumer.on(Noted, subject="Noted")
    async def noted(event: Noted, message: Message, uow: Any) -> None:
        if message.message_id == "bad":
            raise LookupError

    handling = consumer.handling(
        source="events/all",
        server_address=HOST,
        tracer_provider=told.tracers,
        meter_provider=told.meters,
    )
    messages = [
        Message(message_id=name, session_id="s", subject="Noted", body=b"{}") for name in ("good", "bad")
    ]
    subscription = MeasuredSubscription(
        Delivering(messages), told.telemetry, source="events/all", host=HOST, reached=lambda: None
    )
    assert [0] == [point.value for _, point in told.points(CONSUMED)]
    session = await subscription.accept(0)
    assert session is not None
    while (message := await session.receive(0)) is not None:
        await session.settle(message, await handling(message, session))  # type: ignore[arg-type] # all it uses

    assert [2] == [point.value for _, point in told.points(CONSUMED)]
    assert {"complete", "dead_letter"} == {
        one["messaging.operation.name"] for one, _ in told.points(OPERATIONS)
    }
    assert {None, "LookupError"} == {one.get("error.type") for one, _ in told.points(PROCESSED)}
    known = {CONSUMED: OF_A_SUBSCRIPTION, PROCESSED: OF_A_SUBSCRIPTION}
    known[OPERATIONS] = OF_A_SUBSCRIPTION | {"messaging.operation.type"}
    for name, attributes in known.items():
        assert {frozenset(attributes)} == {
            frozenset(point.keys() - {"error.type"}) for point, _ in told.points(name)
        }
    assert SECONDS == next(told.points(PROCESSED))[1].explicit_bounds
    processed = next(span for span in told.spans if span.name == "process events")
    assert OF_A_SUBSCRIPTION | {
        "messaging.operation.type",
        "messaging.message.id",
        "messaging.servicebus.message.delivery_count",
        "messaging.servicebus.message.enqueued_time",
    } == set(processed.attributes or {})


class Delivering:
    """A session that delivers the given messages."""

    id, trusted_until = "s", float("inf")

    def __init__(self, messages: list[Message]) -> None:
        self._messages = [replace(message, enqueued_at=utc_now()) for message in messages]

    async def accept(self, wait_seconds: float) -> Delivering:
        return self

    async def receive(self, wait_seconds: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    async def settle(self, message: Message, settlement: object) -> None: ...
    async def renew(self) -> None: ...
    async def close(self) -> None: ...
    async def pause(self, seconds: float) -> None: ...


DOCS = "https://account.example:443/dbs/shop/colls/orders/docs"


@pytest.mark.parametrize(
    ("method", "path", "headers", "operation"),
    [
        ("GET", "", {"a-im": "Incremental feed"}, "query_change_feed"),
        ("GET", "/x%2Fy", {}, "read_item"),
        ("PUT", "/x", {}, "replace_item"),
        ("PATCH", "/x", {}, "patch_item"),
        ("DELETE", "/x", {}, "delete_item"),
        ("POST", "", {}, "create_item"),
        ("POST", "", {"x-ms-documentdb-is-upsert": True}, "upsert_item"),
        ("POST", "", {"x-ms-documentdb-isquery": "true"}, "query_items"),
        ("POST", "", {"x-ms-cosmos-is-batch-request": "True"}, "execute_batch"),
    ],
)
def test_a_request_to_cosmos_db_is_named_as_in_the_conventions(
    method: str, path: str, headers: dict[str, object], operation: str
):
    request = SimpleNamespace(method=method, url=DOCS + path, headers=headers)
    expected = {
        "db.operation.name": operation,
        "db.namespace": "shop",
        "db.collection.name": "orders",
        "server.address": "account.example",
    }
    assert OF_A_REQUEST == expected.keys()
    assert (2.5, expected) == charge_of(request, 304, {"x-ms-request-charge": "2.5"})
    refused = {"error.type": "429", "db.response.status_code": "429"}
    assert (1.0, expected | refused) == charge_of(request, 429, {"x-ms-request-charge": "1"})
    assert charge_of(request, 503, {}) is None


def test_the_histogram_of_request_charges_has_the_bounds_that_opentelemetry_names():
    told = Telling()
    request = SimpleNamespace(method="GET", url=DOCS + "/x", headers={})
    told.telemetry.count_charge(request, 200, {"x-ms-request-charge": "1.5"})
    ((_, point),) = told.points(CHARGES)
    assert (1.5, (1, 5, 10, 25, 50, 100, 250, 500, 1000)) == (point.sum, point.explicit_bounds)
    assert "{request_unit}" == told.metrics[CHARGES].unit


def test_the_metrics_of_each_lease_are_exported_by_one_worker_only():
    """
    If each of 20 workers exported two series for each of 1,000 leases, there would be 40,000 series, and as many new ones after
    each rollout.
    """
    workers, leases = 20, 1_000
    names = [str(number) for number in range(leases)]
    waiting = Lag(leases=tuple(lag(name, f"w{int(name) % workers}", 3, 60.0) for name in names))
    per_lease, series = 0, 0
    for number in range(workers):
        mine = tuple(status(name) for name in names if int(name) % workers == number)
        with open_telemetry(instance=f"w{number}") as telemetry:
            empty = series_of(telemetry)
            telemetry.observed = replace(HEALTHY, mine=mine, lag=waiting)
            found = series_of(telemetry)
        per_lease += sum("outbox_lease=" in line for line in found)
        series += len(found) - len(empty)
        assert {"outbox_highest_lag 3.0", "outbox_oldest_unsent_age_seconds 60.0"} <= set(found)
    assert 2 * leases == per_lease
    # 2,000 series of leases, and 9 series of each of the 20 workers: maxima, and figures about itself and parked keys.
    # `test_plan.py` counts the histograms and the other metrics.
    assert 2_180 == series


def series_of(telemetry: Telemetry) -> list[str]:
    return [line for line in telemetry.exposition()[0].decode().splitlines() if not line.startswith("#")]
