"""
Backoff: how long to wait before the next attempt, as a pure function.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """
    Exponential with full jitter: attempt n waits a random part of `initial * 2^(n-1)`, at most `maximum`.
    """

    initial_seconds: float = 0.1  # Defaults to 100 ms.
    maximum_seconds: float = 30.0  # Defaults to 30 s.

    def delay(
        self, attempt: int, *, at_least: float | None = None, random_part: float | None = None
    ) -> float:
        """
        Return the seconds to wait after failed attempt number `attempt` (from 1); `at_least` is what the service asked for.
        """
        ceiling = min(self.maximum_seconds, self.initial_seconds * 2.0 ** min(attempt - 1, 60))
        part = random.random() if random_part is None else random_part
        return max(at_least or 0.0, ceiling * part)
