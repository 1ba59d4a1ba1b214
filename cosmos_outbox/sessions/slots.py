"""
Slots: how many sessions are handled side by side, which accepted sessions wait for one that handles, and which for another attempt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cosmos_outbox.sessions.options import SessionOptions

_BESIDE = 3  # sessions for each slot that may be accepted ahead, and that may rest
# What rests stays so long before another takes its place: a broker with more keys that wait than may rest gives each in turn, and a key
# that can be handled among them.
_STAY_SECONDS = 2.0


class Slots:
    """
    A number of slots, handed on in the order in which they were asked for; sessions in trouble, whose last attempt failed, have half.

    Args:
        options: how many, and how many sessions may wait for another attempt without one.
        crowded: called when a session begins to wait for a slot.
        freed: called when a slot is free, or another session may rest.

    Attributes:
        free: slots that no session has.
    """

    def __init__(
        self, options: SessionOptions, *, crowded: Callable[[], None], freed: Callable[[], None]
    ) -> None:
        self.free = number = options.max_concurrent_sessions
        self._crowded, self._on_free = crowded, freed
        self._for_troubled = asyncio.Semaphore(max(1, number // 2))
        self._most_ahead = _BESIDE * number
        self._most_resting = options.max_waiting_sessions or self._most_ahead
        self._queue: deque[asyncio.Future[None]] = deque()
        self._freed: deque[float] = deque(maxlen=self._most_ahead)  # when
        self._resting: dict[asyncio.Future[None], bool] = {}  # whether it may be sent away
        self._came: deque[float] = deque(maxlen=self._most_resting)  # when a session began to rest

    @property
    def waiting(self) -> int:
        """Return how many sessions wait for a slot."""
        return len(self._queue)

    async def take(self, seconds: float | None = None) -> bool:
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

    async def take_troubled(self) -> bool:
        """Take one of the slots for sessions in trouble."""
        await self._for_troubled.acquire()
        try:
            return await self.take()
        except BaseException:
            self._for_troubled.release()
            raise

    def give_back(self, *, troubled: bool = False) -> None:
        """Hand a slot on."""
        if troubled:
            self._for_troubled.release()
        self._freed.append(asyncio.get_running_loop().time())
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self.free += 1
            self._on_free()

    @property
    def full(self) -> bool:
        """Say whether as many sessions rest as may."""
        return len(self._resting) >= self._most_resting

    @property
    def crammed(self) -> bool:
        """Say whether no other session may begin to rest now, as those that do came just before."""
        since = asyncio.get_running_loop().time() - _STAY_SECONDS
        return self.full and self._came[0] > since

    @contextmanager
    def rest(self, *, may_leave: bool) -> Iterator[asyncio.Future[None]]:
        """
        Count a session that waits without a slot; the future is done when it is to leave, as the first of those that may when others come.
        """
        loop = asyncio.get_running_loop()
        leave: asyncio.Future[None] = loop.create_future()
        self._resting[leave] = may_leave
        self._came.append(loop.time())
        loop.call_later(_STAY_SECONDS, self._on_free)
        if len(self._resting) > self._most_resting:
            self.send_away(1)
        try:
            yield leave
        finally:
            self._resting.pop(leave, None)

    def send_away(self, most: int | None = None) -> None:
        """Have all sessions that rest leave, or so many of those that may."""
        for leave in [one for one, may_leave in self._resting.items() if may_leave or most is None][:most]:
            del self._resting[leave]
            leave.set_result(None)

    def free_after(self, seconds: float) -> int:
        """
        Return for how many sessions slots will soon be free, if it takes so long to accept one: twice those of the last time, so that
        what is accepted can become more.
        """
        since = asyncio.get_running_loop().time() - seconds
        return min(2 * sum(moment > since for moment in self._freed), self._most_ahead)
