"""The list of commands. The module of a command is imported when the command is called, so that `--help` need not import the SDKs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cosmos_outbox_worker.cli import loading
from cosmos_outbox_worker.exit_codes import ExitCode

# For each command: its module, its function or group in that module, and its line in the list of commands (the first words of its help)
_COMMANDS = {
    "status": ("status:status", "Show leases, owners, and what waits"),
    "doctor": ("doctor:doctor", "Compare the live resources with what the outbox needs."),
    "where": ("where:where", "Say what became of a key"),
    "parked": ("parked:app", "Partition keys that are parked"),
    "replay": ("replay:replay_command", "Send events again that are still in the container"),
    "leases": ("leases:app", "Leases: the position of each range of the container, and its owner."),
    "bootstrap": ("leases:bootstrap", "Create the leases that are missing, and do nothing else."),
    "plan": ("plan:plan", "Say what a load needs"),
    "verify": ("verify:verify", "Check that Cosmos DB and Service Bus answer as this library expects"),
    "events": ("events:app", "Events: the contract of a service with other teams."),
}


class Commands(TyperGroup):
    """
    The group of all commands. It imports the module of a command when the command is called.

    Before that, it reads the files of `--env-file`. If `--json` is among the arguments, it also reports a wrong argument as JSON.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        listed = {name: TyperCommand(name, help=said) for name, (_, said) in _COMMANDS.items()}
        self.commands = {**listed, **self.commands}

    def load(self, name: str) -> Any:
        """Import the module of a command, and return the command. Until then, only the command's name and help text are known."""
        if name not in _COMMANDS:
            return self.commands[name]
        place, _, attribute = _COMMANDS[name][0].partition(":")
        with loading():
            found = getattr(import_module(f"{__package__}.{place}"), attribute)
        if isinstance(found, typer.Typer):
            return typer.main.get_group(found)
        (alone := typer.Typer(add_completion=False)).command(name)(found)
        return typer.main.get_command(alone)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, left = super().resolve_command(ctx, args)
        return name, self.load(name) if name else command, left

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in arguments
        try:
            if any(word.startswith("--env-file") for word in arguments):
                from cosmos_outbox_worker.env_file import without_env_files  # noqa: PLC0415 - `--help` does without

                arguments = without_env_files(arguments)
            options = {**named, "standalone_mode": False} if as_json else named
            code = super().main(arguments, *more, **options)
        except Exception as error:
            from cosmos_outbox.errors import ConfigurationError  # noqa: PLC0415 - as above
            from cosmos_outbox_worker.cli.running import fail  # noqa: PLC0415 - as above

            # Recognise an error of click by its method `format_message`. Its class is no help, because Typer may contain a copy of click.
            told = getattr(error, "format_message", None)
            if told is None and not isinstance(error, ConfigurationError):
                raise
            fail(error, as_json=as_json, message=told and told())
            code = ExitCode.UNUSABLE
        sys.exit(code)


app = typer.Typer(
    cls=Commands,
    help="Show a running outbox, repair it, and run workers and consumers. Configured by their OUTBOX_… variables; with --env-file FILE, "
    "anywhere, a file has those that the environment has not.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_PROGRAM = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _print(asked: bool) -> None:
    if asked:
        from cosmos_outbox_worker.version import version  # noqa: PLC0415 - as above

        typer.echo(f"cosmos-outbox {version()}")
        raise typer.Exit


@app.callback()
def options(
    *,
    shown: Annotated[
        bool, typer.Option("--version", callback=_print, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handle the options that come before the name of a command, such as `--version`."""


@app.command(context_settings=_PROGRAM)
def worker(context: typer.Context) -> None:
    """Run a worker until SIGTERM or Ctrl-C; `worker --help` lists its settings."""
    from cosmos_outbox_worker import main  # noqa: PLC0415 - the other commands need no OpenTelemetry

    raise typer.Exit(main.work(context.args))


@app.command(context_settings=_PROGRAM)
def consume(context: typer.Context) -> None:
    """Run the consumer `package.module:name` until SIGTERM or Ctrl-C; `consume --help` lists its settings."""
    from cosmos_outbox_worker import main  # noqa: PLC0415 - as above

    raise typer.Exit(main.consume(context.args))


def run() -> None:
    """Run the command that the arguments of the process name, and end the process with its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    app()
