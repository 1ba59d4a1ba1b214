"""
Correlation: the ids that tie an event to the request and the message that caused it, per task, and to its trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_correlation_id: ContextVar[str | None] = ContextVar("cosmos_outbox.correlation_id", default=None)
_causation_id: ContextVar[str | None] = ContextVar("cosmos_outbox.causation_id", default=None)
_propagator = TraceContextTextMapPropagator()


@contextmanager
def correlated(*, correlation_id: str | None = None, causation_id: str | None = None) -> Iterator[None]:
    """
    Give the commits inside this block a correlation id (the conversation) and a causation id (the message handled).

    An omitted id keeps the value of the surrounding block.
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

    Absent ids are omitted. `traced` is False if the caller knows that there is no span.
    """
    found: dict[str, str] = {}
    if (correlation_id := _correlation_id.get()) is not None:
        found["correlationId"] = correlation_id
    if (causation_id := _causation_id.get()) is not None:
        found["causationId"] = causation_id
    if traced:
        _propagator.inject(found)  # traceparent and, if there is one, tracestate
    return found


def context_of(stored: Mapping[str, object]) -> Context:
    """
    Return the context whose current span is named by `meta`, or by the properties of a message.
    """
    carrier = {
        name: value for name in ("traceparent", "tracestate") if isinstance(value := stored.get(name), str)
    }
    return _propagator.extract(carrier, context=Context())


@contextmanager
def inside_trace(stored: Mapping[str, object]) -> Iterator[None]:
    """
    Make the commit that stored this `meta` the current span of the block, so that records and logs inside carry its trace.
    """
    token = context.attach(context_of(stored))
    try:
        yield
    finally:
        context.detach(token)
