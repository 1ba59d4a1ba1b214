"""
Vitals: what a worker or a consumer learns of itself, from the records that it hears and from its polls; a hook.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed import Lag, LeaseStatus
from cosmos_outbox.errors import said
from cosmos_outbox.records import (
    ConsumerHalted,
    ConsumingDelayed,
    LeaseMoved,
    LeasesBalanced,
    MessageHandled,
    MessageSettled,
    MessagesPublished,
    ReceivingFailed,
    Record,
    SdkFallback,
    level_of,
)
from cosmos_outbox.sessions import SessionStatus
from cosmos_outbox_worker.fleet import Heartbeat, Phase
from cosmos_outbox_worker.health import (
    ConsumerSnapshot,
    Outage,
    ParkedSeen,
    Snapshot,
    StalledKey,
    reasons_against,
    reasons_against_consumer,
)
from cosmos_outbox_worker.recent_errors import RecentErrors

_RATE_SECONDS = 60.0
_MOST_KEYS = 100
_MOST_WAITS = 1000
_LATE_SECONDS = 30.0  # how late a delivery may come
_REMEMBERED_SECONDS = 900.0


class Vitals:
    """
    What worker and consumer have in common. All calls but those of the hook come from the event loop.

    Args:
        name: of the kind of process, for what people read.
        named: what the snapshot says of who it is.
        stalled_after: without progress for this long, it is unready.
        poll_interval: time between two polls. Defaults to 15 s.
        utcnow: the wall clock, for times that people read.
    """

    def __init__(
        self,
        name: str,
        named: dict[str, str],
        *,
        stalled_after: timedelta,
        poll_interval: timedelta = timedelta(seconds=15),
        utcnow: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name, self._named = name, named
        self.stalled_after, self.poll_interval = stalled_after, poll_interval
        self._utcnow, self._started_at = utcnow, utcnow()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._began_at = self._loop.time()
        self._draining, self._end = False, ""
        self._parked: tuple[ParkedSeen, datetime, float] | None = None
        self._done = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._errors = RecentErrors()

    def __call__(self, record: Record) -> None:
        """Hear a record, from any thread: the watchdog of the event loop has its own."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self, record)
            return
        if level_of(record) >= logging.WARNING or (isinstance(record, LeaseMoved) and record.error):
            self._errors.note(record, at=self._utcnow())
        self._hear(record, self._loop.time())

    def _hear(self, record: Record, now: float) -> None:
        """Learn what this kind of process learns from a record."""

    def draining(self) -> None:
        """Note that the process was asked to stop."""
        self._draining = True

    def ended(self, error: BaseException | None) -> None:
        """Note that it has ended, and the error if it did not drain."""
        self._end = f"The {self.name} has ended." if error is None else f"The {self.name} has ended: {error}"

    def seen_parked(self, parked: ParkedSeen) -> None:
        """Note what is parked; of very many keys, only their number."""
        if len(parked.keys) > _MOST_KEYS:
            parked = replace(parked, keys=())
        self._parked = (parked, self._utcnow(), self._loop.time())

    def _count(self, number: int) -> None:
        self._done += number
        self._recent.append((self._loop.time(), number))
        self._per_second()

    def _per_second(self) -> float:
        now = self._loop.time()
        while self._recent and self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()
        window = min(_RATE_SECONDS, max(1.0, now - self._began_at))
        return sum(count for _, count in self._recent) / window

    def _seen_parked(self) -> ParkedSeen | None:
        return self._parked[0] if self._parked and not self._unseen(self._parked[2]) else None

    def _unseen(self, polled_at: float) -> timedelta:
        """Return for how long polls have failed; zero while they succeed."""
        since = timedelta(seconds=self._loop.time() - polled_at)
        return since if since > self.poll_interval + self.stalled_after else timedelta(0)

    def _phase(self, *, starting: bool) -> Phase:
        if self._end:
            return Phase.ENDED
        if self._draining:
            return Phase.DRAINING
        return Phase.STARTING if starting else Phase.RUNNING

    def _facts(self, unready: tuple[str, ...]) -> dict[str, Any]:
        """Return what each snapshot has."""
        return {
            **self._named,
            "at": self._utcnow(),
            "started_at": self._started_at,
            "parked": self._seen_parked(),
            "parked_at": self._parked[1] if self._parked else None,
            "errors": self._errors.newest_first(),
            "unready": (self._end,) if self._end else unready,
        }


