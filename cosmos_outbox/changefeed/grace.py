"""Grace: work that is asked to end has some seconds left to do so by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from cosmos_outbox.background import end

_Result = TypeVar("_Result")


async def within_grace(
    work: Coroutine[Any, Any, _Result], *, asked: asyncio.Event, seconds: float
) -> _Result:
    """
    Return the result of some work, which is cancelled so many seconds after it was asked to end.

    Raises:
        TimeoutError: it was cancelled.
    """
    working, asking = asyncio.create_task(work), asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({working, asking}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({working}, timeout=seconds)
        if not working.done():
            raise TimeoutError
        return working.result()
    finally:
        await end({working, asking})
