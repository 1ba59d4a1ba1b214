"""
Output: a result as one JSON document for programs, or as a table for people; questions are asked on the terminal.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cosmos_outbox.cli.running import INTERRUPTED

Row = Mapping[str, Any]
_WIDEST = 1_000_000


def print_json(value: object) -> None:
    """
    Print one line of JSON; a duration is a number of seconds.
    """
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_plain) + "\n")
    sys.stdout.flush()


def print_rows(rows: Sequence[Row], *, empty: str, title: str | None = None) -> None:
    """
    Print rows as a table whose columns are the keys of the first; `empty` where there are none.
    """
    console().print(table_of(rows, title=title) if rows else empty)


def console() -> Console:
    """
    Return standard output, as wide as its terminal; without one as wide as what is printed, so that no value is cut.
    """
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDEST)


def print_mistakes(mistakes: Iterable[str | None]) -> None:
    """
    Print below a table what is wrong with those of its rows that could not be read, one line each.
    """
    for mistake in mistakes:
        if mistake is not None:
            sys.stdout.write(f"{mistake}\n")


def table_of(rows: Sequence[Row], *, title: str | None = None) -> Table:
    """
    Return rows as a table.
    """
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        numbers = any(_is_number(row[name]) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        # As text: rich reads [brackets] and :names: of a mere string as markup, and a key may have them.
        table.add_row(*(Text(_text(value)) for value in row.values()))
    return table


def readable_time(stored: str | None) -> str | None:
    """
    Return a stored time as people read it, in UTC and to the second; anything else as it is.
    """
    try:
        moment = datetime.fromisoformat(stored or "")
    except ValueError:
        return stored
    return clock_time(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def clock_time(moment: datetime) -> str:
    """
    Return a moment as people read it.
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def counted(number: int, noun: str) -> str:
    """
    Return so many of something, in words.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def confirm(question: str, *, yes: bool) -> None:
    """
    Ask, unless the answer was given; end the command where it is no, or where nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        typer.echo(f"{question} Nobody can be asked here: repeat with --yes.", err=True)
        raise typer.Exit(1)
    with _interruptible():
        typer.confirm(question, abort=True, err=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """
    Let Ctrl-C end the command at once: the loop, which has the signal otherwise, does not run while somebody is asked.
    """

    def interrupt(*_: object) -> None:
        sys.stderr.write("\n")
        raise typer.Exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | timedelta) and not isinstance(value, bool)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.0f} s"
    return str(value)


def _plain(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else str(value)
