"""
Telemetry: create the OpenTelemetry metrics and spans of a worker or a consumer, and export them. `metric_series.py` computes the
metrics' values.

Metrics are always available to Prometheus. If environment variables name an OTLP endpoint or Azure Monitor, metrics and spans are sent
there, too.
"""

from __future__ import annotations

import logging
import os
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from cosmos_outbox.adapters.cosmos.lean_poll_requests import SentRequest
from cosmos_outbox.correlation import messaging_attributes, meter_of
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.records import Record, level_of, names_of
from cosmos_outbox.relay.spans import Around, spans_of_sends
from cosmos_outbox_worker.metric_series import CONSUMER_SERIES, WORKER_SERIES, Count
from cosmos_outbox_worker.request_charges import charge_of
from cosmos_outbox_worker.version import version

SENT, CONSUMED = "messaging.client.sent.messages", "messaging.client.consumed.messages"
OPERATIONS, CHARGES = "messaging.client.operation.duration", "azure.cosmosdb.client.operation.request_charge"
AZURE_MONITOR = "APPLICATIONINSIGHTS_CONNECTION_STRING"
_EXPORT_SECONDS = 3.0  # how long a process that ends waits for its exporters, which may get no answer
# Settings for the Azure Monitor exporter. Logs are not exported, because they go to standard error. The exporter's own statistics and its
# remote configuration are off, because in a network without internet access they would only log failures.
_QUIET = {
    "OTEL_LOGS_EXPORTER": "none",
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED": "true",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED": "true",
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL": "true",
}

_logger = logging.getLogger(__name__)
_WORDS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("series.toml").read_text())


