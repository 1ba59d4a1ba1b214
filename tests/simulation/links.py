"""
The network between one worker and the services, with faults that can be switched on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cosmos_outbox.errors import StoreUnavailable, TooManyRequests


class Link:
    """
    Every call of a worker to one service goes through here.

    down: nothing reaches the service. lose: so many answers are lost after the service executed the call. throttle: so
    many calls are refused with 429. slow: seconds added before the call is executed.
    """

    def __init__(
        self, service: Any, watch: Callable[[str, tuple[Any, ...]], Awaitable[None]] | None = None
    ) -> None:
        self._service, self._watch = service, watch
        self.down = False
        self.lose = self.throttle = 0
        self.slow = 0.0

    def heal(self) -> None:
        self.down, self.lose, self.throttle, self.slow = False, 0, 0, 0.0

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.slow:
                await asyncio.sleep(self.slow)
            if self.down:
                await asyncio.sleep(1)  # a connection that fails takes its time
                raise StoreUnavailable
            if self.throttle:
                self.throttle -= 1
                raise TooManyRequests(retry_after=0.5)
            if self._watch is not None:
                await self._watch(operation, args)
            answer = await getattr(self._service, operation)(*args, **kwargs)
            if self.lose:
                self.lose -= 1
                raise StoreUnavailable
            return answer

        return call
