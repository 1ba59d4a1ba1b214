"""
Freezing one worker of several on one loop, as SIGSTOP does: nothing of it runs, not even its timers, while time goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any


class Freeze:
    """What one worker's callbacks check before they run; those held back run, in order, after `thaw`."""

    def __init__(self) -> None:
        self.frozen = False
        self._held: list[Callable[[], object]] = []

    def hold(self, run: Callable[[], object]) -> None:
        self._held.append(run)

    def thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for run in held:
            run()


FREEZE: ContextVar[Freeze | None] = ContextVar("FREEZE", default=None)


@contextmanager
def freezable(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """
    Have the loop hold back every callback whose context belongs to a frozen worker, for as long as the block lasts.
    """
    call_soon, call_at = loop.call_soon, loop.call_at

    def guarded(schedule: Callable[..., asyncio.Handle], callback: Any, args: Any, context: Any) -> Any:
        freeze = FREEZE.get() if context is None else context.get(FREEZE)
        if freeze is None:
            return schedule(callback, *args, context=context)

        def run() -> None:
            if handle.cancelled():
                return
            if freeze.frozen:
                freeze.hold(lambda: call_soon(run, context=context))
            else:
                callback(*args)

        handle = schedule(run, context=context)
        return handle

    def soon(callback: Any, *args: Any, context: Any = None) -> Any:
        return guarded(call_soon, callback, args, context)

    def at(when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return guarded(partial(call_at, when), callback, args, context)

    loop.call_soon, loop.call_at = soon, at  # type: ignore[method-assign]
    try:
        yield
    finally:
        loop.call_soon, loop.call_at = call_soon, call_at  # type: ignore[method-assign]
