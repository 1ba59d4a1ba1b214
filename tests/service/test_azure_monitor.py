"""
Tests that spans and metrics of a worker process arrive at an ingestion endpoint of Application Insights.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox_worker.telemetry import AZURE_MONITOR, open_telemetry
from tests.support.patience import HUNG_SECONDS
from tests.support.site import opened_site

pytestmark = pytest.mark.looptime(False)

KEY = "00000000-0000-0000-0000-00000000beef"


class Ingestion:
    """
    The items that the worker sent to the ingestion endpoint, by their kind. A span is a `RemoteDependencyData`, a metric a
    `MetricData`.
    """

    def __init__(self) -> None:
        self.url = ""
        self.items: list[dict[str, Any]] = []
        self.authorizations: set[str | None] = set()
        self._news = asyncio.Event()

    async def track(self, request: web.Request) -> web.Response:
        body = await request.read()
        items = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        self.items += items
        self.authorizations.add(request.headers.get("Authorization"))
        self._news.set()
        return web.json_response({"itemsReceived": len(items), "itemsAccepted": len(items), "errors": []})

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(HUNG_SECONDS):
            while not fact():
                self._news.clear()
                await self._news.wait()

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [item["data"]["baseData"] for item in self.items if item["data"]["baseType"] == kind]

    def metrics(self) -> dict[str, dict[str, Any]]:
        return {data["metrics"][0]["name"]: data for data in self.data("MetricData")}


@pytest.fixture
async def ingestion() -> AsyncIterator[Ingestion]:
    endpoint = Ingestion()
    application = web.Application(client_max_size=2**26)
    application.add_routes([web.post("/{version:.*}track", endpoint.track)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield endpoint
    await runner.cleanup()


async def test_metrics_and_spans_of_a_worker_arrive_at_application_insights(ingestion: Ingestion):
    async with opened_site() as site:
        await site.commit(tracer_provider=TracerProvider(shutdown_on_exit=False))
        worker = await site.start_worker(
            APPLICATIONINSIGHTS_CONNECTION_STRING=f"InstrumentationKey={KEY};IngestionEndpoint={ingestion.url}/",
            OTEL_METRIC_EXPORT_INTERVAL="200",
            OTEL_BSP_SCHEDULE_DELAY="100",
        )
        await ingestion.until(
            lambda: bool(ingestion.data("RemoteDependencyData")) and "outbox.lease.age" in ingestion.metrics()
        )
        worker.process.terminate()
        assert 0 == await worker.exit_code(), worker.output
    assert "ERROR" not in worker.output
    assert {KEY} == {item["iKey"] for item in ingestion.items}
    assert {"cosmos-outbox-worker"} == {item["tags"]["ai.cloud.role"] for item in ingestion.items}
    (span,) = ingestion.data("RemoteDependencyData")
    assert ("send events", True) == (span["name"], span["success"])
    assert span["properties"]["_MS.links"], "the span lost its links to the commits"
    assert {"outbox.ttl.headroom", "outbox.leases.owned", "messaging.client.sent.messages"} <= set(
        ingestion.metrics()
    )
    assert {"outbox.lease": "0"} == ingestion.metrics()["outbox.lease.age"]["properties"]


def test_without_the_azure_monitor_packages_the_error_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "azure.monitor.opentelemetry", None)
    monkeypatch.setenv(AZURE_MONITOR, f"InstrumentationKey={KEY}")
    with (
        pytest.raises(ConfigurationError, match=r"cosmos-outbox\[azure-monitor\]"),
        open_telemetry(instance="w"),
    ):
        pass


@pytest.mark.parametrize(
    ("where", "own"),
    [
        ("opentelemetry.trace._TRACER_PROVIDER", TracerProvider(shutdown_on_exit=False)),
        ("opentelemetry.metrics._internal._METER_PROVIDER", MeterProvider(shutdown_on_exit=False)),
    ],
)
def test_the_worker_does_not_replace_a_telemetry_provider_of_its_program(
    where: str, own: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(where, own)
    monkeypatch.setenv(AZURE_MONITOR, f"InstrumentationKey={KEY}")
    with open_telemetry(instance="w") as telemetry:
        assert b"outbox_alarms_total" in telemetry.exposition()[0]
    assert "telemetry.configured" in caplog.text
    assert own in (trace.get_tracer_provider(), metrics.get_meter_provider())


async def test_a_wrong_connection_string_ends_the_worker_with_an_error():
    """The error names the variable of the wrong connection string, but not its value."""
    async with opened_site() as site:
        worker = await site.start_worker(APPLICATIONINSIGHTS_CONNECTION_STRING="InstrumentationKey=hunter2")
        assert 2 == await worker.exit_code()
        assert "APPLICATIONINSIGHTS_CONNECTION_STRING: Invalid instrumentation key" in worker.output
        assert "hunter2" not in worker.output
