"""
Ceiling: the most messages a second that a process sends. Its lanes share them, and get their turns in the order in which they ask.

A turn is for a tenth of a second at most, so no lane waits long for another, and each begins when all turns before it are used up. Time in
which nothing was sent is not made up for: after an outage the rate is the same.
"""

from __future__ import annotations

import asyncio

from cosmos_outbox.errors import ConfigurationError, require

_TURNS_A_SECOND = 10
_LATELY_SECONDS = 1.0


class Ceiling:
    """
    A ceiling of messages a second, for all lanes, leases and containers of a process together. Each process has its own.

    Args:
        per_second: how many.
    """

    def __init__(self, per_second: float) -> None:
        require(
            per_second > 0, f"A ceiling must be more than 0 a second, not {per_second}.", ConfigurationError
        )
        self.per_second = per_second
        self.at_once = max(1, int(per_second / _TURNS_A_SECOND))  # the most messages of one turn
        self._free_at = self._held_until = float("-inf")

    @classmethod
    def of(cls, per_second: float | None) -> Ceiling | None:
        """Return a ceiling of so many messages a second; None if there is no limit."""
        return None if per_second is None else cls(per_second)

    def reserve(self, number: int, *, now: float) -> float:
        """Reserve the next turn for so many messages, and return the seconds until it begins."""
        begins = max(now, self._free_at)
        self._free_at = begins + number / self.per_second
        if begins > now:
            self._held_until = begins
        return begins - now

    def holds_back(self, *, now: float) -> bool:
        """Say whether a lane waited for its turn during the last second."""
        return now <= self._held_until + _LATELY_SECONDS

    async def turn(self, number: int = 1) -> None:
        """Wait for a turn for so many messages."""
        await asyncio.sleep(self.reserve(number, now=asyncio.get_running_loop().time()))
