"""
Correlation: the ids that tie an event to the request and to the message that caused it, per task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_correlation_id: ContextVar[str | None] = ContextVar("cosmos_outbox.correlation_id", default=None)
_causation_id: ContextVar[str | None] = ContextVar("cosmos_outbox.causation_id", default=None)
_propagator = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """
    What a commit stores in the `meta` of its events beside their origin.
    """

    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


@contextmanager
def correlated(*, correlation_id: str | None = None, causation_id: str | None = None) -> Iterator[None]:
    """
    Give the commits inside this block a correlation id (the conversation) and a causation id (the message handled).

    What is left out keeps the value of the surrounding block.
    """
    tokens = [
        (variable, variable.set(value))
        for variable, value in ((_correlation_id, correlation_id), (_causation_id, causation_id))
        if value is not None
    ]
    try:
        yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


def current_correlation() -> Correlation:
    """
    Return the ids of this task and the W3C trace context of the current OpenTelemetry span.
    """
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return Correlation(
        correlation_id=_correlation_id.get(),
        causation_id=_causation_id.get(),
        traceparent=carrier.get("traceparent"),
        tracestate=carrier.get("tracestate") or None,
    )
