"""
Slots: how many sessions are handled side by side, and which of them leaves for one that waits.

An accepted session waits for a slot. One in trouble, whose last attempt failed, waits for the next attempt without a slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.retries import Backoff

_BESIDE = 3  # for each slot, so many more sessions may be accepted ahead, and so many may rest
# A session rests at least this long before another takes its place. Where more keys wait than may rest, the broker gives out each in
# turn, and with them those that can be handled.
_STAY_SECONDS = 2.0
# If the broker has a message at hand, it delivers it within this time. A session without one is idle, and leaves its slot to another.
AT_HAND_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """
    How many sessions a processor holds, and for how long.

    Raises:
        ConfigurationError: a value cannot work.
    """

    # How many sessions are handled side by side; some more are accepted ahead. Defaults to 32.
    max_concurrent_sessions: int = 32
    # How many more sessions are held while they wait for another attempt; further ones take turns. Defaults to 3 for each handled.
    max_waiting_sessions: int | None = None
    # After this time without a message a session is given back; at once if another waits for its slot. Defaults to 5 s.
    session_idle_timeout: timedelta = timedelta(seconds=5)
    # For how long the lock is renewed while one message is handled; then the handler is cancelled. Defaults to 5 min.
    max_handling: timedelta = timedelta(minutes=5)
    # How long handlers may work on after `stop`. Defaults to 20 s.
    grace_period: timedelta = timedelta(seconds=20)
    # Between attempts to reach the broker, and before a message whose handler failed is delivered again.
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        for name in ("max_concurrent_sessions", "max_waiting_sessions"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {number}.")
        for name in ("session_idle_timeout", "max_handling"):
            if getattr(self, name) <= timedelta(0):
                raise ConfigurationError(f"{name} must be more than 0, not {getattr(self, name)}.")
        if self.grace_period < timedelta(0):
            raise ConfigurationError(f"grace_period must be at least 0, not {self.grace_period}.")


class SlotHolder(Protocol):
    """
    A session that has a slot.

    idle_since: since when it is without a message, in the loop's time.
    leaving: unless a message comes at once.
    """

    idle_since: float | None
    leaving: bool

    def leave(self) -> None:
        """Give the slot back, unless a message is at hand."""
        ...


class Slots:
    """
    A number of slots, given out in the order in which sessions asked. Sessions in trouble, whose last attempt failed, have half of
    them.

    Args:
        options: how many, and how many sessions may wait for another attempt without one.
        holders: the sessions that have one.
        freed: called when a slot is free, or another session may rest.

    Attributes:
        free: slots that no session has.
    """

    def __init__(
        self, options: SessionOptions, holders: Collection[SlotHolder], *, freed: Callable[[], None]
    ) -> None:
        self.free = number = options.max_concurrent_sessions
        self._holders, self._on_free = holders, freed
        self._for_troubled = asyncio.Semaphore(max(1, number // 2))
        self._most_ahead = _BESIDE * number
        self._most_resting = options.max_waiting_sessions or self._most_ahead
        self._queue: deque[asyncio.Future[None]] = deque()
        self._freed: deque[float] = deque(maxlen=self._most_ahead)  # when each slot was given back
        # for each resting session, whether it may be sent away
        self._resting: dict[asyncio.Future[None], bool] = {}
        self._came: deque[float] = deque(maxlen=self._most_resting)  # when each session began to rest

    @property
    def waiting(self) -> int:
        """Return how many sessions wait for a slot."""
        return len(self._queue)

    async def take(self, seconds: float | None = None) -> bool:
        """Take a slot. Return whether one became free in time."""
        if self.free:
            self.free -= 1
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self.make_room()
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

    def count_recovery(self) -> None:
        """Count the slot of a session in trouble as an ordinary one, because a message of the session took effect."""
        self._for_troubled.release()

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
        """Say whether no further session may rest."""
        return len(self._resting) >= self._most_resting

    @contextmanager
    def rest(self, *, may_leave: bool) -> Iterator[asyncio.Future[None]]:
        """
        Count a session as resting: it waits without a slot. Its future is done when it has to leave, because other sessions come and
        it is the first that may go.
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
        """Have all resting sessions leave, or only so many, and only of those that may leave."""
        for leave in [one for one, may_leave in self._resting.items() if may_leave or most is None][:most]:
            del self._resting[leave]
            leave.set_result(None)

    def make_room(self) -> None:
        """Have as many idle sessions leave as other sessions wait for slots, the longest idle first."""
        if not self._queue:
            return
        more = len(self._queue) - sum(held.leaving for held in self._holders)
        idle = [held for held in self._holders if held.idle_since is not None and not held.leaving]
        for held in sorted(idle, key=lambda one: one.idle_since or 0.0)[: max(0, more)]:
            held.leave()

    def worth_accepting(self, seconds: float, *, probing: bool) -> int:
        """
        Return how many sessions will find a slot within `seconds`, the time that it takes to accept one. Sessions that wait already
        are included.

        While probing, the number is at least 1: an accepted session shows that others wait behind one with many messages.
        """
        now = asyncio.get_running_loop().time()
        if self.full and self._came[0] > now - _STAY_SECONDS:
            return 0  # no other session may begin to rest now
        soon = self.free + sum(
            held.idle_since is not None and held.idle_since < now - AT_HAND_SECONDS for held in self._holders
        )
        if not probing:
            return soon
        # Twice as many as lately, so that the number of accepted sessions can grow
        freed = sum(moment > now - seconds for moment in self._freed)
        return max(1, soon + min(2 * freed, self._most_ahead))
