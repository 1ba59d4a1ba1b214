"""
Instrumentation: the tracer and the meter of this library, and what its spans and metrics call things, by OpenTelemetry's conventions.
"""

from __future__ import annotations

from functools import lru_cache

from opentelemetry import metrics, trace

SERVICE_BUS = "servicebus"  # of a publisher that names no other system
# Of the conventions that names and attributes follow
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
# As the conventions say
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # fmt: skip


def tracer_of(provider: trace.TracerProvider | None) -> trace.Tracer:
    """Return the library's tracer, of OpenTelemetry's global provider where none is given."""
    return trace.get_tracer("cosmos_outbox", None, provider, SCHEMA_URL)


def meter_of(provider: metrics.MeterProvider | None) -> metrics.Meter:
    """Return the library's meter, of OpenTelemetry's global provider where none is given."""
    return metrics.get_meter("cosmos_outbox", "", provider, SCHEMA_URL)


@lru_cache(maxsize=16)  # a caller may ask for each message, and OpenTelemetry keeps what it makes
def process_durations(provider: metrics.MeterProvider | None) -> metrics.Histogram:
    """Return what measures how long messages are processed."""
    return meter_of(provider).create_histogram(
        "messaging.process.duration",
        unit="s",
        description="How long an attempt to process a message took, with the commit of its effect.",
        explicit_bucket_boundaries_advisory=_BUCKETS,
    )


def messaging_attributes(
    operation: str, topic: str, subscription: str | None, host: str | None, *, system: str = SERVICE_BUS
) -> dict[str, str]:
    """Return what spans and metrics of an operation on messages have in common."""
    attributes = {
        "messaging.system": system,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
        "messaging.destination.subscription.name": subscription,
        "server.address": host,
    }
    return {name: value for name, value in attributes.items() if value}
