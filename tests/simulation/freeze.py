"""
Freeze one of several workers that share an event loop: none of its callbacks and timers run, while the other workers go on.

A freeze simulates the signal SIGSTOP, during which the clock of the worker's loop goes on, or a sleeping machine, whose clock stands
still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Freeze:
    """
    Says whether a worker is frozen. The worker's callbacks ask before they run. While the worker is frozen, they are kept, and
    `thaw` runs them in their order.
    """

    def __init__(self) -> None:
        self.frozen = False
        self.slept = 0.0  # how many seconds the worker's clock is behind, because its machine slept
        self._asleep_since: float | None = None
        self._held: list[Callable[[], object]] = []

    def sleep(self, now: float) -> None:
        self.frozen, self._asleep_since = True, now

    def hold(self, run: Callable[[], object]) -> None:
        self._held.append(run)

    def thaw(self, now: float) -> None:
        if self._asleep_since is not None:
            self.slept, self._asleep_since = self.slept + now - self._asleep_since, None
        self.frozen = False
        held, self._held = self._held, []
        for run in held:
            run()


# asyncio may run a timer this much too early. Only a timer that runs even earlier is scheduled again.
_TICK_SECONDS = 0.001
FREEZE: ContextVar[Freeze | None] = ContextVar("FREEZE", default=None)


def service_time() -> float:
    """
    Return the time of the service's clock. Unlike a worker's clock, it goes on while the worker's machine sleeps.
    """
    freeze = FREEZE.get()
    return asyncio.get_running_loop().time() + (freeze.slept if freeze else 0.0)


@contextmanager
def freezable(loop: asyncio.AbstractEventLoop) -> Iterator[None]:  # noqa: C901 - three methods of one loop
    """Within the block, make the loop keep the callbacks of frozen workers until they are thawed."""
    call_soon, call_at, time = loop.call_soon, loop.call_at, loop.time

    def guarded(when: float | None, callback: Any, args: Any, context: Any) -> Any:
        freeze = FREEZE.get() if context is None else context.get(FREEZE)

        def scheduled(run: Callable[..., object], *args: Any) -> Any:
            if when is None:
                return call_soon(run, *args, context=context)
            return call_at(when + (freeze.slept if freeze else 0.0), run, *args, context=context)

        if freeze is None:
            return scheduled(callback, *args)

        def run() -> None:
            if handle.cancelled():
                return
            if freeze.frozen:
                freeze.hold(lambda: call_soon(run, context=context))
            # The machine slept after the timer was set, so on the worker's clock the timer is not due yet.
            elif when is not None and time() + _TICK_SECONDS < when + freeze.slept:
                scheduled(run)
            else:
                callback(*args)

        handle = scheduled(run)
        return handle

    def soon(callback: Any, *args: Any, context: Any = None) -> Any:
        return guarded(None, callback, args, context)

    def at(when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return guarded(when, callback, args, context)

    def local_time() -> float:
        freeze = FREEZE.get()
        return time() - (freeze.slept if freeze else 0.0)

    loop.call_soon, loop.call_at, loop.time = soon, at, local_time  # type: ignore[method-assign]
    try:
        yield
    finally:
        loop.call_soon, loop.call_at, loop.time = call_soon, call_at, time  # type: ignore[method-assign]
