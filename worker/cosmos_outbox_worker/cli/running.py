"""
Running: an asynchronous command inside Typer; an error is one sentence and an exit code, and with --json an object as well.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import Annotated, Any, ParamSpec

import typer
from typer.core import TyperGroup

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import ConfigurationError, OutboxError
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_worker.cli.output import INTERRUPTED, print_json
from cosmos_outbox_worker.connection import Connection, connected
from cosmos_outbox_worker.consumer_settings import ConsumerSettings, load_consumer
from cosmos_outbox_worker.doctor.check import UNANSWERED
from cosmos_outbox_worker.env_file import without_env_files
from cosmos_outbox_worker.named_consumer import consumer_named, made
from cosmos_outbox_worker.settings import load

Parameters = ParamSpec("Parameters")

WARNED, FAILED, UNSEEN = 1, 2, 3
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would be done.")]
Expiration = Annotated[
    float,
    typer.Option(
        min=2,
        max=86_400,  # as for the worker: a clock cannot add arbitrarily large numbers
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


@asynccontextmanager
async def opened_consumer(
    named: str, *, handles: bool = False
) -> AsyncIterator[tuple[Connection, ConsumerSettings, Consumer]]:
    """
    Open what the environment names for a consumer, and yield it, the settings and the consumer that an option names.

    Args:
        named: the option.
        handles: its handlers are to be called, so its container has to exist. Defaults to False.

    Raises:
        ConfigurationError: one line for every error in the environment; or there is no such consumer.
    """
    source, settings = consumer_named(named), load_consumer(for_command=True)
    async with connected(settings) as outbox:
        store = await retry_reads(outbox.store, RetryOptions()) if handles else CosmosStore(outbox.data)
        yield outbox, settings, made(source, Outbox(store))


def command(function: Callable[Parameters, Coroutine[Any, Any, None]]) -> Callable[Parameters, None]:
    """Make an asynchronous function a command: exit code 2 if it fails, 3 if a service does not answer."""

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        code: int | None = None
        try:
            asyncio.run(function(*args, **kwargs))
        except OutboxError as error:
            fail(error, as_json=kwargs.get("as_json") is True)
            code = UNSEEN if isinstance(error, UNANSWERED) else FAILED
        except OSError as error:
            if error.filename is None and error.errno not in _UNWRITABLE:
                raise
            if error.filename is None:
                # The rest of the buffer would fail again when the interpreter ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stderr.write(f"{error.filename or 'Standard output'}: {error.strerror}\n")
            code = FAILED
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code is not None:
            raise typer.Exit(code)

    # Typer keeps the line breaks of all paragraphs but the first, whatever the terminal's width.
    paragraphs = (function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return run


def fail(error: Exception, *, as_json: bool, message: str | None = None) -> None:
    """Say on standard error what failed; for programs also as JSON, with the class of the error."""
    message = message or str(error)
    sys.stderr.write(f"{message}\n")
    if as_json:
        print_json({"error": {"code": type(error).__name__, "message": message}})


class Commands(TyperGroup):
    """
    Commands that take variables from files first, and whose refusal of an argument is JSON too, if --json is among the arguments.
    """

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:
        arguments = sys.argv[1:] if args is None else args
        as_json = "--json" in arguments
        try:
            options = {**named, "standalone_mode": False} if as_json else named
            code = super().main(without_env_files(arguments), *more, **options)
        except Exception as error:
            # Typer brings its own click or uses the installed one: recognise its errors by their methods.
            told = getattr(error, "format_message", None)
            if told is None and not isinstance(error, ConfigurationError):
                raise
            fail(error, as_json=as_json, message=told and told())
            code = FAILED
        sys.exit(code)
