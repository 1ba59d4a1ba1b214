"""
Azure Monitor: the exporters of Application Insights, which are an extra and asked for by their connection string.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from azure.identity import DefaultAzureCredential
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from cosmos_outbox.errors import ConfigurationError

VARIABLE = "APPLICATIONINSIGHTS_CONNECTION_STRING"
# Statistics about the exporter for its vendor, and switches that the vendor turns from afar: a worker in a closed
# network would only log that it cannot reach them.
_CALLS_HOME = (
    "APPLICATIONINSIGHTS_CONTROLPLANE_DISABLED",
    "APPLICATIONINSIGHTS_SDKSTATS_DISABLED",
    "APPLICATIONINSIGHTS_STATSBEAT_DISABLED_ALL",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureMonitor:
    """
    Where spans and metrics go out.
    """

    spans: SpanExporter
    metrics: MetricExporter


@contextmanager
def opened_azure_monitor(
    connection_string: str, *, sign_in: bool, tracer_provider: TracerProvider
) -> Iterator[AzureMonitor]:
    """
    Open the exporters for as long as the block lasts.

    Args:
        connection_string: of the Application Insights resource; it says where to, and opens nothing by itself where
            local authentication is off.
        sign_in: with the default Azure credential, whose identity then needs the role Monitoring Metrics Publisher.
        tracer_provider: of the spans; its resource goes out with them.

    Raises:
        ConfigurationError: the extra is not installed, or the connection string is none.
    """
    try:
        # Only here: it is an extra, and its import takes half a second.
        from azure.monitor.opentelemetry.exporter import (  # noqa: PLC0415
            AzureMonitorMetricExporter,
            AzureMonitorTraceExporter,
        )
    except ImportError as error:
        raise ConfigurationError(
            f"{VARIABLE} is set, but what exports to it is not installed: pip install 'cosmos-outbox[azure-monitor]'."
        ) from error
    for name in _CALLS_HOME:
        os.environ.setdefault(name, "true")
    with ExitStack() as stack:
        credential = stack.enter_context(DefaultAzureCredential()) if sign_in else None
        # What could not be sent is given up, as with OTLP, instead of being kept on a disk that nobody cleans.
        options = {
            "connection_string": connection_string,
            "credential": credential,
            "disable_offline_storage": True,
        }
        try:
            opened = AzureMonitor(
                spans=AzureMonitorTraceExporter(**options, tracer_provider=tracer_provider),
                metrics=AzureMonitorMetricExporter(**options),
            )
        except ValueError as error:  # it says what is wrong without saying the string
            raise ConfigurationError(f"{VARIABLE}: {error}") from error
        yield opened
