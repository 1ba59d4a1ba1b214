"""
Exporters: Prometheus always; OTLP and Azure Monitor where they are configured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.service.azure_monitor import opened_azure_monitor
from cosmos_outbox.service.otlp import Signal, destination
from cosmos_outbox.service.settings import AZURE_MONITOR
from cosmos_outbox.service.telemetry import Telemetry

_EXPORT_SECONDS = 3.0  # how long a process that ends waits for an exporter that does not answer


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
    topic: str | None,
    instance: str,
    environ: Mapping[str, str],
    sign_in: bool = False,
) -> Iterator[OpenedTelemetry]:
    """
    Open telemetry for as long as the block lasts; its end exports what is left.

    Prometheus always has the metrics, unless `OTEL_SDK_DISABLED`. Spans and metrics also go to the OTLP endpoint of the
    `OTEL_…` variables, and to Azure Monitor if `APPLICATIONINSIGHTS_CONNECTION_STRING` is set; `sign_in` then uses the
    default Azure credential.

    `topic` is what a worker sends to; None opens the telemetry of a consumer.

    Raises:
        ConfigurationError: the exporter of Azure Monitor cannot be used, or the SDK refuses a variable.
    """
    program = "worker" if topic is not None else "consumer"
    ours = {"service.name": f"cosmos-outbox-{program}", "service.instance.id": instance}
    # The environment wins over these names; the SDK would merge them the other way round.
    resource = Resource.create({**ours, **OTELResourceDetector().detect().attributes})
    registry = CollectorRegistry()
    metric_exporters: list[MetricExporter] = []
    span_exporters: list[SpanExporter] = []
    if url := destination(Signal.METRICS, environ):
        metric_exporters.append(OTLPMetricExporter(url))
    if url := destination(Signal.TRACES, environ):
        span_exporters.append(OTLPSpanExporter(url))
    with ExitStack() as stack:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        stack.callback(_ended_in_time, tracers.shutdown)
        if connection_string := environ.get(AZURE_MONITOR):
            spans, metrics = stack.enter_context(
                opened_azure_monitor(connection_string, sign_in=sign_in, tracer_provider=tracers)
            )
            metric_exporters.append(metrics)
            span_exporters.append(spans)
        try:
            for span_exporter in span_exporters:
                tracers.add_span_processor(BatchSpanProcessor(span_exporter))
            readers = [
                # There is one scope: its three labels would say nothing.
                PrometheusMetricReader(registry=registry, scope_info_enabled=False),
                *map(PeriodicExportingMetricReader, metric_exporters),
            ]
            meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        except ValueError as error:
            raise ConfigurationError(f"OpenTelemetry refuses one of the OTEL_… variables: {error}") from error
        stack.callback(_ended_in_time, meters.shutdown)
        yield OpenedTelemetry(
            Telemetry(meters, topic=topic),
            tracers if span_exporters else trace.NoOpTracerProvider(),
            registry,
        )


def _ended_in_time(shutdown: Callable[[], None]) -> None:
    # In a daemon thread: the SDK waits for as long as its exporters do, and the process must end.
    ending = threading.Thread(target=shutdown, name="telemetry-shutdown", daemon=True)
    ending.start()
    ending.join(_EXPORT_SECONDS)
