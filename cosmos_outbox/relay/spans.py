"""
Spans: an OpenTelemetry span for each send to a topic, with a link to the commit of each message. `correlation.py` continues the trace of
a commit in its consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode

from cosmos_outbox.correlation import SERVICE_BUS, context_of, messaging_attributes, tracer_of
from cosmos_outbox.message_format import OutboundMessage

_MAX_LINKS = 128  # OpenTelemetry's SDKs drop further links of a span by default

Around = Callable[[str, Sequence[OutboundMessage]], AbstractContextManager[None]]


def spans_of_sends(
    tracer_provider: trace.TracerProvider | None = None,
    *,
    system: str = SERVICE_BUS,
    server_address: str | None = None,
) -> Around:
    """
    Return the function that puts a span around each send to a topic. Names and attributes follow OpenTelemetry's conventions for
    messaging.

    Args:
        tracer_provider: receives the spans. Defaults to OpenTelemetry's global one.
        system: the messaging system of the publisher. Defaults to servicebus.
        server_address: the host of the Service Bus namespace. Defaults to none.
    """
    tracer = tracer_of(tracer_provider)

    @contextmanager
    def around(topic: str, messages: Sequence[OutboundMessage]) -> Iterator[None]:
        # Start a root span. The messages of a batch come from several commits, so no single commit can be the parent: the span links to all.
        named = messaging_attributes("send", topic, None, server_address, system=system)
        named["messaging.operation.type"] = "send"
        span = tracer.start_span(f"send {topic}", kind=SpanKind.CLIENT, context=Context(), attributes=named)
        if not span.is_recording():
            yield
            return
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            span.set_attribute("messaging.batch.message_count", len(messages))
            for context in _creators(messages):
                span.add_link(context)
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise

    return around


def _creators(messages: Sequence[OutboundMessage]) -> list[trace.SpanContext]:
    """Return the span contexts of the commits that wrote the messages' events: one for each commit, however many events it wrote."""
    found: dict[str, trace.SpanContext] = {}
    for message in messages:
        parent = message.properties.get("traceparent")
        if isinstance(parent, str) and parent not in found and len(found) < _MAX_LINKS:
            context = trace.get_current_span(context_of(message.properties)).get_span_context()
            if context.is_valid:
                found[parent] = context
    return list(found.values())
