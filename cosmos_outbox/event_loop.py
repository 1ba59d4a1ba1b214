"""
Event loop: tasks that go on beside the calls that began them, tasks that must end when their calls do, and the thread that says where the
loop is blocked.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cosmos_outbox.records import Hook, LoopBlocked

_ONE_CANCELLATION_SECONDS = 2.0  # seconds between two cancellations of one task

_T = TypeVar("_T")


class Background:
    """The tasks that an object waits for at its end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel the tasks until all have ended; ignore their errors."""
    # A task may need several cancellations: the SDK uses `asyncio.wait_for`, which before Python 3.12 loses a cancellation that
    # arrives together with the awaited result.
    while running := {task for task in tasks if not task.done()}:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_ONE_CANCELLATION_SECONDS)
    for task in tasks:
        retrieve(task)


async def within(seconds: float, call: Coroutine[Any, Any, _T], *, asked: asyncio.Event | None = None) -> _T:
    """
    Make a call that may lose a cancellation, as calls of the SDK may, and return its result. A cancellation of the caller is not
    lost.

    Args:
        asked: asks the call to end; the seconds count from then. Defaults to none: they count from now.

    Raises:
        TimeoutError: it took longer than so many seconds; it has ended now.
    """
    task = asyncio.create_task(call)
    tasks = {task} if asked is None else {task, asyncio.create_task(asked.wait())}
    try:
        if asked is not None:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        await end(tasks)


def cancellations() -> int:
    """Return how often the running task has been cancelled so far."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def raise_if_cancelled(*, since: int = 0) -> None:
    """Raise a cancellation that a library lost, or that a task group replaced by an error."""
    if cancellations() > since:
        raise asyncio.CancelledError


def retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task that has ended; asyncio would else log that no code ever did."""
    if not task.cancelled():
        task.exception()


@contextmanager
def watch_loop(notify: Hook, *, after_seconds: float) -> Iterator[None]:
    """
    Report what blocks the running loop for as long as the block lasts; `notify` is called on the watchdog's own thread.

    The loop itself cannot: while it is blocked it renews no lease, and in the end the worker loses all of them.
    """
    loop = asyncio.get_running_loop()
    loop_thread = threading.get_ident()
    # Real time counts: on a loop with a virtual clock, as in tests, only a block that really lasts is reported.
    alive_at, ended = time.monotonic(), threading.Event()
    beat: asyncio.TimerHandle | None = None

    def show_life() -> None:
        nonlocal alive_at, beat
        alive_at = time.monotonic()
        beat = loop.call_later(after_seconds / 4, show_life)

    def watch() -> None:
        reported = 0
        while not ended.wait(after_seconds / 4):
            seconds = time.monotonic() - alive_at
            times = int(seconds / after_seconds)
            if times > reported:
                notify(_describe_block(loop, loop_thread, seconds))
            reported = times

    show_life()
    thread = threading.Thread(target=watch, name="cosmos-outbox-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        if beat is not None:
            beat.cancel()


def _describe_block(loop: asyncio.AbstractEventLoop, loop_thread: int, seconds: float) -> LoopBlocked:
    task = asyncio.current_task(loop)
    frame = sys._current_frames().get(loop_thread)  # noqa: SLF001 - documented; the only way to see another thread
    where = traceback.extract_stack(frame)[-1] if frame else None
    return LoopBlocked(
        task=task.get_name() if task else "",
        where=f"{where.filename}:{where.lineno} in {where.name}" if where else "",
        seconds=seconds,
    )