class WorkerVitals(Vitals):
    """
    The vitals of a worker.

    Args:
        named: instance, processor, container and topic.
        leases: returns the status of the worker's own leases; its argument is `stalled_after`.
        event_ttl: how long events live. Defaults to 10 days.
        times: of all vitals.
    """

    def __init__(
        self,
        named: dict[str, str],
        *,
        leases: Callable[[timedelta], tuple[LeaseStatus, ...]],
        event_ttl: timedelta = timedelta(days=10),
        **times: Any,
    ) -> None:
        super().__init__("worker", named, **times)
        self._leases, self._event_ttl = leases, event_ttl
        self._balanced_at: float | None = None
        self._unreached: str | None = None
        self._lag: tuple[Lag, datetime, float] | None = None
        self._others: tuple[tuple[Heartbeat, ...], float] | None = None
        # By lease: its oldest age, and when that was seen
        self._ages: dict[str, tuple[timedelta, float]] = {}

    def _hear(self, record: Record, now: float) -> None:
        if isinstance(record, MessagesPublished):
            self._count(record.messages)
        elif isinstance(record, LeasesBalanced) and record.outcome == "listed":
            self._balanced_at = now

    def unreached(self, why: str | None) -> None:
        """Note why it is not known that events can be sent; None once a link to each topic was opened."""
        self._unreached = why

    def measured(self, lag: Lag) -> None:
        """Note what waits."""
        now = self._loop.time()
        self._lag = (lag, self._utcnow(), now)
        self._ages = {
            one.lease: self._ages[one.lease]
            if one.unseen is not None and one.lease in self._ages
            else (one.oldest_age or timedelta(0), now)
            for one in lag.leases
        }

    def heartbeat(self) -> Heartbeat:
        """Return what the other workers are to know of this one."""
        now = self.snapshot()
        return Heartbeat(
            worker=now.instance,
            every=self.poll_interval,
            phase=now.phase,
            unready=now.unready,
            errors=tuple(f"{error.event} {error.text}" for error in now.errors),
        )

    def met(self, others: tuple[Heartbeat, ...]) -> None:
        """Note the other workers."""
        self._others = (others, self._loop.time())

    def snapshot(self) -> Snapshot:
        """Return the worker's health now."""
        phase, mine = self._phase(starting=self._balanced_at is None), self._leases(self.stalled_after)
        listed_at = self._began_at if self._balanced_at is None else self._balanced_at
        lag, lag_at, polled_at = self._lag or (None, None, self._loop.time())
        reasons = reasons_against(
            phase,
            mine,
            unreached=self._unreached,
            unlisted_seconds=self._loop.time() - listed_at,
            stalled_seconds=self.stalled_after.total_seconds(),
            last_error=self._errors.last_since(self._utcnow() - self.stalled_after),
        )
        return Snapshot(
            **self._facts(reasons),
            phase=phase,
            mine=mine,
            lag=lag and self._aged(lag, polled_at),
            lag_at=lag_at,
            unseen=self._unseen(polled_at),
            event_ttl=self._event_ttl,
            sent=self._done,
            sent_per_second=self._per_second(),
            others=None if self._others is None or self._unseen(self._others[1]) else self._others[0],
        )

    def _aged(self, lag: Lag, polled_at: float) -> Lag:
        # What waited in a range that could not be read is older by now; where nothing waited, something may.
        leases = []
        for one in lag.leases:
            age, seen_at = self._ages[one.lease]
            late = age + timedelta(seconds=polled_at - seen_at)
            leases.append(one if one.unseen is None else replace(one, oldest_age=late))
        return replace(lag, leases=tuple(leases))


