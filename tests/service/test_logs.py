"""Tests of the log of worker and consumer: each line is one JSON object, whatever text it contains."""

from __future__ import annotations

import json
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider

from cosmos_outbox.adapters.memory.broker import Fault, MemoryBroker
from cosmos_outbox.adapters.memory.parked import MemoryParked
from cosmos_outbox.parking import Parking
from cosmos_outbox.records import PageFailed, log_hook
from cosmos_outbox.relay import Relay
from cosmos_outbox_worker.logs import JsonFormatter, TextFormatter, configure
from tests.support.event_documents import batch, event


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("worker", logging.WARNING, __file__, 1, message, arguments, info)


def formatted(one: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(one)
    assert "\n" not in text
    return json.loads(text)


def test_a_log_line_has_time_level_logger_and_message():
    line = formatted(record("lease.lost %s", "a\nb"))
    assert {"level": "WARNING", "logger": "worker", "message": "lease.lost a\nb"} == {
        name: line[name] for name in ("level", "logger", "message")
    }
    assert str(line["time"]).endswith("+00:00")


def test_a_log_line_of_a_record_has_its_event_name_and_fields(caplog):
    with caplog.at_level(logging.DEBUG, "cosmos_outbox"):
        log_hook(
            PageFailed(lease="l", outcome="retried", attempt=2, delay_seconds=0.5, error=ValueError("no"))
        )
    line = formatted(caplog.records[0])
    assert {"event": "PageFailed", "outcome": "retried", "attempt": 2, "error": "ValueError('no')"} == {
        name: line[name] for name in ("event", "outcome", "attempt", "error")
    }


def test_a_log_line_inside_a_span_has_trace_and_span_id():
    with TracerProvider().get_tracer("test").start_as_current_span("send") as span:
        line = formatted(record("inside"))
    context = span.get_span_context()
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (line["trace_id"], line["span_id"])
    assert "trace_id" not in formatted(record("outside"))


async def test_a_log_line_about_events_has_the_trace_of_their_commit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """If the events are from several commits, the line has the trace of the first commit."""
    monkeypatch.setattr(caplog.handler, "formatter", JsonFormatter())  # so `caplog.text` has JSON lines
    broker = MemoryBroker(rejects=lambda message: message.message_id == "a/1")
    broker.faults.append(Fault.NO_TOPIC)
    traces = [f"{number:032x}" for number in (1, 2, 3)]
    events = [
        event(key, number, traceparent=f"00-{trace}-b7ad6b7169203331-01")
        | {"ttl": 1000, "_ts": 1_000_000_000}
        for key, number, trace in zip("aab", (1, 2, 1), traces, strict=True)
    ]
    with caplog.at_level(logging.DEBUG, "cosmos_outbox"):
        await Relay(broker.publisher(lanes=1), parking=Parking(MemoryParked()))(batch(*events))
        await Relay(broker.publisher())(batch(event("c", traceparent="nonsense")))
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    assert {
        ("PublishFailed", traces[0]),
        ("EventRejected", traces[0]),
        ("MessagesPublished", traces[2]),
        ("KeyParked", traces[0]),
        ("EventsHeld", traces[1]),
        ("MessagesPublished", None),
    } == {(line["event"], line.get("trace_id")) for line in lines}


@pytest.fixture
def configured(logging_of_a_program: None) -> None:
    configure("INFO")


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("azure.servicebus", logging.WARNING),
        ("azure.cosmos.LocationCache", logging.ERROR),
        ("azure.cosmos._routing.aio.routing_map_provider", logging.CRITICAL),
        ("azure.servicebus.aio._base_handler_async", logging.CRITICAL),
    ],
)
def test_the_sdks_log_messages_about_retries_are_suppressed(name: str, least: int):
    assert least == logging.getLogger(name).getEffectiveLevel()


@pytest.mark.usefixtures("configured")
def test_messages_about_client_sessions_that_an_sdk_left_open_are_suppressed(
    caplog: pytest.LogCaptureFixture,
):
    asyncio_log = logging.getLogger("asyncio")
    for text in ("Unclosed client session\nclient_session: <x>", "Task exception was never retrieved"):
        asyncio_log.error(text)
    assert ["Task exception was never retrieved"] == caplog.messages


def test_control_characters_in_a_log_message_are_escaped():
    """
    So the text of a document in a log line can neither control the operator's terminal nor forge another
    line.
    """
    key = "k\x1b[2J\n2026-01-01 INFO worker forged\u202e é"
    line = TextFormatter("%(levelname)s %(message)s").format(record("message.given_up key=%s", key))
    assert line == "WARNING message.given_up key=k\\x1b[2J\\n2026-01-01 INFO worker forged\\u202e é"


def test_the_lines_of_a_traceback_are_indented_and_escaped():
    error = KeyError("k")
    error.__cause__ = ValueError("no\x1b[2J\n2026-01-01 INFO worker forged")
    first, *traceback = TextFormatter("%(message)s").format(record("failed", error=error)).splitlines()
    assert "failed" == first
    assert all(line.startswith("    ") and line.isprintable() for line in traceback)
    assert "    2026-01-01 INFO worker forged" in traceback
