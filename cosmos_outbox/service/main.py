"""
The worker's program: relay the events of a container to a topic, until SIGTERM. `python -m worker` runs it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from cosmos_outbox.errors import AccessDenied, ConfigurationError, OutboxError
from cosmos_outbox.service import logs, otlp
from cosmos_outbox.service.assembly import assembled
from cosmos_outbox.service.environment import load, unknown_variables
from cosmos_outbox.service.lifecycle import Aborted, run_until_signalled
from cosmos_outbox.service.settings import Settings

EXIT_CODES = (
    "Exit codes: 0 drained after a signal; 1 crashed, or aborted by a second signal; "
    "2 a setting or resource cannot work."
)
_TELEMETRY = (
    "Telemetry, besides /metrics: OTEL_EXPORTER_OTLP_ENDPOINT sends it out by OTLP over HTTP,",
    "APPLICATIONINSIGHTS_CONNECTION_STRING to Azure Monitor (needs cosmos-outbox[azure-monitor]).",
)

_logger = logging.getLogger("worker")


def main() -> int:
    """
    Run the worker; return its exit code.
    """
    if len(sys.argv) > 1:
        return _usage(asked_for=sys.argv[1:] in (["--help"], ["-h"]))
    try:
        settings = load()
    except ConfigurationError as error:
        sys.stderr.write(f"The worker cannot start; these settings are wrong:\n{_indented(str(error))}\n")
        return 2
    logs.configure(settings.log_level, settings.log_format)
    for sentence in unknown_variables(os.environ):
        _logger.warning("settings.unknown %s", sentence)
    for sentence in otlp.unsupported_in(os.environ):
        _logger.warning("telemetry.unsupported %s", sentence)
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        _logger.warning("telemetry.off OTEL_SDK_DISABLED is true: nothing is measured, and /metrics is empty")
    try:
        asyncio.run(_run(settings))
    except Aborted:
        return 1
    except Exception as error:  # noqa: BLE001 - whatever ended the worker is told, and decides its exit code
        return _ended_by(error)
    return 0


def _ended_by(error: Exception) -> int:
    """
    Tell what ended the worker; return its exit code.
    """
    cause = _cause(error)
    if isinstance(cause, ConfigurationError):
        sys.stderr.write(f"The worker cannot run:\n{_indented(str(cause))}\n")
        return 2
    if isinstance(cause, AccessDenied):
        sys.stderr.write(
            "The worker cannot run: Cosmos DB refuses the key of OUTBOX_COSMOS_CONNECTION_STRING, or the identity "
            f"lacks a data-plane role on the account of OUTBOX_COSMOS_ENDPOINT.\n{_indented(str(cause))}\n"
        )
        return 2
    # An error of the library says by itself what to do; of any other, only the trace tells.
    trace = None if isinstance(cause, OutboxError) else error
    _logger.error("worker.crashed %s: %s", type(cause).__name__, cause, exc_info=trace)
    return 1


async def _run(settings: Settings) -> None:
    async with assembled(settings) as worker:
        _logger.info("worker.started as %s, health at %s", settings.instance_name, worker.health_url)

        def drain() -> None:
            worker.vitals.drain()
            worker.processor.stop()

        await run_until_signalled(worker.processor.run(), drain=drain, beside=worker.watch())
    _logger.info("worker.stopped")


def _cause(error: Exception) -> Exception:
    """
    Return what is in a group of one: the mistake of a setting is no less a mistake where a task found it.
    """
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _usage(*, asked_for: bool) -> int:
    lines = ["usage: python -m worker", "", "Configured by environment variables alone:", ""]
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else field.get_default()
        shown = "" if default is None or field.default_factory else f" [{default}]"
        lines.append(f"  OUTBOX_{name.upper():28} {field.description}{shown}")
    lines += ["", *_TELEMETRY, "", EXIT_CODES]
    (sys.stdout if asked_for else sys.stderr).write("\n".join(lines) + "\n")
    return 0 if asked_for else 2


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
