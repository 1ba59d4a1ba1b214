"""Runs a command's work with its child processes: a signal ends them, and on a failure it prints the ends of their logs."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cosmos_outbox_testing.verify.child_processes import Child, ChildDied, Children


class DemoFailed(Exception):
    """The main job failed. `culprits` are the processes whose logs may say why."""

    def __init__(self, message: str, culprits: Sequence[Child] = ()) -> None:
        super().__init__(message)
        self.culprits = tuple(culprits)


Work = Callable[[Children, Path], Coroutine[Any, Any, int]]


async def with_children(work: Work, console: Console) -> int:
    """Return the exit code of the work, or 128 + the signal that ended it. Logs are kept unless it returned 0."""
    directory = Path(tempfile.mkdtemp(prefix="cosmos-outbox-"))
    code = 1
    try:
        async with Children(directory) as children:
            code = await _until_signalled(work(children, directory), children)
    except ChildDied as error:
        console.print(str(error), style="red", highlight=False)
        show_tails([error.child], console)
    except DemoFailed as error:
        console.print(str(error), style="red", highlight=False)
        show_tails(error.culprits, console)
    finally:
        if code:
            console.print(f"logs: {directory}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return code


def show_tails(children: list[Child] | tuple[Child, ...], console: Console) -> None:
    """Print the end of each child's log."""
    for child in children:
        console.print(f"--- the end of {child.log.name}", style="bold", highlight=False)
        console.print(child.tail(), markup=False, highlight=False, soft_wrap=True)


async def _until_signalled(work: Coroutine[Any, Any, int], children: Children) -> int:
    # The work is a task of its own: a signal cancels the work, and not the end of the children afterwards.
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def interrupt(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()
        else:
            children.kill_all()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
