"""
Suspension: for how long the machine was asleep, which the event loop's clock leaves out and leases do not.
"""

from __future__ import annotations

import time

_READING_SECONDS = 0.1  # two clocks are not read at the same moment


def suspended_seconds() -> float:
    """
    Return for how long the machine was asleep since it was started; 0 where the platform does not tell.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    try:
        return 0.0 if clock is None else time.clock_gettime(clock) - time.monotonic()
    except OSError:  # the kernel, or a sandbox, has no such clock
        return 0.0


def asleep_since(before: float, now: float) -> float:
    """
    Return how long the machine was asleep between two readings of `suspended_seconds`.
    """
    return now - before if now - before > _READING_SECONDS else 0.0
