"""
The worker's program: relay the events of a container to a topic until SIGTERM.

`cosmos-outbox worker` and `python -m worker` run it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from cosmos_outbox.errors import AccessDenied, ConfigurationError, OutboxError
from cosmos_outbox.service import logs, otlp
from cosmos_outbox.service.assembly import assembled
from cosmos_outbox.service.lifecycle import Aborted, run_until_signalled
from cosmos_outbox.service.settings import PREFIX, Settings, load, unknown_variables

EXIT_CODES = (
    "Exit codes: 0 drained after a signal; 1 crashed, or aborted by a second signal; "
    "2 a setting or resource cannot be used."
)
_TELEMETRY = (
    "Telemetry, besides /metrics: OTEL_EXPORTER_OTLP_ENDPOINT exports it by OTLP over HTTP,",
    "APPLICATIONINSIGHTS_CONNECTION_STRING to Azure Monitor (needs cosmos-outbox[azure-monitor]).",
)

_logger = logging.getLogger("worker")


def main(arguments: Sequence[str] | None = None, *, program: str = "python -m worker") -> int:
    """
    Run the worker; return its exit code.

    Args:
        arguments: of the command line. Defaults to those of the process.
        program: its name in the usage.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        asked_for = list(arguments) in (["--help"], ["-h"])
        (sys.stdout if asked_for else sys.stderr).write(_usage(program))
        return 0 if asked_for else 2
    try:
        settings = load()
    except ConfigurationError as error:
        sys.stderr.write(f"The worker cannot start; these settings are wrong:\n{_indented(error)}\n")
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
    except Exception as error:  # noqa: BLE001 - whatever ended the worker is reported, and decides its exit code
        return _ended_by(error)
    return 0


async def _run(settings: Settings) -> None:
    async with assembled(settings) as worker:
        _logger.info("worker.started as %s, health at %s", settings.instance_name, worker.health_url)
        await run_until_signalled(worker.run(), drain=worker.drain)
    _logger.info("worker.stopped")


def _ended_by(error: Exception) -> int:
    """
    Report what ended the worker; return its exit code.
    """
    cause = error
    while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, ConfigurationError):
        sys.stderr.write(f"The worker cannot run:\n{_indented(cause)}\n")
        return 2
    if isinstance(cause, AccessDenied):
        sys.stderr.write(
            "The worker cannot run: the account of OUTBOX_COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT refuses it.\n"
            f"{_indented(cause)}\n"
        )
        return 2
    # An error of the library says what to do; any other needs its traceback.
    trace = None if isinstance(cause, OutboxError) else error
    _logger.error("worker.crashed %s: %s", type(cause).__name__, cause, exc_info=trace)
    return 1


def _usage(program: str) -> str:
    lines = [f"usage: {program}", "", "Configured by environment variables alone:", ""]
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else field.get_default()
        shown = "" if default is None or field.default_factory else f" [{default}]"
        lines.append(f"  {PREFIX}{name.upper():28} {field.description}{shown}")
    return "\n".join([*lines, "", *_TELEMETRY, "", EXIT_CODES, ""])


def _indented(error: Exception) -> str:
    return "\n".join(f"  {line}" for line in str(error).splitlines())
