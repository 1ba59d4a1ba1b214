"""
Slots: how many sessions a process handles at the same time, and which session gives its slot to a session that waits.

A process handles a session only while the session has a slot. A session in trouble, whose last attempt at a message failed, has no slot
while it waits for the next attempt: it rests. `processor.py` decides how many sessions to ask the broker for.
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

# for each slot, this many sessions may be accepted before they have a slot, and this many may rest
_BESIDE = 3
# How long a session rests (waits for another attempt) at least before another session takes its place. If more sessions wait than the
# process may keep, they take turns. So the broker also gives out the sessions whose messages can be handled.
_STAY_SECONDS = 2.0
# If the broker already has the next message of a session, the message comes within this time. A session without a message for this time is
# idle, and gives its slot to a session that waits.
AT_HAND_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """
    The options of a SessionProcessor: how many sessions it handles at the same time, and for how long it keeps each.

    Raises:
        ConfigurationError: a value cannot work.
    """

    # How many sessions are handled side by side. Some more are accepted before a slot is free. Defaults to 32.
    max_concurrent_sessions: int = 32
    # How many more sessions the process keeps locked while they wait for another attempt at a message. If there are more such sessions, they
    # take turns. Defaults to three times `max_concurrent_sessions`.
    max_waiting_sessions: int | None = None
    # How long a session may be without a message before it is given back to the broker. If another session waits for a slot, the
    # session without a message is given back at once. Defaults to 5 s.
    session_idle_timeout: timedelta = timedelta(seconds=5)
    # How long a handler may take for one message, while the lock is renewed. Then the handler is cancelled. Defaults to 5 min.
    max_handling: timedelta = timedelta(minutes=5)
    # How long running handlers may go on after `stop` was called. Defaults to 20 s.
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
    A session that has a slot. The number of slots limits how many sessions handle messages at the same time.

    idle_since: since when the session has had no message, in the loop's time; None while it has one.
    leaving: whether the session leaves its slot unless a message comes at once.
    """

    idle_since: float | None
    leaving: bool

    def leave(self) -> None:
        """Give the slot back, unless a message is about to arrive."""
        ...


class Slots:
    """
    The slots of a process, each of which allows it to handle one session. Sessions get slots in the order in which they ask. Sessions in
    trouble, whose last attempt at a message failed, may have at most half of the slots.

    Args:
        options: how many slots there are, and how many sessions may rest, which is to wait for another attempt and occupy no slot.
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
        # For each session that rests until its next attempt: whether it may be given back to make room for another session.
        self._resting: dict[asyncio.Future[None], bool] = {}
        # The times at which the latest sessions gave their slots back, to wait for another attempt at a message
        self._came: deque[float] = deque(maxlen=self._most_resting)

    @property
    def waiting(self) -> int:
        """Return how many sessions wait for a slot."""
        return len(self._queue)

    async def take(self, seconds: float | None = None) -> bool:
        """Take a slot, or wait for one. Return False if no slot became free within `seconds`."""
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
        """
        Take a slot for a session whose last message failed. Wait until a slot is free and fewer than half of all slots are taken by such
        sessions.
        """
        await self._for_troubled.acquire()
        try:
            return await self.take()
        except BaseException:
            self._for_troubled.release()
            raise

    def count_recovery(self) -> None:
        """Stop counting a session as one whose last message failed, because a message took effect. The session keeps its slot."""
        self._for_troubled.release()

    def give_back(self, *, troubled: bool = False) -> None:
        """
        Give a slot back. If sessions wait, the session that has waited for longest gets the slot.

        `troubled` says whether the session took the slot by `take_troubled`, and none of its messages took effect since then.
        """
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
        """Say whether as many sessions rest (wait for another attempt without a slot) as the limit allows."""
        return len(self._resting) >= self._most_resting

    @contextmanager
    def rest(self, *, may_leave: bool) -> Iterator[asyncio.Future[None]]:
        """
        Inside this block, count a session as resting: it waits for another attempt without a slot.

        The yielded future is done when the session has to be given back, because more sessions rest than are allowed. The session that
        has rested for longest leaves first.
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
        """
        Tell all sessions that wait for another attempt and occupy no slot to leave, because the processor stops. With `most`, tell at most this
        many, and only sessions that may leave.
        """
        for leave in [one for one, may_leave in self._resting.items() if may_leave or most is None][:most]:
            del self._resting[leave]
            leave.set_result(None)

    def make_room(self) -> None:
        """
        For each session that waits for a slot, ask an idle session to give its slot back. The session that has been idle for longest is asked
        first.
        """
        if not self._queue:
            return
        more = len(self._queue) - sum(held.leaving for held in self._holders)
        idle = [held for held in self._holders if held.idle_since is not None and not held.leaving]
        for held in sorted(idle, key=lambda one: one.idle_since or 0.0)[: max(0, more)]:
            held.leave()

    def worth_accepting(self, seconds: float, *, probing: bool) -> int:
        """
        Return how many sessions will find a slot within `seconds`, the time that it takes to accept a session.

        If `probing` is True, the number is at least 1 and grows with the slots that became free lately. A session that is accepted without a
        free slot makes the other sessions take turns.
        """
        now = asyncio.get_running_loop().time()
        # Accept no session while as many sessions as the limit allows wait without a slot, and none of them may be given back yet. If one
        # more session were accepted and its message failed, that session could not wait for its next attempt either.
        if self.full and self._came[0] > now - _STAY_SECONDS:
            return 0
        soon = self.free + sum(
            held.idle_since is not None and held.idle_since < now - AT_HAND_SECONDS for held in self._holders
        )
        if not probing:
            return soon
        # Expect that twice as many slots become free as in the last `seconds`: so the number of sessions that are accepted can grow.
        freed = sum(moment > now - seconds for moment in self._freed)
        return max(1, soon + min(2 * freed, self._most_ahead))
