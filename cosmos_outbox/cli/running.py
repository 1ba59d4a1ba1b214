"""
Running: an asynchronous command inside Typer; an error of the library is one sentence and an exit code.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import wraps
from typing import Annotated, ParamSpec

import typer

from cosmos_outbox.errors import ConfigurationError, OutboxError

Parameters = ParamSpec("Parameters")

FAILED, MISCONFIGURED = 1, 2

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; tell what would be done.")]
Expiration = Annotated[
    float,
    typer.Option(
        min=2,
        envvar="OUTBOX_LEASE_EXPIRATION_SECONDS",
        help="A lease not written for so many seconds is free; what the workers are set to.",
    ),
]


def seconds(value: float) -> timedelta:
    """
    Return a time given in seconds.
    """
    return timedelta(seconds=value)


def command(function: Callable[Parameters, Awaitable[None]]) -> Callable[Parameters, None]:
    """
    Make an asynchronous function a command: exit code 1 where it fails, 2 where it cannot work as it is set up.
    """

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        async def awaited() -> None:
            await function(*args, **kwargs)

        try:
            asyncio.run(awaited())
        except OutboxError as error:
            sys.stderr.write(f"{error}\n")
            raise typer.Exit(MISCONFIGURED if isinstance(error, ConfigurationError) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return run
