"""
Export OpenTelemetry spans to an OTLP endpoint or to Application Insights.

Spans are sent by OTLP over HTTP if an `OTEL_EXPORTER_OTLP_…ENDPOINT` variable is set, and to Application Insights if
`APPLICATIONINSIGHTS_CONNECTION_STRING` is set. If neither is set, no spans are sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

AZURE_MONITOR = "APPLICATIONINSIGHTS_CONNECTION_STRING"


@contextmanager
def exporting(service: str, application: FastAPI | None = None, *, signs_in: bool = False) -> Iterator[None]:
    """
    Export the spans of this process while the `with` block runs. At its end, the spans that still wait are sent.

    Args:
        service: the service name of the spans, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` gives another.
        application: a FastAPI application. Each of its requests gets a span, and the events of the request belong to its trace.
        signs_in: whether the exporter signs in to Application Insights with the default Azure credential.
    """
    with ExitStack() as stack:
        exporters: list[SpanExporter] = []
        if any(os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT") for kind in ("", "TRACES_")):
            exporters.append(OTLPSpanExporter())
        if os.environ.get(AZURE_MONITOR):
            exporters.append(_to_azure_monitor(stack, signs_in=signs_in))
        if exporters:
            resource = Resource.create(
                {"service.name": service, **OTELResourceDetector().detect().attributes}
            )
            provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            stack.callback(provider.shutdown)
            for exporter in exporters:
                provider.add_span_processor(BatchSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
            if application is not None:
                _begin_traces(application)
        yield


def _to_azure_monitor(stack: ExitStack, *, signs_in: bool) -> SpanExporter:
    # Import these here, because they take half a second and only a program on Azure needs them.
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415
    from azure.monitor.opentelemetry.exporter import AzureMonitorTraceExporter  # noqa: PLC0415

    # Without these settings, the exporter sends statistics about itself to Microsoft and fetches settings from Microsoft.
    for name in ("CONTROLPLANE_DISABLED", "SDKSTATS_DISABLED", "STATSBEAT_DISABLED_ALL"):
        os.environ.setdefault(f"APPLICATIONINSIGHTS_{name}", "true")
    exporter: SpanExporter = AzureMonitorTraceExporter(
        connection_string=os.environ[AZURE_MONITOR],
        credential=stack.enter_context(DefaultAzureCredential()) if signs_in else None,
        # The exporter would write unsent telemetry to disk, which fails because the container's file system is read-only.
        disable_offline_storage=True,
    )
    return exporter


def _begin_traces(application: FastAPI) -> None:
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor  # noqa: PLC0415

    # Create one span for each request. Leave out the spans for receiving and sending its parts, and the spans of health probes.
    FastAPIInstrumentor.instrument_app(
        application, excluded_urls="healthz", exclude_spans=["receive", "send"]
    )
