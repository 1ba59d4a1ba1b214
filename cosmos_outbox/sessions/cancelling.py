"""
Cancelling: code of a caller may go on after it was cancelled, and must not keep the loop that runs it.
"""

from __future__ import annotations

import asyncio
from typing import Any

_SECONDS = 1.0  # for a cancelled task to end


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """
    Cancel a task and return whether it ended within a second; one that did not is left behind.
    """
    task.cancel()
    _, left = await asyncio.wait({task}, timeout=_SECONDS)
    task.add_done_callback(_retrieve)
    return not left


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # or asyncio reports that it was never looked at
