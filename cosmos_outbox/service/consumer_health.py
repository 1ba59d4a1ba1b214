"""
Consumer health: what a consumer knows of itself, from the records that it hears and the sessions that it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.ports import Session, Subscription
from cosmos_outbox.records import ConsumerHalted, ConsumingDelayed, MessageHandled, ReceivingFailed, Record
from cosmos_outbox.service.stalled_keys import StalledKey, StalledKeys
from cosmos_outbox.service.vitals import Phase, State, Vitals
from cosmos_outbox.sessions import SessionStatus

_MOST_SHOWN = 10  # of stalled keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSnapshot(State):
    """
    A consumer's health at one moment.

    source: the subscription, as `topic/subscription`, or the queue.
    stalled: keys that have waited for too long, through no fault of their messages; the longest first.
    """

    consumer: str
    source: str
    sessions: tuple[SessionStatus, ...]
    handled: int
    handled_per_second: float
    stalled: tuple[StalledKey, ...]

    def readiness(self) -> dict[str, Any]:
        """
        Return what `/readyz` answers, as JSON.
        """
        sessions = [asdict(session) for session in self.sessions]
        stalled = [asdict(key) for key in self.stalled[:_MOST_SHOWN]]
        # super() fails in a dataclass with slots
        return State.readiness(self) | {"sessions": sessions, "stalled": stalled}


class ConsumerHealth:
    """
    The health of a consumer; a hook. All calls but those of the hook come from the consumer's event loop.

    Args:
        instance: name of the process.
        consumer: its name.
        source: where messages come from.
        container: of the effects.
        dashboard: the address of a page with more.
        sessions: returns what is held.
        halted: says whether the handlers fail on all keys.
        delayed: says whether the last message had to wait for a store.
        receiving: says whether messages could be received, and settled, when it was last tried.
        stalled_after: a message that is handled, or a service that is away, for this long makes the consumer unready.
        poll_interval: time between two polls of what is parked. Defaults to 15 s.
        utcnow: the wall clock, for times that people read.
    """

    def __init__(
        self,
        *,
        instance: str,
        consumer: str,
        source: str,
        container: str,
        dashboard: str | None = None,
        sessions: Callable[[], tuple[SessionStatus, ...]],
        halted: Callable[[], bool],
        delayed: Callable[[], bool],
        receiving: Callable[[], bool],
        stalled_after: timedelta,
        poll_interval: timedelta = timedelta(seconds=15),
        utcnow: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.vitals = Vitals(
            "consumer", stalled_after=stalled_after, poll_interval=poll_interval, utcnow=utcnow
        )
        self._named = {"instance": instance, "consumer": consumer, "source": source, "container": container}
        self._dashboard = dashboard
        self._sessions, self._is_halted, self._is_delayed = sessions, halted, delayed
        self._is_receiving = receiving
        self._loop = asyncio.get_running_loop()
        self._reached = False
        self._cut_off: tuple[float, BaseException] | None = None  # since when, and the last error
        self._delayed: tuple[float, BaseException] | None = None
        self._halted_by: BaseException | None = None
        self._stalled_keys = StalledKeys(stalled_after)

    def __call__(self, record: Record) -> None:
        """
        Hear a record, from any thread: the watchdog of the event loop has its own.
        """
        if self.vitals.hear(record, self):
            return
        now = self._loop.time()
        self._stalled_keys.hear(record, now)
        if isinstance(record, MessageHandled):
            self.vitals.count(1)
        elif isinstance(record, ReceivingFailed):
            self._cut_off = (now - record.lasting_seconds, record.error)
        elif isinstance(record, ConsumingDelayed):
            self._delayed = (self._delayed[0] if self._delayed else now, record.error)
        elif isinstance(record, ConsumerHalted):
            self._halted_by = record.error

    def reached(self) -> None:
        """
        Note that the broker answered.
        """
        self._reached = True

    def snapshot(self) -> ConsumerSnapshot:
        """
        Return the consumer's health now.
        """
        vitals, sessions, stalled = self.vitals, self._sessions(), self._stalled_keys.at(self._loop.time())
        phase = vitals.phase(starting=not self._reached)
        return ConsumerSnapshot(
            at=vitals.utcnow(),
            started_at=vitals.started_at,
            **self._named,
            phase=phase,
            sessions=sessions,
            handled=vitals.done,
            handled_per_second=vitals.per_second,
            stalled=stalled,
            parked=vitals.parked,
            parked_at=vitals.parked_at,
            errors=vitals.errors.newest_first(),
            history=vitals.history.samples(),
            dashboard=self._dashboard,
            unready=(vitals.end,) if vitals.end else self._reasons(phase, sessions, stalled),
        )

    def _reasons(
        self, phase: Phase, sessions: Sequence[SessionStatus], stalled_keys: Sequence[StalledKey]
    ) -> tuple[str, ...]:
        if phase is Phase.DRAINING:
            return ("The consumer is draining.",)
        now, stalled = self._loop.time(), self.vitals.stalled_after.total_seconds()
        if not self._is_delayed():
            self._delayed = None
        if self._is_receiving():
            self._cut_off = None
        reasons = []
        if phase is Phase.STARTING:
            why = f": {self._cut_off[1]}" if self._cut_off else "."
            reasons.append(f"The consumer has not reached {self._named['source']} yet{why}")
        elif self._cut_off is not None and now - self._cut_off[0] > stalled:
            since, error = self._cut_off
            reasons.append(f"No session could be accepted or kept for {now - since:.0f} s: {error}")
        if self._delayed is not None and now - self._delayed[0] > stalled:
            since, error = self._delayed
            reasons.append(f"Messages have waited for a store for {now - since:.0f} s: {error}")
        else:  # it would be said of each key
            reasons += [
                f"Key {one.key!r} has waited for {one.waited_seconds:.0f} s, through no fault of its messages: {one.error}"
                for one in stalled_keys[:_MOST_SHOWN]
            ]
            if len(stalled_keys) > _MOST_SHOWN:
                reasons.append(f"So have {len(stalled_keys) - _MOST_SHOWN} more keys.")
        if self._is_halted():
            reasons.append(
                f"The handlers fail on every key, so messages wait: {self._halted_by or 'see the errors'}"
            )
        reasons += [
            f"A message{f' of session {one.session!r}' if one.session else ''} has been handled for "
            f"{one.handling_seconds:.0f} s."
            for one in sessions
            if one.handling_seconds is not None and one.handling_seconds > stalled
        ]
        return tuple(reasons)


class WatchedSubscription:
    """
    A subscription that reports each answer of the broker.
    """

    def __init__(self, subscription: Subscription, *, reached: Callable[[], None]) -> None:
        self._subscription, self._reached = subscription, reached

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self._subscription.accept(wait_seconds)
        self._reached()
        return session
