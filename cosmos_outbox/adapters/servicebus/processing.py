"""
Processing: the context of one received message, so that its trace and its cause go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind
from opentelemetry.util.types import AttributeValue

from cosmos_outbox.correlation import context_of, correlated


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
    properties = {_text(name): _text(value) for name, value in (message.application_properties or {}).items()}
    creator = context_of(properties)
    created_by = trace.get_current_span(creator).get_span_context()
    tracer = trace.get_tracer("cosmos_outbox", tracer_provider=tracer_provider)
    correlation_id = properties.get("correlation-id")
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "servicebus",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": topic,
        "messaging.destination.subscription.name": subscription,
        "messaging.message.id": message.message_id or "",
        "messaging.servicebus.message.delivery_count": message.delivery_count or 0,
    }
    if correlation_id:
        attributes["messaging.message.conversation_id"] = correlation_id
    with (
        tracer.start_as_current_span(
            f"process {topic}",
            context=creator,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(created_by)] if created_by.is_valid else (),
        ) as span,
        correlated(correlation_id=correlation_id, causation_id=message.message_id),
    ):
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            raise


def _text(value: Any) -> Any:
    # The SDK hands keys and strings of application properties over as bytes.
    return value.decode() if isinstance(value, bytes) else value
