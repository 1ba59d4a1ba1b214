"""Tests of the traces that the example's programs export."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

pytestmark = pytest.mark.looptime(False)

_SHOW_NAME = """
from opentelemetry import trace
from examples.contacts.telemetry import exporting
with exporting("contacts-api"):
    print(trace.get_tracer_provider().resource.attributes["service.name"])
"""

# As in `examples.contacts.api`, create the application before telemetry is set up: its requests must be
# traced all the same.
_TAKE_REQUESTS = """
import asyncio
from fastapi import FastAPI
from opentelemetry import trace
from examples.contacts.telemetry import exporting
app = FastAPI()
@app.put("/contacts/{id}")
def put(id: str) -> None:
    with trace.get_tracer("test").start_as_current_span("outbox.commit", kind=trace.SpanKind.PRODUCER):
        pass
app.get("/healthz")(lambda: None)
async def ask(method: str, path: str) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request"}
    async def send(message: dict[str, object]) -> None:
        assert message.get("status", 200) == 200, message
    asked = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(), "scheme": "http"}
    await app({**asked, "query_string": b"", "headers": [], "server": ("127.0.0.1", 80)}, receive, send)
with exporting("contacts-api", app):
    asyncio.run(ask("GET", "/healthz"))
    asyncio.run(ask("PUT", "/contacts/ada"))
"""


@contextmanager
def ingestion() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """
    Run an ingestion endpoint of Application Insights; yield its connection string and the list of items that arrive.
    """
    items: list[dict[str, Any]] = []

    class Track(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            items.extend(sent)
            answer = {"itemsReceived": len(sent), "itemsAccepted": len(sent), "errors": []}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Track) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        key = "InstrumentationKey=00000000-0000-0000-0000-00000000beef"
        try:
            yield f"{key};IngestionEndpoint=http://127.0.0.1:{server.server_port}/", items
        finally:
            server.shutdown()
            thread.join()


def run(program: str, variables: dict[str, str]) -> str:
    """
    Run a program in a process of its own and return what it prints.

    A telemetry provider stays set for the rest of a process, so the test cannot set one in its own process.
    """
    plain = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], env=plain | variables, capture_output=True, text=True, check=True
    ).stdout


def test_a_trace_in_application_insights_begins_with_the_http_request() -> None:
    """The test also checks that requests of health probes have no trace."""
    with ingestion() as (connection_string, items):
        run(_TAKE_REQUESTS, {"APPLICATIONINSIGHTS_CONNECTION_STRING": connection_string})
    # Leave out metrics, which also arrive: the exporter sends one that describes the process.
    spans = [item for item in items if item["data"]["baseType"] != "MetricData"]
    commit, request = sorted(spans, key=lambda item: str(item["data"]["baseType"]))

    assert "PUT /contacts/{id}" == request["data"]["baseData"]["name"]
    assert "outbox.commit" == commit["data"]["baseData"]["name"]
    assert request["data"]["baseData"]["id"] == commit["tags"]["ai.operation.parentId"]
    assert request["tags"]["ai.operation.id"] == commit["tags"]["ai.operation.id"]
    assert {"contacts-api"} == {item["tags"]["ai.cloud.role"] for item in items}


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "contacts-api"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=ours"}, "ours"),
    ],
)
def test_the_environment_may_set_the_service_name_of_a_program(variables: dict[str, str], name: str) -> None:
    """Without a service name in the environment, a program is exported under its own name."""
    printed = run(_SHOW_NAME, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"} | variables)
    assert name == printed.strip()
