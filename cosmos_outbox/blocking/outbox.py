"""
BlockingOutbox: the outbox for code without an event loop, such as Flask, Django and scripts. `background_loop.py` opens and closes it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar, overload

from cosmos_outbox.blocking.background_loop import Opener, Portal
from cosmos_outbox.blocking.unit_of_work import BlockingUnitOfWork
from cosmos_outbox.errors import PreconditionFailed, require
from cosmos_outbox.write.outbox import DEFAULT_ATTEMPTS, Outbox, is_last

UnitT = TypeVar("UnitT", bound=BlockingUnitOfWork)
ResultT = TypeVar("ResultT")


class BlockingOutbox:
    """
    An outbox whose calls block. A process needs one for each container, shared by all threads. It runs on an event loop in its own thread.

    The first use, or `with`, opens the outbox. The end of the `with` block closes it, or else the end of the process. A server that forks,
    such as gunicorn, may create the outbox before the fork, but must use it only after the fork. If the parent process has used it, a
    forked process gets a UsageError.

    Args:
        opener: a function with `@asynccontextmanager` that opens the client and the store, and yields an Outbox with its handlers.
    """

    def __init__(self, opener: Opener[Outbox]) -> None:
        self._portal = Portal(opener)

    def __enter__(self) -> Self:
        self._portal.get()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections when the calls under way have ended. Later calls raise UsageError."""
        self._portal.close()

    @overload
    def unit_of_work(self) -> BlockingUnitOfWork: ...
    @overload
    def unit_of_work(self, kind: type[UnitT]) -> UnitT: ...
    def unit_of_work(self, kind: type[BlockingUnitOfWork] = BlockingUnitOfWork) -> BlockingUnitOfWork:
        """Return a new unit of work, or one of the given subclass, for the calling thread only."""
        return kind(self._portal.get().unit_of_work(), self._portal)

    @overload
    def run(self, work: Callable[[BlockingUnitOfWork], ResultT], *, attempts: int = ...) -> ResultT: ...
    @overload
    def run(self, work: Callable[[UnitT], ResultT], *, kind: type[UnitT], attempts: int = ...) -> ResultT: ...
    def run(
        self,
        work: Callable[[Any], ResultT],
        *,
        kind: type[BlockingUnitOfWork] = BlockingUnitOfWork,
        attempts: int = DEFAULT_ATTEMPTS,
    ) -> ResultT:
        """
        Call `work(unit_of_work)` in this thread, commit, and return the result of `work`. See `Outbox.run`.

        Raises:
            UsageError: `work` is a coroutine function, or `attempts` is less than 1.
            PreconditionFailed, OutboxError: see `Outbox.run`.
        """
        require(attempts >= 1, f"Work needs at least one attempt, not {attempts}.")
        said = "A BlockingOutbox runs plain functions; give `async def` ones to Outbox.run."
        require(callable(work) and not inspect.iscoroutinefunction(work), said)
        attempt = 0
        while True:
            attempt += 1
            with self.unit_of_work(kind) as unit:
                try:
                    result = work(unit)
                    unit.commit()
                except PreconditionFailed as refusal:
                    if not unit.was_refused(refusal) or is_last(attempt, attempts, refusal):
                        raise
                else:
                    return result
            pause = self._portal.get().retries.backoff.delay(attempt)
            self._portal.call(partial(asyncio.sleep, pause))
