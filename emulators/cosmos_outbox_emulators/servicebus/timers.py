"""The broker's timers, which are kept in one heap and run by the clock that the broker was given."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """
    Runs each callback when `run_due` is called after the callback's time. The server, or a test, calls `run_due` at `next_due`.

    `on_earlier`, when set, is called each time `next_due` moves closer.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock
        self.on_earlier: Callable[[float], None] | None = None
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._sweep_at = 1024

    @property
    def next_due(self) -> float | None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def at(self, due: float, callback: Callable[[], None]) -> Timer:
        if len(self._heap) >= self._sweep_at:
            # Cancelled timers are removed now and then. Otherwise cancelled timers that are due much later would fill the memory.
            self._heap = [item for item in self._heap if item[2].callback]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + 1024
        earlier = not self._heap or due < self._heap[0][0]
        timer = Timer(due, callback)
        heapq.heappush(self._heap, (due, next(self._order), timer))
        if earlier and self.on_earlier:
            self.on_earlier(due)
        return timer

    def run_due(self) -> None:
        now = self.now()
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback:
                callback()
