"""
Freezing one worker of several on one loop, as SIGSTOP does: nothing of it runs, not even its timers, while time goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any


class Ice:
    """
    What one worker's callbacks check before they run; those held back run, in order, after `thaw`.
    """

    def __init__(self) -> None:
        self.frozen = False
        self._held: list[Callable[[], None]] = []

    def hold(self, run: Callable[[], None]) -> None:
        self._held.append(run)

    def thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for run in held:
            run()


ICE: ContextVar[Ice | None] = ContextVar("ICE", default=None)


def install(loop: asyncio.AbstractEventLoop) -> None:
    """
    Have the loop hold back every callback whose context belongs to a frozen worker.
    """
    call_soon, call_at = loop.call_soon, loop.call_at

    def guarded(schedule: Callable[..., asyncio.Handle], callback: Any, args: Any, context: Any) -> Any:
        ice = ICE.get() if context is None else context.get(ICE)
        if ice is None:
            return schedule(callback, *args, context=context)

        def run() -> None:
            if handle.cancelled():
                return
            if ice.frozen:
                ice.hold(lambda: call_soon(run, context=context))  # type: ignore[arg-type, return-value]
            else:
                callback(*args)

        handle = schedule(run, context=context)
        return handle

    loop.call_soon = lambda callback, *args, context=None: guarded(call_soon, callback, args, context)  # type: ignore[method-assign, assignment]
    loop.call_at = lambda when, callback, *args, context=None: guarded(  # type: ignore[method-assign, assignment]
        lambda run, *rest, context=None: call_at(when, run, *rest, context=context), callback, args, context
    )
