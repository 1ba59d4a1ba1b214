"""The network between one worker and the services, with faults that a script switches on and off."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

from cosmos_outbox.errors import (
    AccessDenied,
    NotFound,
    OutboxError,
    RangeGone,
    StoreUnavailable,
    TooManyRequests,
)
from cosmos_outbox.partition_key import FeedRange

READ_TIMEOUT = 10.0
# The service executes calls in this context, which has no variable FREEZE (see `freeze.py`). So the service goes on while the worker that
# called it is frozen.
_SERVICE_SIDE = contextvars.Context()


def _unexecuted() -> OutboxError:
    return StoreUnavailable(applied=False)


# The error that the Cosmos DB adapter raises for each HTTP status. After 500 and 408 the caller cannot know whether Cosmos DB executed
# the request.
REFUSALS: dict[int, Callable[[], OutboxError]] = {
    429: lambda: TooManyRequests(retry_after=0.5),
    449: _unexecuted,
    503: _unexecuted,
    500: StoreUnavailable,
    408: StoreUnavailable,
    403: AccessDenied,
    404: NotFound,
    410: RangeGone,
}

# The operations that a script can refuse with 404 or 410. The answer is untrue, because the document or range exists.
UNTRUE = {404: ("read", "replace", "delete"), 410: ("read_page", "physical_ranges", "partition_id")}


OF_ONE_RANGE = ("read_page", "partition_id")


class Link:
    """
    The connection of one worker to one service. A call that was sent is executed, even if the worker dies or stops waiting.

    dead: the worker's process was killed, so it sends no call.
    down: no call reaches the service.
    lose: the number of answers that are lost after the service executed the call.
    refused: the number of calls that are refused with `status`; `executed` says whether the service executes them.
    slow, late: the seconds from the call to its execution, and from its execution to the answer. The worker stops waiting after
    the read timeout.
    hot: a function that returns whether a range is throttled. The links of all workers have the same function.
    nonsense: the number of pages whose read raises an unexpected error.
    raced: the number of writes before which another program writes the same document.
    doomed: the number of steps until the worker is killed. A call has two steps: before it is sent, and before its answer comes.
    """

    def __init__(
        self,
        service: Callable[[], Any],
        *,
        sending: Callable[[str, tuple[Any, ...]], None] = lambda *_: None,
        race: Callable[[Any], Awaitable[object]] | None = None,
        die: Callable[[], None] = lambda: None,
        hot: Callable[[FeedRange], bool] = lambda _: False,
    ) -> None:
        self._service, self._sending, self._race, self._die = service, sending, race, die
        self._hot = hot
        self.dead = False
        self.heal()

    def heal(self) -> None:
        self.down, self.slow, self.late = False, 0.0, 0.0
        self.lose = self.refused = self.raced = self.doomed = self.nonsense = 0
        self.status, self.executed = 503, False

    def refuse(self, status: int, count: int, *, executed: bool = False) -> None:
        self.status, self.refused = status, count
        self.executed = executed and status in (500, 408)

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._unless_dead()
            if self.down:
                await asyncio.sleep(1)  # a failed connection is noticed late, as in a real network
                raise StoreUnavailable
            if operation in OF_ONE_RANGE and self._hot(args[0]):
                raise TooManyRequests(retry_after=0.5)
            refusal = None  # chosen before the call, because the script may change the status during the call
            if self.refused and operation in UNTRUE.get(self.status, (operation,)):
                self.refused -= 1
                refusal = REFUSALS[self.status]()
            if refusal and not self.executed:
                raise refusal
            self._sending(operation, args)
            executed = asyncio.get_running_loop().create_task(
                self._execute(operation, args, kwargs), context=_SERVICE_SIDE.copy()
            )
            # asyncio logs the exception of a task if no code retrieves it, and the worker may stop waiting for this task.
            executed.add_done_callback(lambda task: task.cancelled() or task.exception())
            await self._unless_dead()
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    answer = await asyncio.shield(executed)
            except TimeoutError:
                raise StoreUnavailable from None
            if refusal:
                raise refusal
            if self.nonsense and operation == "read_page":
                self.nonsense -= 1
                raise (KeyError, ValueError, TypeError)[self.nonsense % 3]("planted: the answer is no page")
            if self.lose:
                self.lose -= 1
                raise StoreUnavailable
            return answer

        return call

    async def _unless_dead(self) -> None:
        if self.doomed and not self.dead:
            self.doomed -= 1
            if not self.doomed:
                self._die()
        if self.dead:
            await asyncio.get_running_loop().create_future()

    async def _execute(self, operation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        slow, late = self.slow, self.late
        if slow:
            await asyncio.sleep(slow)
        if self.raced and self._race and operation == "replace":
            self.raced -= 1
            await self._race(args[0])
        answer = await getattr(self._service(), operation)(*args, **kwargs)
        if late:
            await asyncio.sleep(late)
        return answer