class Telemetry:
    """
    The OpenTelemetry instruments of a process. As a hook, it is called with each record that a worker or consumer reports, and counts it.

    The event loop sets `observed` to the last health snapshot. The threads of exporters read the values of the gauges from it.

    Args:
        provider: creates the instruments.
        consumer: whether the instruments are those of a consumer. Defaults to False: those of a worker.
        tracer_provider: creates the spans. Defaults to a provider that creates none.
        registry: the Prometheus registry. Defaults to an empty one.
        container: the container of these measurements, added as an attribute if the process works on several. Defaults to none.
        family: the telemetry of the other containers of this process, which shares the instruments. Defaults to none.
    """

    def __init__(
        self,
        provider: MeterProvider,
        *,
        consumer: bool = False,
        tracer_provider: trace.TracerProvider | None = None,
        registry: CollectorRegistry | None = None,
        container: str = "",
        family: list[Telemetry] | None = None,
    ) -> None:
        self._of = {"outbox.container": container} if container else {}
        self._family = [] if family is None else family
        self._family.append(self)
        self.observed: Any = None  # the last health snapshot
        self.tracer_provider = spans = tracer_provider or trace.NoOpTracerProvider()
        self._registry = shown = registry or CollectorRegistry()
        # A function that creates the telemetry of another container of the same process
        self.beside = partial(Telemetry, provider, tracer_provider=spans, registry=shown, family=self._family)
        self.meter_provider, meter = provider, meter_of(provider)
        self._loud: dict[int, tuple[Counter, str]] = {}
        for level, word in ((logging.ERROR, "alarm"), (logging.WARNING, "warning")):
            counter = meter.create_counter(f"outbox.{word}s", **_WORDS[f"outbox.{word}s"])
            self._loud[level] = counter, f"outbox.{word}"
            # Start each series at zero: an alert on an increase would miss a series whose first value is 1.
            for name in names_of(level):
                counter.add(0, {f"outbox.{word}": name, **self._of})
        counters, histograms, gauges = CONSUMER_SERIES if consumer else WORKER_SERIES
        name = CONSUMED if consumer else SENT
        self._messages = meter.create_counter(name, **_WORDS[name])
        self._operations = meter.create_histogram(OPERATIONS, **_WORDS[OPERATIONS])
        self._charges = meter.create_histogram(CHARGES, **_WORDS[CHARGES])
        self._measured: list[tuple[type, Histogram, Count]] = []
        for name, (kind, measure) in histograms.items():
            self._measured.append((kind, meter.create_histogram(name, **_WORDS[name]), measure))
        self._counted: dict[type, tuple[Counter, Count]] = {}
        for name, (known, counts) in counters.items():
            counter = meter.create_counter(name, **_WORDS[name])
            for attributes in known:
                counter.add(0, {**attributes, **self._of})
            self._counted |= {kind: (counter, count) for kind, count in counts.items()}
        for name, read in gauges.items():
            meter.create_observable_gauge(name, [self._reading(read)], **_WORDS[name])

    def __call__(self, record: Record) -> None:
        """Add a record to the counters and histograms of its type."""
        if loud := self._loud.get(level_of(record)):
            loud[0].add(1, {loud[1]: type(record).__name__, **self._of})
        kind = type(record)
        for measured, histogram, measure in self._measured:
            if kind is measured and (found := measure(record))[0] is not None:
                histogram.record(*self._label(*found))
        if (counted := self._counted.get(kind)) is not None:
            counter, count = counted
            counter.add(*self._label(*count(record)))

    def gauge_values(self, read: Callable[[Any], Iterable[Observation]]) -> list[Observation]:
        """Return the current values of a gauge for this container, read from the last health snapshot."""
        found = () if self.observed is None else read(self.observed)
        return [Observation(*self._label(one.value, one.attributes)) for one in found]

    def _label(self, value: Any, attributes: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return value, {**(attributes or {}), **self._of}

    def around_sends(self, system: str, server_address: str | None, topics: Iterable[str]) -> Around:
        """
        Return a context manager that encloses each send to a topic. It makes a span, measures the time, and counts the messages,
        including those that the broker did not accept.

        Args:
            system: the kind of broker, for the attributes.
            server_address: the host of the broker, for the attributes.
            topics: all topics to which the process sends.
        """
        spans = spans_of_sends(self.tracer_provider, system=system, server_address=server_address)
        of = {
            topic: self._of | messaging_attributes("send", topic, None, server_address, system=system)
            for topic in topics
        }
        # Start each series at zero: an alert on an increase would miss a series whose first value is 1.
        for named in of.values():
            self._messages.add(0, named)

        @contextmanager
        def around(topic: str, messages: Sequence[OutboundMessage]) -> Iterator[None]:
            named, accepted = of[topic], len(messages)
            try:
                with self.measure_operation(named, "send"), spans(topic, messages):
                    yield
            except BaseException as error:
                accepted = getattr(error, "accepted", 0)
                self._messages.add(len(messages) - accepted, {**named, "error.type": type(error).__name__})
                raise
            finally:
                self._messages.add(accepted, named)

        return around

    @contextmanager
    def measure_operation(self, named: Mapping[str, str], kind: str) -> Iterator[None]:
        """Measure the duration of an operation at the broker for as long as the block lasts, even if the operation fails."""
        began, operation = monotonic(), {**named, "messaging.operation.type": kind}
        try:
            yield
        except BaseException as error:
            operation["error.type"] = type(error).__name__
            raise
        finally:
            self._operations.record(monotonic() - began, operation)

    def count_messages(self, source: Mapping[str, str], messages: int) -> None:
        """Count messages that were received from a subscription or queue."""
        self._messages.add(messages, source)

    def count_charge(self, request: SentRequest, status: int, headers: Mapping[str, str]) -> None:
        """Record the request units of a request to Cosmos DB, if its answer reports them."""
        if charge := charge_of(request, status, headers):
            self._charges.record(*charge)

    def exposition(self) -> tuple[bytes, str]:
        """Return the metrics in the text format of Prometheus, and the content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _reading(
        self, read: Callable[[Any], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        # If several containers create the same gauge, OpenTelemetry calls only the callback of the first one. So each callback returns
        # the values of all containers.
        return lambda _: [seen for one in self._family for seen in one.gauge_values(read)]


@contextmanager
def open_telemetry(
    *, instance: str, consumer: bool = False, sign_in: bool = False, container: str = ""
) -> Iterator[Telemetry]:
    """
    Create the telemetry of a process for as long as the block lasts. The rest of the measurements is exported at the end.

    Prometheus can read the metrics unless `OTEL_SDK_DISABLED` is true. Spans and metrics are also sent to the OTLP endpoint of the
    `OTEL_…` variables, and to Azure Monitor if `APPLICATIONINSIGHTS_CONNECTION_STRING` is set.

    Args:
        instance: the name of the process.
        consumer: whether the instruments are those of a consumer. Defaults to False: those of a worker.
        sign_in: whether to use the default Azure credential for Azure Monitor. Defaults to False.
        container: the first container, if the process works on several. Defaults to none.

    Raises:
        ConfigurationError: Azure Monitor cannot be used, or the SDK refuses a variable.
    """
    program = "consumer" if consumer else "worker"
    ours = {
        "service.name": f"cosmos-outbox-{program}",
        "service.version": version(),
        "service.instance.id": instance,
    }
    # Merge the attributes here, so that OTEL_RESOURCE_ATTRIBUTES can override `ours`. The SDK would let `ours` override the variable.
    resource = Resource.create({**ours, **OTELResourceDetector().detect().attributes})
    registry = CollectorRegistry()
    with ExitStack() as stack:
        tracers: Any = None
        meters: Any = None
        try:
            # Leave out the three labels that name the instrumentation scope: all series have the same scope, so the labels say nothing.
            readers: list[MetricReader] = [
                PrometheusMetricReader(registry=registry, scope_info_enabled=False)
            ]
            if _goes_by_otlp("METRICS"):
                readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
            processors = []
            if _goes_by_otlp("TRACES"):
                processors.append(BatchSpanProcessor(OTLPSpanExporter()))
            configured = isinstance(trace.get_tracer_provider(), TracerProvider)
            configured |= isinstance(metrics.get_meter_provider(), MeterProvider)
            if os.environ.get(AZURE_MONITOR) and configured:
                _logger.warning(
                    "telemetry.configured the program has OpenTelemetry providers of its own, and a process can have Azure "
                    "Monitor only once: this worker or consumer exports metrics to Prometheus and OTLP, not to Azure Monitor"
                )
            elif os.environ.get(AZURE_MONITOR):
                _configure_azure_monitor(
                    connection_string=os.environ[AZURE_MONITOR],
                    sign_in=stack if sign_in else None,
                    resource=resource,
                    metric_readers=readers,
                    span_processors=processors,
                )
                # Use the providers that the Azure Monitor package has set. If an OTEL variable switches off traces or metrics, the
                # package sets no provider for them.
                tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
            if not isinstance(tracers, TracerProvider):
                tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
                for processor in processors:
                    tracers.add_span_processor(processor)
            if not isinstance(meters, MeterProvider):
                meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        except ValueError as error:
            raise ConfigurationError(f"OpenTelemetry refuses one of the OTEL_… variables: {error}") from error
        spans_leave = tracers is trace.get_tracer_provider() or processors
        stack.callback(_shut_down_in_time, tracers.shutdown)
        stack.callback(_shut_down_in_time, meters.shutdown)
        spans = tracers if spans_leave else trace.NoOpTracerProvider()
        yield Telemetry(
            meters, consumer=consumer, tracer_provider=spans, registry=registry, container=container
        )


def _goes_by_otlp(signal: str) -> bool:
    """
    Return whether the OTEL variables ask to export METRICS or TRACES by OTLP over HTTP. The exporter itself reads the endpoint and the
    other variables.
    """
    exporter = os.environ.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    endpoint, protocol = (
        os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_{what}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{what}")
        for what in ("ENDPOINT", "PROTOCOL")
    )
    if not endpoint or exporter == "none":
        return False
    supported = exporter == "otlp" and protocol in (None, "", "http/protobuf")
    # Warn and go on: a cluster may set these variables for all pods, and this worker or consumer has to run.
    if not supported:
        _logger.warning(
            "telemetry.unsupported OTEL_%s_EXPORTER must be otlp, and OTEL_EXPORTER_OTLP_PROTOCOL http/protobuf, which "
            "collectors take at port 4318; this signal is not exported",
            signal,
        )
    return supported


def _configure_azure_monitor(*, sign_in: ExitStack | None, **options: Any) -> None:
    """
    Set the global OpenTelemetry providers of the process to those of the Azure Monitor package.

    Args:
        sign_in: the stack that closes the default Azure credential, with which the exporter signs in. If it is None, the exporter uses no
            credential.
        options: arguments of `configure_azure_monitor`.

    Raises:
        ConfigurationError: the extra is not installed, or the connection string is invalid.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - a tenth of a second
        from azure.monitor.opentelemetry import configure_azure_monitor  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            f"{AZURE_MONITOR} is set, but its package is not installed: pip install 'cosmos-outbox[azure-monitor]'."
        ) from error
    try:
        configure_azure_monitor(
            **options,
            credential=sign_in and sign_in.enter_context(DefaultAzureCredential()),
            # Drop telemetry that cannot be sent, as the OTLP exporter does. If it were stored on disk, no process would ever delete it.
            disable_offline_storage=True,
            enable_live_metrics=False,
            enable_performance_counters=False,
            # Create no spans for the requests of the Azure SDKs, because each poll of the change feed would become a span.
            instrumentation_options={"azure_sdk": {"enabled": False}},
        )
    # This error of the SDK does not show the connection string, which is a secret.
    except ValueError as error:
        raise ConfigurationError(f"{AZURE_MONITOR}: {error}") from error


def _shut_down_in_time(shutdown: Callable[[], None]) -> None:
    # Shut down in a daemon thread, and wait for it only a few seconds: the SDK may wait for an exporter for ever, but the process must end.
    ending = threading.Thread(target=shutdown, name="telemetry-shutdown", daemon=True)
    ending.start()
    ending.join(_EXPORT_SECONDS)
