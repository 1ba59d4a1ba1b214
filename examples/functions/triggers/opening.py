"""Open clients and containers once in a process, and share them among all invocations of its functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Generic, TypeVar

OpenedT = TypeVar("OpenedT")


class Once(Generic[OpenedT]):
    """
    Open an object at the first invocation, and share it among all invocations of the process.

    Azure Functions calls no code of an app before the first invocation or after the last, so this is the place to open clients.

        @Once
        async def outbox(stack: AsyncExitStack) -> Outbox:
            client = await stack.enter_async_context(open_cosmos_client(connection_string=...))
            return Outbox(await open_store(client, "shop", "orders"))

        async def main(...):
            async with (await outbox()).unit_of_work() as uow: ...

    Args:
        opening: opens and returns the object. Context managers that it enters into the stack stay open. If it raises an error, the next
            invocation calls it again.
    """

    def __init__(self, opening: Callable[[AsyncExitStack], Awaitable[OpenedT]]) -> None:
        self._opening = opening
        self._opened: tuple[OpenedT, AsyncExitStack] | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> OpenedT:
        """Return the object that all invocations share. The first call opens it."""
        async with self._lock:
            if self._opened is None:
                async with AsyncExitStack() as stack:
                    opened = await self._opening(stack)
                    self._opened = opened, stack.pop_all()
            return self._opened[0]

    async def aclose(self) -> None:
        """Close the object and what it opened. Tests call this. The next call of the object opens it again."""
        async with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened[1].aclose()
