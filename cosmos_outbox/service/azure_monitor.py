"""
Azure Monitor: the exporters of Application Insights, an extra that its connection string switches on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.service.settings import AZURE_MONITOR

# The exporter's own statistics and remote switches: in a closed network they would only log that they fail.
_PHONES_HOME = (
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED",
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL",
)


@contextmanager
def opened_azure_monitor(
    connection_string: str, *, sign_in: bool, tracer_provider: TracerProvider
) -> Iterator[tuple[SpanExporter, MetricExporter]]:
    """
    Open the exporters of spans and metrics for as long as the block lasts.

    Args:
        connection_string: of the Application Insights resource.
        sign_in: with the default Azure credential, whose identity needs the role Monitoring Metrics Publisher.
        tracer_provider: of the spans.

    Raises:
        ConfigurationError: the extra is not installed, or the connection string is invalid.
    """
    try:
        # An optional extra, whose import takes half a second.
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415
        from azure.monitor.opentelemetry.exporter import (  # noqa: PLC0415
            AzureMonitorMetricExporter,
            AzureMonitorTraceExporter,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"{AZURE_MONITOR} is set, but its exporter is not installed: pip install 'cosmos-outbox[azure-monitor]'."
        ) from error
    for name in _PHONES_HOME:
        os.environ.setdefault(name, "true")
    with ExitStack() as stack:
        credential = stack.enter_context(DefaultAzureCredential()) if sign_in else None
        # As with OTLP, drop what cannot be sent: no process would clean the disk.
        options = {
            "connection_string": connection_string,
            "credential": credential,
            "disable_offline_storage": True,
        }
        try:
            spans = AzureMonitorTraceExporter(**options, tracer_provider=tracer_provider)
            opened = spans, AzureMonitorMetricExporter(**options)
        except ValueError as error:  # it does not show the string
            raise ConfigurationError(f"{AZURE_MONITOR}: {error}") from error
        yield opened
