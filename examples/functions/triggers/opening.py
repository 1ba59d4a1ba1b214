"""Opening: opens clients and containers once, for all invocations of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Generic, TypeVar

OpenedT = TypeVar("OpenedT")


class Once(Generic[OpenedT]):
    """
    Open something at the first invocation, for all of a process: Azure Functions calls no code before it, and none at the end.

        @Once
        async def outbox(stack: AsyncExitStack) -> Outbox:
            client = await stack.enter_async_context(open_cosmos_client(connection_string=...))
            return Outbox(await open_store(client, "shop", "orders"))

        async def main(...):
            async with (await outbox()).unit_of_work() as uow: ...

    Args:
        opening: opens the object. Contexts that it enters into the stack stay open. After a failure the next invocation calls it again.
    """

    def __init__(self, opening: Callable[[AsyncExitStack], Awaitable[OpenedT]]) -> None:
        self._opening = opening
        self._opened: tuple[OpenedT, AsyncExitStack] | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> OpenedT:
        """Return the opened object; open it at the first call."""
        async with self._lock:
            if self._opened is None:
                async with AsyncExitStack() as stack:
                    opened = await self._opening(stack)
                    self._opened = opened, stack.pop_all()
            return self._opened[0]

    async def aclose(self) -> None:
        """Close everything, for tests; the next call opens it again."""
        async with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened[1].aclose()
