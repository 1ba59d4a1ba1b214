"""
Event loop: helpers for background tasks and for calls of the SDK that may swallow a cancellation, and a thread that reports a blocked
loop.
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

_ONE_CANCELLATION_SECONDS = 2.0  # how long to wait before a task that has not ended is cancelled again

_T = TypeVar("_T")


class Background:
    """Tasks that an object starts, and for which it waits when it is closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task. `wait` waits until this task has ended too."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks, again and again if necessary, until all have ended. Ignore their errors."""
    # A task may need several cancellations, because the SDK uses `asyncio.wait_for`. Before Python 3.12, that loses a cancellation that
    # arrives together with the awaited result.
    while running := {task for task in tasks if not task.done()}:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_ONE_CANCELLATION_SECONDS)
    for task in tasks:
        retrieve(task)


async def within(seconds: float, call: Coroutine[Any, Any, _T], *, asked: asyncio.Event | None = None) -> _T:
    """
    Make a call with a time limit, and return its result. A call of the SDK may swallow the cancellation of its caller. Inside this function
    the cancellation is never lost.

    Args:
        seconds: how long the call may take.
        call: the coroutine.
        asked: an event that asks the call to end; the seconds count from when it is set. Defaults to None: they count from now.

    Raises:
        TimeoutError: the call took longer. It was cancelled, and has ended.
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
    """
    Raise CancelledError if the running task was cancelled more often than `since`.

    This is for a cancellation that a library lost, or that a task group replaced by an error.
    """
    if cancellations() > since:
        raise asyncio.CancelledError


def retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task that has ended. Otherwise asyncio logs that its exception was never retrieved."""
    if not task.cancelled():
        task.exception()


@contextmanager
def watch_loop(notify: Hook, *, after_seconds: float) -> Iterator[None]:
    """
    Inside this block, report code that blocks the running event loop, again and again while it does. `notify` is called on another thread,
    because a blocked loop cannot report anything.

    While its loop is blocked, a worker renews no lease, and in the end it loses all its leases.
    """
    loop = asyncio.get_running_loop()
    loop_thread = threading.get_ident()
    # Use real time. On a loop with a virtual clock, as in tests, only code that really blocks is then reported.
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
