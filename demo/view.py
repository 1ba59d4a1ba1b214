"""Show the progress of a running demo: as a live picture on a terminal, and otherwise as one line of text each second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.progress import Progress

REFRESH_SECONDS = 0.25
LINE_SECONDS = 1.0


@asynccontextmanager
async def shown(progress: Progress, console: Console) -> AsyncIterator[None]:
    """Show the progress on the console until this context manager ends."""
    show = _live if console.is_terminal else _lines
    task = asyncio.create_task(show(progress, console))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _live(progress: Progress, console: Console) -> None:
    with Live(picture(progress), console=console, auto_refresh=False) as live:
        try:
            while True:
                await asyncio.sleep(REFRESH_SECONDS)
                live.update(picture(progress), refresh=True)
        finally:
            live.update(picture(progress), refresh=True)


async def _lines(progress: Progress, console: Console) -> None:
    noted = 0
    try:
        while True:
            noted = _print_notes(progress, console, noted)
            console.print(line(progress), highlight=False, soft_wrap=True)
            await asyncio.sleep(LINE_SECONDS)
    finally:
        _print_notes(progress, console, noted)


def _print_notes(progress: Progress, console: Console, noted: int) -> int:
    for note in progress.notes[noted:]:
        console.print(note, highlight=False, soft_wrap=True)
    return len(progress.notes)


def line(progress: Progress) -> str:
    """Return the progress of the demo as one line of text."""
    owners = " ".join(f"{token}:{owner or '-'}" for token, owner in progress.owners.items()) or "none yet"
    return (
        f"{progress.phase}: contacts {progress.contacts_written}/{progress.contacts_wanted}, "
        f"committed {progress.committed}, delivered {progress.delivered}, "
        f"effects {progress.effects}, lag {progress.lag}, leases {owners}"
    )


def picture(progress: Progress) -> RenderableType:
    """Return the progress of the demo as a table of counters and a table of processes, for a terminal."""
    counts = Table.grid(padding=(0, 2))
    counts.add_row("phase", Text(progress.phase, style="bold"))
    counts.add_row(
        "contacts written",
        f"{progress.contacts_written} / {progress.contacts_wanted}",
        ProgressBar(progress.contacts_wanted, progress.contacts_written, width=30),
    )
    counts.add_row("events committed", str(progress.committed))
    counts.add_row(
        "events delivered",
        str(progress.delivered),
        ProgressBar(max(1, progress.committed), progress.delivered, width=30),
    )
    counts.add_row(
        "effects in the directory",
        str(progress.effects),
        ProgressBar(max(1, progress.committed), progress.effects, width=30),
    )
    counts.add_row("lag", Text(str(progress.lag), style="yellow" if progress.lag else "green"))

    processes = Table("process", "pid", "state", "leases", box=None, padding=(0, 2))
    for child in progress.children:
        held = [token for token, owner in progress.owners.items() if owner == child.name]
        style = "red" if child.exit_code is not None else ""
        processes.add_row(child.name, str(child.pid), child.state, ", ".join(held), style=style)
    free = [token for token, owner in progress.owners.items() if owner is None]
    if free:
        processes.add_row("(no owner)", "", "", ", ".join(free))
    return Group(counts, Text(), processes, *(Text(note) for note in progress.notes))
