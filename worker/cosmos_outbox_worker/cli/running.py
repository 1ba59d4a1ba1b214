"""
Running: run asynchronous functions as commands of Typer, and turn their errors into a sentence, an exit code and, with --json, JSON.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, update_wrapper
from typing import Annotated, Any

import typer

from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import AccessDenied, ConfigurationError, KeyNotParked, OutboxError, UsageError
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox_worker.cli.output import Declined, NothingMatches, print_json
from cosmos_outbox_worker.connection import Connection, open_connection
from cosmos_outbox_worker.consumer_settings import ConsumerSettings, load_consumer
from cosmos_outbox_worker.doctor.check import UNANSWERED
from cosmos_outbox_worker.exit_codes import WORST_FIRST, ExitCode
from cosmos_outbox_worker.named_consumer import consumer_named, resolve_consumer
from cosmos_outbox_worker.settings import CONTAINER, Settings, load, variable

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would be done.")]
OfContainer = Annotated[
    str | None,
    typer.Option(
        "--container", metavar="NAME", help="Act on this container of OUTBOX_COSMOS_CONTAINER only."
    ),
]
Expiration = Annotated[
    float,
    typer.Option(
        min=2,
        # A worker has the same limit, because adding a much larger number to a time would overflow.
        max=86_400,
        envvar="OUTBOX_LEASE_EXPIRATION_SECONDS",
        help="Seconds without a write after which a lease is free; the same as the workers have.",
    ),
]


def connect(settings: Settings | None = None) -> AbstractAsyncContextManager[Connection]:
    """
    Open the connection to an outbox for a command. If the account does not answer, give up after 20 seconds, because a person waits.

    Args:
        settings: the settings. Defaults to those of the environment.

    Raises:
        ConfigurationError: settings are missing or wrong, with one line for each.
    """
    return open_connection(settings or load(for_command=True), opening_seconds=20.0)


@asynccontextmanager
async def open_consumer(
    named: str, *, handles: bool = False
) -> AsyncIterator[tuple[Connection, ConsumerSettings, Consumer]]:
    """
    Open a consumer for a command. Yield the connection, the settings and the consumer.

    Args:
        named: the `module:name` that the option --consumer gives.
        handles: whether the command calls the consumer's handlers, so that the consumer's container has to exist. Defaults to False.

    Raises:
        ConfigurationError: settings are missing or wrong, with one line for each, or there is no such consumer.
    """
    source, settings = consumer_named(named), load_consumer(for_command=True)
    async with connect(settings) as outbox:
        store = await retry_reads(outbox.store, RetryOptions()) if handles else CosmosStore(outbox.data)
        yield outbox, settings, resolve_consumer(source, Outbox(store))


def command(
    function: Callable[..., Coroutine[Any, Any, None]], *, each: bool | None = False
) -> Callable[..., None]:
    """
    Decorate an asynchronous function so that Typer can run it as a command that ends with an exit code.

    The command gets the option --container, for settings that name several containers.

    Args:
        function: the asynchronous function.
        each: True if the command without --container runs for all containers, and ends with the worst of their exit codes. False
            if --container has to be given. None for a command that opens no container, which does not get the option. Defaults to
            False.
    """

    def run(*, container: str | None = None, **given: Any) -> None:
        as_json, codes = given.get("as_json") is True, []
        try:
            chosen = (
                ("",)
                if each is None
                else choose_containers(container, each=each and not given.get("consumer"))
            )
        except UsageError as error:
            fail(error, as_json=as_json)
            raise typer.Exit(ExitCode.UNUSABLE) from None
        for name in chosen:
            CONTAINER.set(name)
            if len(chosen) > 1 and not as_json:
                sys.stdout.write(f"{name}:\n")
                sys.stdout.flush()
            codes.append(_exit_code(function(**given), as_json=as_json))
        if code := min(codes, key=WORST_FIRST.index):
            raise typer.Exit(code)

    update_wrapper(run, function)
    asked = [*inspect.signature(function, eval_str=True).parameters.values()]
    if each is not None:
        keyword = inspect.Parameter.KEYWORD_ONLY
        asked.append(inspect.Parameter("container", keyword, default=None, annotation=OfContainer))
    run.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined] # Typer reads it
    run.__annotations__ = {one.name: one.annotation for one in asked}
    # Join the lines of each paragraph of the help: Typer would keep the line breaks of all paragraphs but the first.
    paragraphs = (function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return run


# The exit code for each class of error. If an error belongs to several entries, the first of them decides.
_CODES: tuple[tuple[Any, ExitCode], ...] = (
    (UNANSWERED, ExitCode.UNANSWERED),
    ((KeyNotParked, NothingMatches), ExitCode.NO_MATCH),
    (Declined, ExitCode.DECLINED),
    ((UsageError, ConfigurationError, AccessDenied), ExitCode.UNUSABLE),
    (OutboxError, ExitCode.WRONG),
)


def _exit_code(work: Coroutine[Any, Any, None], *, as_json: bool) -> int:
    try:
        asyncio.run(work)
    except typer.Exit as ended:
        return ended.exit_code
    except OutboxError as error:
        fail(error, as_json=as_json)
        return next(code for kinds, code in _CODES if isinstance(error, kinds))
    except OSError as error:
        if error.filename is None and error.errno not in _UNWRITABLE:
            raise
        if error.filename is None:
            # Standard output cannot be written. Point it to /dev/null, because Python writes the rest of its buffer when it exits, and
            # would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write(f"{error.filename or 'Standard output'}: {error.strerror}\n")
        return ExitCode.WRONG if error.filename is None else ExitCode.UNUSABLE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


command_each, command_without = partial(command, each=True), partial(command, each=None)


def choose_containers(named: str | None, *, each: bool) -> tuple[str, ...]:
    """
    Return the names of the containers for which a command runs. If the settings name a single container, return "" in its place.

    Args:
        named: the container that the option --container gives.
        each: whether the command runs for all containers if the option is not given.

    Raises:
        UsageError: the settings do not name this container, or they name several and the command needs --container.
    """
    containers = tuple(map(str.strip, os.environ.get(variable("cosmos_container"), "").split(",")))
    said = f"{variable('cosmos_container')} names {', '.join(containers)}"
    if named is not None and named not in containers:
        raise UsageError(f"{said}, but not {named!r}, which --container gives.")
    if len(containers) == 1 or named is not None:
        return (named or "",)
    if not each:
        raise UsageError(f"{said}: choose one of them by --container NAME.")
    return containers


def fail(error: Exception, *, as_json: bool, message: str | None = None) -> None:
    """Print an error to standard error. With `as_json`, also print it to standard output as JSON, with the class of the error."""
    message = f"{CONTAINER.get()}: " * bool(CONTAINER.get()) + (message or str(error))
    sys.stderr.write(f"{message}\n")
    if as_json:
        print_json({"error": {"code": type(error).__name__, "message": message}})
