"""Start child processes for a command, stop them at a signal, and print the ends of their logs after a failure."""

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
    """The demo could not be finished. `culprits` are the processes whose logs may say why."""

    def __init__(self, message: str, culprits: Sequence[Child] = ()) -> None:
        super().__init__(message)
        self.culprits = tuple(culprits)


Work = Callable[[Children, Path], Coroutine[Any, Any, int]]


async def with_children(work: Work, console: Console) -> int:
    """
    Do the work of a command, and stop its child processes at the end.

    Return the exit code of the work, or 128 + the number of the signal that ended it. If the code is 0, delete the logs.
    """
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
    """Print the end of each child process's log, which may say why the child failed."""
    for child in children:
        console.print(f"--- the end of {child.log.name}", style="bold", highlight=False)
        console.print(child.tail(), markup=False, highlight=False, soft_wrap=True)


async def _until_signalled(work: Coroutine[Any, Any, int], children: Children) -> int:
    # The work runs as a separate task, so that a signal cancels only the work. The caller then still stops the child processes.
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
