"""The emulator's clock: the clock of the system, which a test can move forward."""

from __future__ import annotations

import time


class AdjustableClock:
    """
    A clock. A call returns seconds since the epoch. `advance` moves the clock forward, so that a test need not wait for a TTL.
    """

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
