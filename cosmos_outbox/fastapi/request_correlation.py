"""RequestContext: middleware that gives all commits of a request the request's correlation id and its W3C trace context."""

from __future__ import annotations

import re
import uuid

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosmos_outbox.correlation import correlated

CORRELATION_HEADER = "X-Correlation-Id"
_ACCEPTED = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_propagator = TraceContextTextMapPropagator()


class RequestContext:
    """Middleware that takes correlation id and trace from a request's headers, or creates the id, and returns the id in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(CORRELATION_HEADER, "")
        correlation_id = given if _ACCEPTED.fullmatch(given) else str(uuid.uuid4())

        scope.setdefault("state", {})["correlation_id"] = correlation_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[CORRELATION_HEADER] = correlation_id
            await send(message)

        # If FastAPI is instrumented, its span of the request is the current one, and already a child of the caller's span. Otherwise take
        # the caller's span from the headers.
        served = trace.get_current_span().get_span_context().is_valid
        token = context.attach(context.get_current() if served else _propagator.extract(headers))
        try:
            with correlated(correlation_id=correlation_id):
                await self._app(scope, receive, send_with_id)
        finally:
            context.detach(token)
