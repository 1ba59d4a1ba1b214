"""
The entry points of `cosmos-outbox worker`, which sends events, and `cosmos-outbox consume`, which handles messages, until SIGTERM.
`lifecycle.py` handles the signals.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from pydantic.fields import FieldInfo

from cosmos_outbox.consumer.handler_threads import DaemonThreads
from cosmos_outbox.errors import AccessDenied, ConfigurationError, OutboxError
from cosmos_outbox_worker import logs
from cosmos_outbox_worker.consumer_assembly import assemble_consumer
from cosmos_outbox_worker.consumer_settings import CONSUMER_FIELDS, load_consumer
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.lifecycle import Aborted, end_without_what_stays, run_until_signalled
from cosmos_outbox_worker.named_consumer import consumer_named
from cosmos_outbox_worker.program import Program
from cosmos_outbox_worker.settings import PREFIX, Settings, SettingsT, load, unknown_variables
from cosmos_outbox_worker.several_containers import assemble_for
from cosmos_outbox_worker.version import version

EXIT_CODES = (
    f"Exit codes: {ExitCode.DONE} drained after a signal; {ExitCode.WARNED} crashed, or aborted by a second signal; "
    f"{ExitCode.UNUSABLE} a setting or resource cannot be used."
)
_TELEMETRY = (
    "Telemetry, besides /metrics: OTEL_EXPORTER_OTLP_ENDPOINT exports it by OTLP over HTTP,",
    "APPLICATIONINSIGHTS_CONNECTION_STRING to Azure Monitor (needs cosmos-outbox[azure-monitor]).",
)


def work(arguments: Sequence[str]) -> int:
    """Run `cosmos-outbox worker` until a signal ends it. Return its exit code."""
    if arguments:
        return _print_usage(_usage("worker", Settings.model_fields), arguments)
    return _run_to_end("worker", load, assemble_for)


def consume(arguments: Sequence[str]) -> int:
    """Run `cosmos-outbox consume MODULE:NAME` until a signal ends it. Return its exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return _print_usage(_usage("consume package.module:consumer", CONSUMER_FIELDS), arguments)
    named = arguments[0]
    return _run_to_end(
        "consumer", load_consumer, lambda it: assemble_consumer(consumer_named(named), it, named=named)
    )


def _run_to_end(
    name: str,
    load_settings: Callable[[], SettingsT],
    assemble: Callable[[SettingsT], AbstractAsyncContextManager[Program[Any, Any]]],
) -> int:
    """Read the settings, run a worker or a consumer until it ends, and return its exit code."""
    logger = logging.getLogger(name)
    try:
        settings = load_settings()
    except ConfigurationError as error:
        logs.configure("INFO")
        _report(name, f"The {name} cannot start; these settings are wrong:", error)
        return ExitCode.UNUSABLE
    logs.configure(settings.log_level)
    logger.info("%s.starting version %s", name, version())
    for sentence in unknown_variables(os.environ):
        logger.warning("settings.unknown %s", sentence)
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        logger.warning("telemetry.off OTEL_SDK_DISABLED is true: nothing is measured, and /metrics is empty")

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        try:
            async with assemble(settings) as program, program.serving(settings.health_port) as url:
                logger.info("%s.started as %s, status page at %s/", name, settings.instance_name, url)
                collect_seldom()
                await run_until_signalled(program.run(), drain=program.drain, name=name)
            logger.info("%s.stopped", name)
        finally:
            error = sys.exc_info()[1]
            await end_without_what_stays(logger, lambda: _report_end(error, name))

    try:
        asyncio.run(run())
    except Exception as error:  # noqa: BLE001 - whatever ended the program is reported, and decides its exit code
        return _report_end(error, name)
    return 0


def collect_seldom() -> None:
    """
    Let Python's garbage collector run less often, and let it skip all objects that exist now.

    With Python's default threshold, the collector took a tenth of the CPU time of an event: a page of a thousand events allocates some
    20,000 lists, dictionaries and other containers. The collector is not needed for these, because none of them is in a reference
    cycle. Call this once everything is imported and the program is built.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def _report_end(error: BaseException | None, name: str) -> int:
    """Log the error that ended the program, unless a signal ended it. Return the exit code."""
    if isinstance(error, Aborted) or not isinstance(error, Exception):
        return int(error is not None)
    cause = error
    while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, ConfigurationError):
        _report(name, f"The {name} cannot run:", cause)
        return ExitCode.UNUSABLE
    if isinstance(cause, AccessDenied):
        account = "the account of OUTBOX_COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT refuses it."
        _report(name, f"The {name} cannot run: {account}", cause)
        return ExitCode.UNUSABLE
    # Log no traceback for an error of this library, because its text says what to do.
    trace = None if isinstance(cause, OutboxError) else error
    logging.getLogger(name).error("%s.crashed %s: %s", name, type(cause).__name__, cause, exc_info=trace)
    return 1


def _print_usage(usage: str, arguments: Sequence[str]) -> int:
    asked_for = list(arguments) in (["--help"], ["-h"])
    (sys.stdout if asked_for else sys.stderr).write(usage)
    return ExitCode.DONE if asked_for else ExitCode.UNUSABLE


def _usage(command: str, settings: Mapping[str, FieldInfo]) -> str:
    lines = [f"usage: cosmos-outbox {command}", "", "Configured by variables, or --env-file FILE:", ""]
    for name, field in settings.items():
        default = "required" if field.is_required() else field.get_default()
        shown = "" if default in (None, "") or field.default_factory else f" [{default}]"
        lines.append(f"  {PREFIX}{name.upper():28} {field.description}{shown}")
    return "\n".join([*lines, "", *_TELEMETRY, "", EXIT_CODES, ""])


def _report(program: str, why_it_ends: str, error: Exception) -> None:
    """Report why a program cannot run: as several lines on a terminal, otherwise as one log record."""
    causes = str(error).splitlines()
    if logs.for_people():
        sys.stderr.write("\n".join([why_it_ends, *(f"  {cause}" for cause in causes), ""]))
    else:
        logging.getLogger(program).error("%s.refused %s %s", program, why_it_ends, " ".join(causes))
