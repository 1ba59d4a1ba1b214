"""
Correlation: the ids that tie an event to the request and to the message that caused it, per task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_correlation_id: ContextVar[str | None] = ContextVar("cosmos_outbox.correlation_id", default=None)
_causation_id: ContextVar[str | None] = ContextVar("cosmos_outbox.causation_id", default=None)
_propagator = TraceContextTextMapPropagator()


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


def current_correlation(*, traced: bool = True) -> dict[str, str]:
    """
    Return what a commit stores in the `meta` of its events: the ids of this task and the current span's W3C context.

    What there is none of is left out; `traced` is False where the caller knows that there is no span.
    """
    found: dict[str, str] = {}
    if (correlation_id := _correlation_id.get()) is not None:
        found["correlationId"] = correlation_id
    if (causation_id := _causation_id.get()) is not None:
        found["causationId"] = causation_id
    if traced:
        _propagator.inject(found)  # traceparent, and tracestate where there is one
    return found
