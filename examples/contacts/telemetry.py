"""
Telemetry: spans go out by OTLP over HTTP where the standard `OTEL_…` variables say where to, and to Application Insights where its
connection string is set; without either, nowhere.
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
    Export the spans of this process while the block lasts; the last ones are sent at its end.

    Args:
        service: the process's name, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` gives another.
        application: gets a span for each request, in which the trace of the events that it causes begins.
        signs_in: whether Application Insights is told who sends, by the default Azure credential.
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
    # These imports take half a second, and only a program on Azure needs them.
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415
    from azure.monitor.opentelemetry.exporter import AzureMonitorTraceExporter  # noqa: PLC0415

    # Otherwise the exporter sends statistics about itself to Microsoft, and reads settings from there.
    for name in ("CONTROLPLANE_DISABLED", "SDKSTATS_DISABLED", "STATSBEAT_DISABLED_ALL"):
        os.environ.setdefault(f"APPLICATIONINSIGHTS_{name}", "true")
    exporter: SpanExporter = AzureMonitorTraceExporter(
        connection_string=os.environ[AZURE_MONITOR],
        credential=stack.enter_context(DefaultAzureCredential()) if signs_in else None,
        # The exporter would keep unsent telemetry on disk, and the file system is read-only.
        disable_offline_storage=True,
    )
    return exporter


def _begin_traces(application: FastAPI) -> None:
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor  # noqa: PLC0415

    # Each request is one span, without spans for its parts. Health probes get none.
    FastAPIInstrumentor.instrument_app(
        application, excluded_urls="healthz", exclude_spans=["receive", "send"]
    )
