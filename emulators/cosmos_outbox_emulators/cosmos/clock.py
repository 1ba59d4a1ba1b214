"""The emulator's time: the wall clock, which a test may push forward."""

from __future__ import annotations

import time


class AdjustableClock:
    """Returns seconds since the epoch. `advance` moves the clock, so that TTLs pass without waiting."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
