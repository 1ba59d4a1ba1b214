"""
The network between one worker and the services, with faults that can be switched on.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

from cosmos_outbox.errors import AccessDenied, NotFound, StoreUnavailable, TooManyRequests

READ_TIMEOUT = 10.0
_SERVICE_SIDE = contextvars.Context()  # a service goes on while a worker is frozen


class Link:
    """
    Every call of a worker to one service goes through here; what was sent is executed, whatever becomes of the worker.

    dead: the process is gone, nothing leaves it. down: nothing reaches the service. lose: so many answers are lost
    after the service executed the call. throttle, unavailable, deny, missing: so many calls are refused with 429, 503,
    403, 404. slow: seconds before the call is executed; beyond the read timeout the worker gives up on it first.
    """

    def __init__(
        self,
        service: Callable[[], Any],
        watch: Callable[[str, tuple[Any, ...], str | None], Awaitable[None]] | None = None,
    ) -> None:
        self._service, self._watch = service, watch
        self.dead = False
        self.heal()

    def heal(self) -> None:
        self.down, self.slow = False, 0.0
        self.lose = self.throttle = self.unavailable = self.deny = self.missing = 0

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                await asyncio.get_running_loop().create_future()
            if self.down:
                await asyncio.sleep(1)  # a connection that fails takes its time
                raise StoreUnavailable
            self._refuse(operation)
            if self._watch is not None:
                await self._watch(operation, args, kwargs.get("etag"))
            executed = asyncio.get_running_loop().create_task(
                self._execute(operation, args, kwargs, self.slow), context=_SERVICE_SIDE.copy()
            )
            executed.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # seen, if nobody waits
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    answer = await asyncio.shield(executed)
            except TimeoutError:
                raise StoreUnavailable from None
            if self.lose:
                self.lose -= 1
                raise StoreUnavailable
            return answer

        return call

    def _refuse(self, operation: str) -> None:
        if self.throttle:
            self.throttle -= 1
            raise TooManyRequests(retry_after=0.5)
        if self.unavailable:
            self.unavailable -= 1
            raise StoreUnavailable(applied=False)
        if self.deny:
            self.deny -= 1
            raise AccessDenied
        if self.missing and operation in ("read", "replace", "delete"):
            self.missing -= 1
            raise NotFound

    async def _execute(
        self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any], delay: float
    ) -> Any:
        if delay:
            await asyncio.sleep(delay)
        return await getattr(self._service(), operation)(*args, **kwargs)
