"""
Slots: how many sessions a process handles side by side, and which session gives its slot to one that waits.

An accepted session waits for a slot. A session in trouble, whose last attempt at a message failed, waits for its next attempt without one.
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

_BESIDE = 3  # for each slot, this many more sessions may be accepted ahead, and this many may rest
# How long a session rests at least before another takes its place. If more sessions wait for another attempt than may rest, they take
# turns: the broker gives out one after another, and among them those whose messages can be handled.
_STAY_SECONDS = 2.0
# The time within which the broker delivers a message that it already has. A session that gets none within this time is idle, and leaves its
# slot to another.
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
    # How many more sessions may be held while they wait for another attempt; if there are more, they take turns. Defaults to three times
    # `max_concurrent_sessions`.
    max_waiting_sessions: int | None = None
    # After how long without a message a session is given back. If another session waits for its slot, that is at once. Defaults to 5 s.
    session_idle_timeout: timedelta = timedelta(seconds=5)
    # For how long the lock is renewed while one message is handled; then the handler is cancelled. Defaults to 5 min.
    max_handling: timedelta = timedelta(minutes=5)
    # How long handlers may work on after `stop`. Defaults to 20 s.
    grace_period: timedelta = timedelta(seconds=20)
    # The wait between attempts to reach the broker, and before a message whose handler failed is delivered again.
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

    idle_since: since when the session has had no message, in the loop's time; None while it has one.
    leaving: whether the session leaves its slot unless a message comes at once.
    """

    idle_since: float | None
    leaving: bool

    def leave(self) -> None:
        """Give the slot back, unless a message is at hand."""
        ...


class Slots:
    """
    The slots of a process, given out in the order in which sessions ask. Sessions in trouble, whose last attempt failed, may have half of
    them.

    Args:
        options: how many slots there are, and how many sessions may rest, which is to wait for another attempt without a slot.
        holders: the sessions that have a slot.
        freed: called when a slot is free, or another session may rest.

    Attributes:
        free: how many slots no session has.
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
        """Take a slot, if necessary once one becomes free. Return False if none became free within so many seconds."""
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
        """Take one of the slots for sessions in trouble, as soon as one is free."""
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
        """Give a slot back: to the session that has waited for longest, if there is one."""
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
        Inside this block, count a session as resting: it waits for another attempt without a slot.

        The yielded future is done when the session has to leave because others come to rest: the one that has rested longest leaves first.
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
        """Have all resting sessions leave. With `most`, have at most this many leave, and only sessions that may leave."""
        for leave in [one for one, may_leave in self._resting.items() if may_leave or most is None][:most]:
            del self._resting[leave]
            leave.set_result(None)

    def make_room(self) -> None:
        """For each session that waits for a slot, ask an idle session to give its slot back. The session that was idle for longest comes first."""
        if not self._queue:
            return
        more = len(self._queue) - sum(held.leaving for held in self._holders)
        idle = [held for held in self._holders if held.idle_since is not None and not held.leaving]
        for held in sorted(idle, key=lambda one: one.idle_since or 0.0)[: max(0, more)]:
            held.leave()

    def worth_accepting(self, seconds: float, *, probing: bool) -> int:
        """
        Return how many sessions will find a slot within `seconds`, the time that it takes to accept a session.

        Sessions that already wait are included. While probing, the number is at least 1: if a session is accepted, others wait behind the
        sessions that are handled, and these have to take turns.
        """
        now = asyncio.get_running_loop().time()
        if self.full and self._came[0] > now - _STAY_SECONDS:
            return 0  # no other session may begin to rest now
        soon = self.free + sum(
            held.idle_since is not None and held.idle_since < now - AT_HAND_SECONDS for held in self._holders
        )
        if not probing:
            return soon
        # Expect twice as many slots to become free as became free in the last `seconds`, so that the number of accepted sessions can grow.
        freed = sum(moment > now - seconds for moment in self._freed)
        return max(1, soon + min(2 * freed, self._most_ahead))
