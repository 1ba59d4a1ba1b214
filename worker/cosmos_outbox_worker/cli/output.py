"""
Output: print the result of a command as JSON, as lines with tabs in a pipe, or as a table on a terminal, and ask for confirmation.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import typer

from cosmos_outbox.errors import UsageError
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.logs import printable
from cosmos_outbox_worker.settings import CONTAINER

Row = Mapping[str, Any]
NO_LEASES = "There are no leases yet; the first worker, or `bootstrap`, creates them."


class Declined(UsageError):
    """The operator did not confirm the command, or there was no terminal on which to ask."""


class NothingMatches(UsageError):
    """Nothing has the name that the operator gave, or the given filter selects nothing."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table to print. The keys of the first row are the names of the columns."""

    rows: Sequence[Row]
    title: str | None

    def in_lines(self) -> str:
        """Return the table as text: a line with the names of the columns and a line for each row, with tabs between the cells."""
        cells = [[name.replace("_", " ") for name in self.rows[0]]]
        cells += [[text_of(value) for value in row.values()] for row in self.rows]
        lines = ["\t".join(row) for row in cells]
        return "\n".join([*([self.title] if self.title else []), *lines])

    def __rich__(self) -> Any:
        from rich.table import Table as Drawn  # noqa: PLC0415 - a pipe does without
        from rich.text import Text  # noqa: PLC0415 - as above

        drawn = Drawn(title=self.title, title_justify="left")
        for name in self.rows[0]:
            numbers = any(isinstance(row[name], (int, float, timedelta)) for row in self.rows)
            numbers = numbers and not any(isinstance(row[name], bool) for row in self.rows)
            drawn.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
        for row in self.rows:
            # Wrap each cell in `Text`: rich would read [brackets] and :names: in a plain string as markup, and a key may contain these.
            drawn.add_row(*(Text(text_of(value)) for value in row.values()))
        return drawn


def print_json(value: object) -> None:
    """Print a value as one line of JSON. A duration is printed as a number of seconds."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_json_value) + "\n")
    sys.stdout.flush()


def answer(facts: object, *shown: Table | str, as_json: bool) -> None:
    """
    Print the result of a command: the facts as JSON if `as_json` is set, otherwise the tables and texts.

    Control characters in texts are escaped, and markup in them is not interpreted.
    """
    if as_json:
        container = {"container": CONTAINER.get()} if CONTAINER.get() else {}
        print_json({**container, **facts} if isinstance(facts, Mapping) else facts)
        return
    for one in shown:
        if isinstance(one, Table) and sys.stdout.isatty():
            from rich.console import Console  # noqa: PLC0415 - as above

            Console(highlight=False).print(one)
        else:  # print long lines unbroken: with line breaks, a command in a text could not be copied
            text = one.in_lines() if isinstance(one, Table) else "\n".join(map(printable, one.split("\n")))
            sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table_of(rows: Sequence[Row], *, empty: str = "", title: str | None = None) -> Table | str:
    """Return a table of rows, or the text `empty` if there are no rows."""
    return Table(rows, title) if rows else empty


def number_text(number: int, noun: str) -> str:
    """Return a number with a noun in the singular or plural, such as "1 event" or "2 events"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def confirm(question: str, *, yes: bool) -> None:
    """
    Ask the operator a question on the terminal, unless --yes was given. Raise `Declined` if the answer is not yes, or if there is no
    terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Declined(f"{question} There is no terminal to ask on: run the command again with --yes.")

    def interrupt(*_: object) -> None:
        sys.stderr.write("\n")
        raise typer.Exit(ExitCode.INTERRUPTED)

    # Handle Ctrl-C here: while the question waits for its answer, the event loop does not run, and its own handler would not be called.
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:  # standard input has ended, so no answer will come
        agreed = False
    finally:
        signal.signal(signal.SIGINT, before)
    if not agreed:
        raise Declined("Nothing was done.")


def text_of(value: object) -> str:
    """Format a value of a table or a text for people: None as "-", a duration in seconds."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value.total_seconds():.0f} s" if isinstance(value, timedelta) else printable(str(value))


def _json_value(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else str(value)
