"""Cancelling: code of a caller may go on after it was cancelled, and must not keep the loop that runs it."""

from __future__ import annotations

import asyncio
from typing import Any

from cosmos_outbox.background import retrieve

_SECONDS = 1.0  # for a cancelled task to end


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """Cancel a task and return whether it ended within a second; one that did not is left behind."""
    task.cancel()
    _, left = await asyncio.wait({task}, timeout=_SECONDS)
    task.add_done_callback(retrieve)
    return not left
