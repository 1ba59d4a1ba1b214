"""
A log line is one JSON object, whatever was logged.
"""

from __future__ import annotations

import json
import logging

from opentelemetry.sdk.trace import TracerProvider

from cosmos_outbox.instrumentation import PageFailed, log_hook
from worker.logs import JsonFormatter


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("worker", logging.WARNING, __file__, 1, message, arguments, info)


def formatted(one: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(one)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_holds_time_level_logger_and_message():
    line = formatted(record("lease.lost %s", "a\nb"))
    assert {"level": "WARNING", "logger": "worker", "message": "lease.lost a\nb"} == {
        name: line[name] for name in ("level", "logger", "message")
    }
    assert str(line["time"]).endswith("+00:00")


def test_a_record_of_the_library_brings_its_event_key_and_fields(caplog):
    with caplog.at_level(logging.DEBUG, "cosmos_outbox"):
        log_hook(PageFailed(lease="l", attempt=2, delay_seconds=0.5, error=ValueError("no")))
    line = formatted(caplog.records[0])
    assert {"event": "PageFailed", "lease": "l", "attempt": 2, "error": "ValueError('no')"} == {
        name: line[name] for name in ("event", "lease", "attempt", "error")
    }


def test_an_exception_is_in_the_line():
    assert "ValueError: broken" in str(formatted(record("failed", error=ValueError("broken")))["exception"])


def test_a_line_written_inside_a_span_names_trace_and_span():
    with TracerProvider().get_tracer("test").start_as_current_span("send") as span:
        line = formatted(record("inside"))
    context = span.get_span_context()
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (line["trace_id"], line["span_id"])
    assert "trace_id" not in formatted(record("outside"))
