"""Background: tasks that go on beside the calls that began them, and whose errors no call looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """The tasks that an object waits for at its end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin one."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        """Return when all have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task that has ended, or asyncio reports that it was never looked at."""
    if not task.cancelled():
        task.exception()
