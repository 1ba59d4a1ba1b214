"""
Logs: one JSON object a line, or plain text on a terminal; of the Azure SDKs what the program does not report itself.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

from cosmos_outbox_worker.settings import CONTAINER

# At INFO the SDKs log every request, some 2 KB each. In an outage the Cosmos DB SDK warns of each retry, and its routing module
# logs each as an error; the Service Bus SDK logs a traceback of each refused WebSocket. The program itself
# reports the outage.
_OF_SDKS = {
    "azure": logging.WARNING,
    "uamqp": logging.WARNING,
    "azure.cosmos": logging.ERROR,
    "azure.cosmos._routing": logging.CRITICAL,
    "azure.servicebus.aio._base_handler_async": logging.CRITICAL,
}


class JsonFormatter(logging.Formatter):
    """Writes time, level, logger, message and the current span; for records of the library, also the event's name and fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if container := CONTAINER.get():
            line["container"] = container
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line["trace_id"] = trace.format_trace_id(span.trace_id)
            line["span_id"] = trace.format_span_id(span.span_id)
        event = getattr(record, "event", None)
        if event is not None:
            line["event"] = event
            line.update({name: _plain(value) for name, value in getattr(record, "fields", {}).items()})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Writes one line for each record, and the lines of a traceback indented, so that no error text can look like a record."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is the library's
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the library's
        container = CONTAINER.get()
        return printable(f"{container}: " * bool(container) + super().formatMessage(record))


def printable(text: str) -> str:
    """Return a text with its control characters escaped, so that no document and no broker can steer the terminal or forge a line."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def configure(level: str) -> None:
    """Send all logs to standard error: as plain text to a terminal, otherwise as JSON with one object a line."""
    handler = logging.StreamHandler(sys.stderr)
    plain = TextFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(plain if for_people() else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in _OF_SDKS.items():
        logging.getLogger(name).setLevel(least)
    logging.getLogger("asyncio").addFilter(names_no_leak)


def names_no_leak(record: logging.LogRecord) -> bool:
    """Say whether a log record of asyncio is about anything but a session that the Service Bus SDK left open."""
    # The SDK does not close a WebSocket that it lost or that was refused; aiohttp reports each at its garbage collection.
    return "Unclosed client session" not in record.getMessage()


def for_people() -> bool:
    """Return whether a person reads standard error, and not a program line by line."""
    return sys.stderr.isatty()


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
