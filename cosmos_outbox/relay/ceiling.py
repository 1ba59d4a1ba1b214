"""
Ceiling: a limit of the messages that a process sends per second.

All lanes of the process (its parallel streams to the topic) share the limit, in the order in which they ask. A lane asks for a turn, which
allows messages for at most a tenth of a second, so no lane waits long for another lane. Each turn begins when the turns before it are used
up. After an outage the messages are not sent faster than the limit, although none were sent for a while.
"""

from __future__ import annotations

import asyncio

from cosmos_outbox.errors import ConfigurationError, require

_TURNS_A_SECOND = 10
_LATELY_SECONDS = 1.0


class Ceiling:
    """
    A limit of messages a second, for all lanes, leases and containers of a process together. Each process has its own limit.

    Args:
        per_second: how many messages the process may send in a second.
    """

    def __init__(self, per_second: float) -> None:
        require(
            per_second > 0, f"A ceiling must be more than 0 a second, not {per_second}.", ConfigurationError
        )
        self.per_second = per_second
        self.at_once = max(1, int(per_second / _TURNS_A_SECOND))  # the most messages a lane sends at once
        self._free_at = self._held_until = float("-inf")

    @classmethod
    def of(cls, per_second: float | None) -> Ceiling | None:
        """Return a limit of this many messages a second, or None if `per_second` is None, which means no limit."""
        return None if per_second is None else cls(per_second)

    def reserve(self, number: int, *, now: float) -> float:
        """Reserve the right to send this number of messages. Return the seconds until the caller may send them."""
        begins = max(now, self._free_at)
        self._free_at = begins + number / self.per_second
        if begins > now:
            self._held_until = begins
        return begins - now

    def holds_back(self, *, now: float) -> bool:
        """Say whether the limit made a sender wait during the last second."""
        return now <= self._held_until + _LATELY_SECONDS

    async def turn(self, number: int = 1) -> None:
        """Wait until the limit allows this number of messages to be sent."""
        await asyncio.sleep(self.reserve(number, now=asyncio.get_running_loop().time()))
