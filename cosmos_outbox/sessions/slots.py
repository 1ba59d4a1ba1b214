"""
Slots: how many sessions are handled side by side, and which accepted sessions wait for one that handles.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_BESIDE = 3  # sessions for each slot that may be accepted ahead, and that may rest


class Slots:
    """
    A number of slots, handed on in the order in which they were asked for.

    Args:
        number: of slots.
        crowded: called when a session begins to wait for one.

    Attributes:
        free: slots that no session has.
    """

    def __init__(self, number: int, *, crowded: Callable[[], None]) -> None:
        self.free, self._crowded = number, crowded
        self._most_ahead = self._may_rest = _BESIDE * number
        self._queue: deque[asyncio.Future[None]] = deque()
        self._freed: deque[float] = deque(maxlen=self._most_ahead)  # when

    @property
    def waiting(self) -> int:
        """Return how many sessions wait for a slot."""
        return len(self._queue)

    async def take(self, seconds: float) -> bool:
        """Take a slot, and return whether one came free in time."""
        if self.free:
            self.free -= 1
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._crowded()
        try:
            await asyncio.wait({turn}, timeout=seconds)
        except BaseException:
            if turn.done():
                self.give_back()
            raise
        finally:
            if turn in self._queue:
                self._queue.remove(turn)
        return turn.done()

    def give_back(self) -> None:
        """Hand a slot on."""
        self._freed.append(asyncio.get_running_loop().time())
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self.free += 1

    def rest(self) -> bool:
        """Hand on the slot of a session that only waits, and return whether it may wait without one."""
        if not self._may_rest:
            return False
        self._may_rest -= 1
        self.give_back()
        return True

    def rested(self) -> None:
        """Note that a session which rested has ended."""
        self._may_rest += 1

    def free_after(self, seconds: float) -> int:
        """
        Return for how many sessions slots will soon be free, if it takes so long to accept one: twice those of the last time, so that
        what is accepted can become more.
        """
        since = asyncio.get_running_loop().time() - seconds
        return min(2 * sum(moment > since for moment in self._freed), self._most_ahead)
