"""
Running: an asynchronous command inside Typer; an error of the library is one sentence and an exit code.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import wraps
from typing import Annotated, ParamSpec

import typer

from cosmos_outbox.errors import ConfigurationError, OutboxError
from cosmos_outbox.service.connection import Connection, connected
from cosmos_outbox.service.settings import load

Parameters = ParamSpec("Parameters")

FAILED, MISCONFIGURED, INTERRUPTED = 1, 2, 130
LONGEST_SECONDS = 86_400.0  # as for the worker: a clock cannot add arbitrarily large numbers

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would be done.")]
Expiration = Annotated[
    float,
    typer.Option(
        min=2,
        max=LONGEST_SECONDS,
        envvar="OUTBOX_LEASE_EXPIRATION_SECONDS",
        help="A lease not written for this many seconds is free; the same value as the workers have.",
    ),
]


def opened() -> AbstractAsyncContextManager[Connection]:
    """
    Open the outbox that the environment names.

    Raises:
        ConfigurationError: one line for every error in the environment.
    """
    return connected(load(for_command=True))


def seconds(value: float) -> timedelta:
    """
    Return a time given in seconds.
    """
    return timedelta(seconds=value)


def command(function: Callable[Parameters, Awaitable[None]]) -> Callable[Parameters, None]:
    """
    Make an asynchronous function a command: exit code 1 if it fails, 2 if the configuration is wrong.
    """

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        code: int | None = None
        try:
            code = INTERRUPTED if asyncio.run(_until_interrupted(function(*args, **kwargs))) else None
        except OutboxError as error:
            sys.stderr.write(f"{error}\n")
            code = MISCONFIGURED if isinstance(error, ConfigurationError) else FAILED
        except OSError as error:
            if error.filename is None:
                raise
            sys.stderr.write(f"{error.filename}: {error.strerror}\n")
            code = FAILED
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code is not None:
            raise typer.Exit(code)

    # Typer keeps the line breaks of all paragraphs but the first, whatever the terminal's width.
    paragraphs = (function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return run


async def _until_interrupted(work: Awaitable[None]) -> bool:
    """
    Await the work; return True if Ctrl-C ended it.
    """
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        # Repeatedly: a library below may lose a cancellation, as asyncio.wait_for of Python 3.11 does.
        if not working.done():
            working.cancel()
            loop.call_later(0.2, interrupt)

    if sys.platform != "win32":  # its loop takes no signal handlers
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await working
    except asyncio.CancelledError:
        if not interrupted:
            raise
    return interrupted