@dataclass(slots=True)
class _Wait:
    """
    A message that is delayed: a session delivers only its first one. Between two deliveries the session may go to another
    process, which then reports it: one that is not delivered in its time is reported no more, and forgotten later.
    """

    key: str
    since: float
    due: float  # when it is delivered again
    error: BaseException

    def is_old(self, now: float) -> bool:
        return now - self.due > _REMEMBERED_SECONDS


class ConsumerVitals(Vitals):
    """
    The vitals of a consumer.

    Args:
        named: instance, consumer, source and container.
        sessions: returns what is held.
        halted: says whether the handlers fail on all keys.
        delayed: says whether the last message had to wait for a store.
        receiving: says whether messages could be received, and settled, when it was last tried.
        times: of all vitals.
    """

    def __init__(
        self,
        named: dict[str, str],
        *,
        sessions: Callable[[], tuple[SessionStatus, ...]],
        halted: Callable[[], bool],
        delayed: Callable[[], bool],
        receiving: Callable[[], bool],
        **times: Any,
    ) -> None:
        super().__init__("consumer", named, **times)
        self._sessions, self._is_halted, self._is_delayed = sessions, halted, delayed
        self._is_receiving = receiving
        self._reached = False
        self._cut_off: tuple[float, BaseException] | None = None  # since when, and the last error
        self._delayed: tuple[float, BaseException] | None = None
        self._halted_by: BaseException | None = None
        self._fallback: str | None = None
        self._waits: dict[str, _Wait] = {}  # by message

    def _hear(self, record: Record, now: float) -> None:
        if isinstance(record, MessageHandled) and record.outcome == "handled":
            self._count(1)
        elif isinstance(record, ReceivingFailed):
            self._cut_off = (now - record.lasting_seconds, record.error)
        elif isinstance(record, ConsumingDelayed):
            self._delayed = (self._delayed[0] if self._delayed else now, record.error)
            self._wait(record, now)
        elif isinstance(record, MessageSettled) and record.outcome != "retry":
            self._waits.pop(record.message_id, None)
        elif isinstance(record, ConsumerHalted):
            self._halted_by = record.error
        elif isinstance(record, SdkFallback) and record.part == "receiver":
            self._fallback = record.reason

    def _wait(self, record: ConsumingDelayed, now: float) -> None:
        known = self._waits.pop(record.message_id, None)
        since = now if known is None or known.is_old(now) else known.since
        if len(self._waits) == _MOST_WAITS:
            self._waits = {name: one for name, one in self._waits.items() if not one.is_old(now)}
        if len(self._waits) < _MOST_WAITS:
            due = now + record.delay_seconds
            self._waits[record.message_id] = _Wait(record.key, since, due, record.error)

    def reached(self) -> None:
        """Note that the broker answered."""
        self._reached = True

    def snapshot(self) -> ConsumerSnapshot:
        """Return the consumer's health now."""
        phase, sessions, now = self._phase(starting=not self._reached), self._sessions(), self._loop.time()
        stalled = self._stalled(now)
        if not self._is_delayed():
            self._delayed = None
        if self._is_receiving():
            self._cut_off = None
        reasons = reasons_against_consumer(
            phase,
            sessions,
            source=self._named["source"],
            stalled_seconds=self.stalled_after.total_seconds(),
            stalled=stalled,
            cut_off=self._cut_off and Outage(now - self._cut_off[0], self._cut_off[1]),
            delayed=self._delayed and Outage(now - self._delayed[0], self._delayed[1]),
            halted_by=(self._halted_by or "see the errors") if self._is_halted() else None,
        )
        return ConsumerSnapshot(
            **self._facts(reasons),
            phase=phase,
            sessions=sessions,
            handled=self._done,
            handled_per_second=self._per_second(),
            stalled=stalled,
            fallback=self._fallback,
        )

    def _stalled(self, now: float) -> tuple[StalledKey, ...]:
        stalled = [
            StalledKey(key=one.key, message_id=name, waited_seconds=now - one.since, error=said(one.error))
            for name, one in self._waits.items()
            if now - one.since > self.stalled_after.total_seconds() and now - one.due <= _LATE_SECONDS
        ]
        return tuple(sorted(stalled, key=lambda one: -one.waited_seconds))
