"""
Closing: links are closed in the background, for the SDK takes up to a second to close one, and never ends on a broken one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

CLOSE_SECONDS = 5.0  # the limit for closing one link


class Closing:
    """
    The links that are being closed.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, closing: Coroutine[Any, Any, None]) -> None:
        """
        Close one in the background.
        """
        task = asyncio.create_task(closing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def done(self) -> None:
        """
        Return when all are closed.
        """
        if self._tasks:
            await asyncio.wait(self._tasks)
