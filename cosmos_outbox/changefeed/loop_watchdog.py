"""
Loop watchdog: a thread that reports what blocks the event loop, because the loop itself cannot.

A blocked loop renews no lease, and in the end the worker loses all of them: worse than one slow handler.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from cosmos_outbox.records import Hook, LoopBlocked


@contextmanager
def watched(notify: Hook, *, after_seconds: float) -> Iterator[None]:
    """
    Watch the running loop for as long as the block lasts; `notify` is called on the watchdog's own thread.
    """
    loop = asyncio.get_running_loop()
    loop_thread = threading.get_ident()
    # Real time: with a loop whose clock is virtual (tests), only what really takes long counts.
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
                notify(_blocked(loop, loop_thread, seconds))
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


def _blocked(loop: asyncio.AbstractEventLoop, loop_thread: int, seconds: float) -> LoopBlocked:
    task = asyncio.current_task(loop)
    frame = sys._current_frames().get(loop_thread)  # noqa: SLF001 - documented; the only way to see another thread
    where = traceback.extract_stack(frame)[-1] if frame else None
    return LoopBlocked(
        task=task.get_name() if task else "",
        where=f"{where.filename}:{where.lineno} in {where.name}" if where else "",
        seconds=seconds,
    )
