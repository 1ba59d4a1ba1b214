"""
Output: a result as one JSON document for programs, or as a table for people; questions are asked on the terminal.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from cosmos_outbox.errors import UsageError
from cosmos_outbox_worker.logs import printable
from cosmos_outbox_worker.settings import CONTAINER

Row = Mapping[str, Any]
NO_LEASES = "There are no leases yet; the first worker, or `bootstrap`, creates them."
INTERRUPTED = 130
_WIDEST = 1_000_000


def print_json(value: object) -> None:
    """Print one line of JSON; a duration is a number of seconds."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_json_value) + "\n")
    sys.stdout.flush()


def answer(facts: object, *shown: RenderableType, as_json: bool) -> None:
    """Print the facts for programs, or what is shown of them to people; a text is no markup, and steers no terminal."""
    if as_json:
        container = {"container": CONTAINER.get()} if CONTAINER.get() else {}
        print_json({**container, **facts} if isinstance(facts, Mapping) else facts)
        return
    # In a pipe as wide as what is printed, so that no value is cut.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDEST)
    for one in shown:
        if isinstance(one, str):  # the terminal breaks its lines, so that a command can be copied
            console.print(Text("\n".join(map(printable, one.split("\n")))), soft_wrap=True)
        else:
            console.print(one)


def table_of(rows: Sequence[Row], *, empty: str = "", title: str | None = None) -> RenderableType:
    """Return rows as a table whose columns are the keys of the first; `empty` if there are none."""
    if not rows:
        return Text(empty)
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        numbers = any(isinstance(row[name], (int, float, timedelta)) for row in rows)
        numbers = numbers and not any(isinstance(row[name], bool) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        # As Text: rich reads [brackets] and :names: of a plain string as markup, and a key may contain them.
        table.add_row(*(Text(text_of(value)) for value in row.values()))
    return table


def counted(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless --yes was given; end the command if the answer is no, or if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on: repeat with --yes.")

    def interrupt(*_: object) -> None:
        sys.stderr.write("\n")
        raise typer.Exit(INTERRUPTED)

    # The event loop has this signal otherwise, and does not run during a question.
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:  # the end of the input
        agreed = False
    finally:
        signal.signal(signal.SIGINT, before)
    if not agreed:
        raise UsageError("Nothing was done.")


def text_of(value: object) -> str:
    """Return a value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value.total_seconds():.0f} s" if isinstance(value, timedelta) else printable(str(value))


def _json_value(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else str(value)
