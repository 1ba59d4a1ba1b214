"""
Logs: write the log as JSON lines, or as plain text on a terminal, and leave out the log records with which the Azure SDKs would flood it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

from cosmos_outbox_worker.settings import CONTAINER

# The lowest level that is logged for each logger of the Azure SDKs. At INFO the SDKs log some 2 KB for every request. In an outage, the
# Cosmos DB SDK logs a warning and an error for each retry, and the Service Bus SDK a traceback for each refused WebSocket. These records
# are left out, because the program itself reports the outage.
_OF_SDKS = {
    "azure": logging.WARNING,
    "uamqp": logging.WARNING,
    "azure.cosmos": logging.ERROR,
    "azure.cosmos._routing": logging.CRITICAL,
    "azure.servicebus.aio._base_handler_async": logging.CRITICAL,
}


class JsonFormatter(logging.Formatter):
    """
    Writes each log record as one JSON object with the time, level, logger, message and current span. If this library wrote the log
    record, the object also has the name of what happened, such as `lease.repaired`, and its fields.
    """

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
    """
    Writes each log record as one line for a terminal. The lines of a traceback are indented, so that the text of an error cannot
    look like a log record.
    """

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is the library's
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the library's
        container = CONTAINER.get()
        return printable(f"{container}: " * bool(container) + super().formatMessage(record))


def printable(text: str) -> str:
    """
    Return a text with its control characters escaped. A text from a document or a broker could otherwise change the terminal, or
    forge a line of the log.
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def configure(level: str) -> None:
    """Write all logs to standard error: as plain text if that is a terminal, otherwise as one JSON object for each line."""
    handler = logging.StreamHandler(sys.stderr)
    plain = TextFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(plain if for_people() else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in _OF_SDKS.items():
        logging.getLogger(name).setLevel(least)
    logging.getLogger("asyncio").addFilter(names_no_leak)


def names_no_leak(record: logging.LogRecord) -> bool:
    """
    Return False for a log record of asyncio that says "Unclosed client session". As a filter, this keeps such records out of the log,
    because the Service Bus SDK causes them and an operator can do nothing about them.
    """
    # The SDK does not close the session of a WebSocket that was lost or refused, and aiohttp reports the session when Python frees it.
    return "Unclosed client session" not in record.getMessage()


def for_people() -> bool:
    """Return whether standard error is a terminal, so that a person reads it and not a program."""
    return sys.stderr.isatty()


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
