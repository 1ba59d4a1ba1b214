"""
Correlation: which request and which message caused an event. Commits of a task store these ids and the current trace in their events.

This module also has the library's tracer and meter, and the names that OpenTelemetry's conventions give to spans and metrics of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from time import monotonic

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

# The value of OpenTelemetry's attribute `messaging.system`, unless a publisher to another broker names that broker
SERVICE_BUS = "servicebus"
# The version of OpenTelemetry's conventions from which the names of spans, metrics and attributes are taken
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
# The buckets, in seconds, that OpenTelemetry's conventions recommend for durations
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # fmt: skip
# The correlation id and the causation id that commits of the current task store in their events
_ids: ContextVar[tuple[str | None, str | None]] = ContextVar(
    "cosmos_outbox.correlation", default=(None, None)
)
_propagator = TraceContextTextMapPropagator()


@contextmanager
def correlated(*, correlation_id: str | None = None, causation_id: str | None = None) -> Iterator[None]:
    """
    Give the commits inside this block two ids, which their events store. The correlation id is the same for all events that follow from one
    request. The causation id is the id of the message that is handled.

    If an id is not given, the id of the surrounding block is used.
    """
    around = _ids.get()
    token = _ids.set(
        (
            around[0] if correlation_id is None else correlation_id,
            around[1] if causation_id is None else causation_id,
        )
    )
    try:
        yield
    finally:
        _ids.reset(token)


def current_correlation(*, traced: bool = True) -> dict[str, str]:
    """
    Return what a commit stores in the `meta` of its events: this task's correlation id and causation id, and the current span in W3C form.

    An id that is not set is left out. A caller that knows that there is no span passes `traced=False`, to save time.
    """
    names = "correlationId", "causationId"
    found = {name: value for name, value in zip(names, _ids.get(), strict=True) if value is not None}
    if traced:
        _propagator.inject(found)  # adds `traceparent` and, if the span has one, `tracestate`
    return found


def tracer_of(provider: trace.TracerProvider | None) -> trace.Tracer:
    """Return the library's tracer from a provider, or from OpenTelemetry's global provider if none is given."""
    return trace.get_tracer("cosmos_outbox", None, provider, SCHEMA_URL)


def meter_of(provider: metrics.MeterProvider | None) -> metrics.Meter:
    """Return the library's meter from a provider, or from OpenTelemetry's global provider if none is given."""
    return metrics.get_meter("cosmos_outbox", "", provider, SCHEMA_URL)


# Callers ask for this histogram once for each message. It is cached, because OpenTelemetry keeps every instrument that it creates.
@lru_cache(maxsize=16)
def process_durations(provider: metrics.MeterProvider | None) -> metrics.Histogram:
    """Return the histogram that measures how long the processing of a message takes."""
    return meter_of(provider).create_histogram(
        "messaging.process.duration",
        unit="s",
        description="How long an attempt to process a message took, with the commit of its effect.",
        explicit_bucket_boundaries_advisory=_BUCKETS,
    )


def messaging_attributes(
    operation: str, topic: str, subscription: str | None, host: str | None, *, system: str = SERVICE_BUS
) -> dict[str, str]:
    """Return the attributes that all spans and metrics of an operation on messages have."""
    attributes = {
        "messaging.system": system,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
        "messaging.destination.subscription.name": subscription,
        "server.address": host,
    }
    return {name: value for name, value in attributes.items() if value}


def trace_create(
    tracer: trace.Tracer, system: str, message_id: str, correlation: Mapping[str, str]
) -> dict[str, str]:
    """Create the span `create` for one message. Return the correlation that the event stores, which now names that span."""
    attributes = messaging_attributes("create", "", None, None, system=system)
    attributes |= {"messaging.operation.type": "create", "messaging.message.id": message_id}
    if "correlationId" in correlation:
        attributes["messaging.message.conversation_id"] = correlation["correlationId"]
    with tracer.start_as_current_span("create", kind=SpanKind.PRODUCER, attributes=attributes):
        return {**correlation, **current_correlation()}


def context_of(stored: Mapping[str, object]) -> Context:
    """Return the trace context that is stored in an event's `meta`, or in the properties of a message."""
    carrier = {name: it for name in ("traceparent", "tracestate") if isinstance(it := stored.get(name), str)}
    return _propagator.extract(carrier, context=Context())


def call_inside_trace(stored: Mapping[str, object], call: Callable[[], None]) -> None:
    """Call a function inside the trace of an event's commit, so that its logs carry that trace. `stored` is the event's `meta`."""
    token = context.attach(context_of(stored))
    try:
        call()
    finally:
        context.detach(token)


@contextmanager
def processing_message(
    message_id: str,
    properties: Mapping[str, object],
    *,
    delivery_count: int,
    topic: str,
    subscription: str | None,
    tracer: trace.Tracer,
    durations: metrics.Histogram,
    correlation_id: str | None = None,
    enqueued_at: datetime | None = None,
    server_address: str | None = None,
) -> Iterator[trace.Span]:
    """
    Measure and trace the handling of a message inside this block. The span `process` continues the trace of the commit that wrote the
    event. Commits inside the block get the message's correlation id, and the message's id as their causation id.

    The correlation id is taken from the properties, or else from `correlation_id`, and never from the surrounding block.
    """
    creator = context_of(properties)
    created_by = trace.get_current_span(creator).get_span_context()
    said = properties.get("correlation-id")
    conversation = said if isinstance(said, str) and said else correlation_id or None
    enqueued = None if enqueued_at is None else int(enqueued_at.timestamp())
    measured = messaging_attributes("process", topic, subscription, server_address)
    attributes: dict[str, AttributeValue | None] = {
        **measured,
        "messaging.operation.type": "process",
        "messaging.message.id": message_id,
        "messaging.servicebus.message.delivery_count": delivery_count,
        "messaging.servicebus.message.enqueued_time": enqueued,
        "messaging.message.conversation_id": conversation,
    }
    began = monotonic()
    span = tracer.start_span(
        f"process {topic}",
        context=creator,
        kind=SpanKind.CONSUMER,
        attributes={name: value for name, value in attributes.items() if value is not None},
        links=[Link(created_by)] if created_by.is_valid else (),
    )
    token = _ids.set((conversation, message_id))
    try:
        with trace.use_span(span, end_on_exit=True):
            try:
                yield span
            except BaseException as error:
                measured["error.type"] = type(error).__name__
                span.set_attribute("error.type", measured["error.type"])
                raise
    finally:
        _ids.reset(token)
        durations.record(monotonic() - began, measured)
