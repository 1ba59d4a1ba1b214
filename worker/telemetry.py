"""
Telemetry: what hooks tell becomes OpenTelemetry metrics, for Prometheus always and for OTLP where it is configured.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from cosmos_outbox.instrumentation import (
    EventRejected,
    EventsDeleted,
    EventsHeld,
    LeaseAcquired,
    LeaseClosed,
    LeaseHalted,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
    Record,
    level_of,
)
from worker.azure_monitor import VARIABLE, opened_azure_monitor
from worker.vitals import Snapshot

_SERVICE = "cosmos-outbox-worker"
_EXPORT_SECONDS = 3.0  # how long the end of the process waits for an exporter that does not answer
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Telemetry:
    """
    The worker's instruments; a hook. `observed` is what the gauges show, told from the event loop, read by any thread.
    """

    def __init__(self, provider: MeterProvider, *, topic: str) -> None:
        self.observed: Snapshot | None = None
        meter = provider.get_meter("cosmos_outbox", version("cosmos-outbox"))
        self._destination = {
            "messaging.system": "servicebus",
            "messaging.destination.name": topic,
            "messaging.operation.name": "send",
        }
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Messages that the topic accepted.",
        )
        self._send_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="How long the topic took to accept the messages of one call.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._send_failures = meter.create_counter(
            "outbox.send.failures", unit="{attempt}", description="Sends that are tried again."
        )
        self._rejected = meter.create_counter(
            "outbox.events.rejected",
            unit="{event}",
            description="Refusals of an event that can never be sent.",
        )
        self._handled = meter.create_counter(
            "outbox.changes.handled", unit="{change}", description="Changes read from the feed and done with."
        )
        self._page_failures = meter.create_counter(
            "outbox.page.failures", unit="{attempt}", description="Pages that are tried again."
        )
        self._halts = meter.create_counter(
            "outbox.lease.halts",
            unit="{halt}",
            description="Alarms: a range stands still until somebody acts.",
        )
        self._moves = meter.create_counter(
            "outbox.lease.moves", unit="{move}", description="Leases that came to this worker or left it."
        )
        self._request_units = meter.create_counter(
            "outbox.request_units", unit="{request_unit}", description="What reading the change feed cost."
        )
        self._alarms = meter.create_counter(
            "outbox.alarms", unit="{alarm}", description="Records of the severity ERROR, by what happened."
        )
        self._warnings = meter.create_counter(
            "outbox.warnings",
            unit="{warning}",
            description="Records of the severity WARNING, by what happened.",
        )
        self._held = meter.create_counter(
            "outbox.events.held",
            unit="{event}",
            description="Later events put behind a parked one of their key.",
        )
        self._deleted = meter.create_counter(
            "outbox.events.deleted", unit="{event}", description="Events deleted after they were sent."
        )
        self._counted: dict[type, Callable[[Any], None]] = {
            MessagesPublished: self._published,
            PublishFailed: lambda record: self._send_failures.add(1, _error_of(record)),
            EventRejected: lambda record: self._rejected.add(1),
            EventsHeld: lambda record: self._held.add(record.events),
            EventsDeleted: lambda record: self._deleted.add(record.events),
            PageHandled: lambda record: self._handled.add(record.changes),
            PageFailed: lambda record: self._page_failures.add(1, _error_of(record)),
            LeaseHalted: lambda record: self._halts.add(1),
            LeaseAcquired: lambda record: self._moves.add(1, {"outbox.lease.move": "acquired"}),
            LeaseClosed: lambda record: self._moves.add(1, {"outbox.lease.move": str(record.reason)}),
        }
        for name, unit, description, read in _GAUGES:
            meter.create_observable_gauge(name, [self._reading(read)], unit=unit, description=description)

    def __call__(self, record: Record) -> None:
        """
        Count a record.
        """
        level, name = level_of(record), type(record).__name__
        if level >= logging.ERROR:
            self._alarms.add(1, {"outbox.alarm": name})
        elif level >= logging.WARNING:
            self._warnings.add(1, {"outbox.warning": name})
        counting = self._counted.get(type(record))
        if counting is not None:
            counting(record)

    def _published(self, record: MessagesPublished) -> None:
        self._sent.add(record.messages, self._destination)
        self._send_duration.record(record.seconds, self._destination)

    def charged(self, request_units: float) -> None:
        """
        Count what a read of the feed cost.
        """
        self._request_units.add(request_units, {"outbox.operation": "read_feed"})

    def _reading(
        self, read: Callable[[Snapshot], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: read(self.observed) if self.observed is not None else ()


def _error_of(record: PublishFailed | PageFailed) -> dict[str, str]:
    return {"error.type": type(record.error).__name__}


# What was seen is no longer told once nobody can look any more, but for what is certain: that it gets older.


def _lag(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in snapshot.lag.leases if snapshot.lag and not snapshot.unseen else ():
        yield Observation(lease.transactions, {"outbox.lease": lease.token})


def _ages(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in snapshot.lag.leases if snapshot.lag else ():
        age = (lease.oldest_age or timedelta(0)) + snapshot.unseen
        yield Observation(age.total_seconds(), {"outbox.lease": lease.token})


def _headroom(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.lag:
        oldest = (snapshot.lag.oldest_age or timedelta(0)) + snapshot.unseen
        yield Observation((snapshot.event_ttl - oldest).total_seconds())


def _parked_keys(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.parked:
        yield Observation(snapshot.parked.count)


def _parked_events(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.parked and snapshot.parked.events is not None:
        yield Observation(snapshot.parked.events)


def _unowned(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.lag and not snapshot.unseen:
        yield Observation(sum(1 for lease in snapshot.lag.leases if not lease.owner))


# Lag is told by every worker for all leases: whoever still runs tells of the leases of those that do not.
_GAUGES: tuple[tuple[str, str, str, Callable[[Snapshot], Iterable[Observation]]], ...] = (
    ("outbox.lease.lag", "{transaction}", "Transactions that wait in a range, whoever owns its lease.", _lag),
    (
        "outbox.oldest_unsent.age",
        "s",
        "Age of the oldest change that waits, or may wait unseen, in a range; 0 where none does.",
        _ages,
    ),
    (
        "outbox.ttl.headroom",
        "s",
        "Time until the oldest change that waits may be deleted unsent (OUTBOX_EVENT_TTL_SECONDS less its age).",
        _headroom,
    ),
    ("outbox.parked.keys", "{key}", "Partition keys that wait for an operator.", _parked_keys),
    (
        "outbox.parked.events",
        "{event}",
        "Events they hold, where there are not too many keys to count.",
        _parked_events,
    ),
    ("outbox.leases.free", "{lease}", "Leases that nobody owns.", _unowned),
    (
        "outbox.leases.owned",
        "{lease}",
        "Leases of this worker.",
        lambda snapshot: [Observation(len(snapshot.mine))],
    ),
    (
        "outbox.leases.stalled",
        "{lease}",
        "Leases of this worker that stand still.",
        lambda snapshot: [Observation(sum(lease.stalled for lease in snapshot.mine))],
    ),
    (
        "outbox.worker.ready",
        "1",
        "1 where the worker is ready, else 0.",
        lambda snapshot: [Observation(int(not snapshot.unready))],
    ),
)


class OpenedTelemetry:
    """
    Instruments, spans and the Prometheus exposition of one process.
    """

    def __init__(
        self, instruments: Telemetry, tracer_provider: trace.TracerProvider, registry: CollectorRegistry
    ) -> None:
        self.instruments, self.tracer_provider = instruments, tracer_provider
        self._registry = registry

    def exposition(self) -> tuple[bytes, str]:
        """
        Return the metrics as Prometheus reads them, and their content type.
        """
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


@contextmanager
def opened_telemetry(
    *,
    topic: str,
    instance: str,
    environ: Mapping[str, str],
    sign_in: bool = False,
    export_every_seconds: float | None = None,
) -> Iterator[OpenedTelemetry]:
    """
    Set telemetry up for as long as the block lasts; what is left is exported at its end.

    Metrics are always there for Prometheus. Spans and metrics also go out by OTLP over HTTP where one of the standard
    variables `OTEL_EXPORTER_OTLP_ENDPOINT`, `…_TRACES_ENDPOINT`, `…_METRICS_ENDPOINT` says where to; all other
    `OTEL_…` variables count as the OpenTelemetry SDK documents them. They go to Azure Monitor where
    `APPLICATIONINSIGHTS_CONNECTION_STRING` is set; `sign_in` says whether with the default Azure credential.

    Raises:
        ConfigurationError: Azure Monitor is asked for, and its exporter cannot be used.
    """
    resource = Resource.create(
        {"service.instance.id": instance}
        | ({} if environ.get("OTEL_SERVICE_NAME") else {"service.name": _SERVICE})
    )
    general = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    registry = CollectorRegistry()
    every = None if export_every_seconds is None else export_every_seconds * 1000
    metric_exporters: list[MetricExporter] = []
    span_exporters: list[SpanExporter] = []
    if general or environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        metric_exporters.append(OTLPMetricExporter())
    if general or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        span_exporters.append(OTLPSpanExporter())
    with ExitStack() as stack:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        stack.callback(_ended_in_time, tracers.shutdown)
        if connection_string := environ.get(VARIABLE):
            azure = stack.enter_context(
                opened_azure_monitor(connection_string, sign_in=sign_in, tracer_provider=tracers)
            )
            metric_exporters.append(azure.metrics)
            span_exporters.append(azure.spans)
        for span_exporter in span_exporters:
            tracers.add_span_processor(BatchSpanProcessor(span_exporter))
        readers = [
            PrometheusMetricReader(registry=registry),
            *(
                PeriodicExportingMetricReader(exporter, export_interval_millis=every)
                for exporter in metric_exporters
            ),
        ]
        meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        stack.callback(_ended_in_time, meters.shutdown)
        yield OpenedTelemetry(
            Telemetry(meters, topic=topic),
            tracers if span_exporters else trace.NoOpTracerProvider(),
            registry,
        )


def _ended_in_time(shutdown: Callable[[], None]) -> None:
    """
    Export what is left, in a thread, for the SDK's processors wait as long as their exporters do; given up, it dies with
    the process.
    """
    ending = threading.Thread(target=shutdown, name="telemetry-shutdown", daemon=True)
    ending.start()
    ending.join(_EXPORT_SECONDS)
