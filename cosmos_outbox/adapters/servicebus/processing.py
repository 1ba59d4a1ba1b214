"""Processing: the context of one received message, so that its trace and its cause go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from azure.servicebus import ServiceBusReceivedMessage
from opentelemetry import trace

from cosmos_outbox.adapters.servicebus.subscription import properties_of
from cosmos_outbox.correlation import processing_message
from cosmos_outbox.messages import received_id


@contextmanager
def processing(
    message: ServiceBusReceivedMessage,
    *,
    topic: str,
    subscription: str,
    tracer_provider: trace.TracerProvider | None = None,
) -> Iterator[trace.Span]:
    """
    Handle a message inside this block: `with processing(message, topic="events", subscription="billing"):`.

    A span `process` continues the trace of the commit that raised the event. Commits inside the block carry the
    correlation id of the conversation and, as their cause, the id of this message.

    Args:
        message: as received.
        topic: where it was sent.
        subscription: where it was received.
        tracer_provider: receives the span. Defaults to OpenTelemetry's global one.
    """
    with processing_message(
        message.message_id or "",
        properties_of(message),
        delivery_count=message.delivery_count or 0,
        topic=topic,
        subscription=subscription,
        tracer=trace.get_tracer("cosmos_outbox", tracer_provider=tracer_provider),
        correlation_id=received_id(message.correlation_id),
    ) as span:
        yield span
