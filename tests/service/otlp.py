"""An OTLP/HTTP endpoint for tests, which keeps the decoded spans and metrics that exporters send to it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.patience import HUNG_SECONDS


class Receiver:
    """The spans, metrics and resources that exporters have sent to the endpoint."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.metrics: dict[str, Any] = {}
        self.resources: list[dict[str, Any]] = []
        self.services: dict[bytes, str] = {}  # for each span id, the name of the service that sent it
        self._news = asyncio.Event()

    def take_spans(self, body: bytes) -> bytes:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = [span for scope in resource.scope_spans for span in scope.spans]
            self.resources.append(values(resource.resource.attributes))
            self.services |= dict.fromkeys(
                (span.span_id for span in told), self.resources[-1]["service.name"]
            )
            self.spans += told
        self._news.set()
        return ExportTraceServiceResponse().SerializeToString()

    def take_metrics(self, body: bytes) -> bytes:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.resources.append(values(resource.resource.attributes))
            for scope in resource.scope_metrics:
                self.metrics.update({metric.name: metric for metric in scope.metrics})
        self._news.set()
        return ExportMetricsServiceResponse().SerializeToString()

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(HUNG_SECONDS):
            while not fact():
                self._news.clear()
                await self._news.wait()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def values(attributes: Any) -> dict[str, Any]:
    """Convert OTLP attributes to a dictionary of plain values."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in attributes
    }


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()

    def route(take: Callable[[bytes], bytes]) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.Response:
            body = await request.read()
            # A body of gzip begins so. If the request has the header Content-Encoding, aiohttp has unpacked the body already.
            packed = body[:2] == b"\x1f\x8b"
            return web.Response(
                body=take(gzip.decompress(body) if packed else body), content_type="application/x-protobuf"
            )

        return answer

    application = web.Application(client_max_size=2**26)
    application.add_routes(
        [
            web.post("/v1/traces", route(receiver.take_spans)),
            web.post("/v1/metrics", route(receiver.take_metrics)),
        ]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()
