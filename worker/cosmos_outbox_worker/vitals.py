"""
Vitals: what a worker or a consumer learns of itself, from the records that it hears and from its polls; a hook.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

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
from cosmos_outbox_worker.health import MOST_SHOWN, ConsumerSnapshot, ParkedSeen, Snapshot, StalledKey, State
from cosmos_outbox_worker.recent_errors import RecentErrors

SnapshotT = TypeVar("SnapshotT", bound=State)

_RATE_SECONDS = 60.0
_MOST_KEYS = 100
_MOST_WAITS = 1000
_LATE_SECONDS = 30.0  # how late a delivery may come
_REMEMBERED_SECONDS = 900.0


class Vitals(ABC, Generic[SnapshotT]):
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
        self._stalled_seconds = stalled_after.total_seconds()
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

    @abstractmethod
    def _hear(self, record: Record, now: float) -> None:
        """Learn what this kind of process learns from a record."""

    @abstractmethod
    def snapshot(self) -> SnapshotT:
        """Return the health now."""

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

    def _facts(self, phase: Phase, unready: Iterable[str]) -> dict[str, Any]:
        """Return what each snapshot has; `unready` says what keeps a process from being ready that does not drain."""
        if phase is Phase.DRAINING:
            unready = (f"The {self.name} is draining.",)
        return {
            **self._named,
            "at": self._utcnow(),
            "started_at": self._started_at,
            "phase": phase,
            "parked": self._parked[0] if self._parked and not self._unseen(self._parked[2]) else None,
            "parked_at": self._parked[1] if self._parked else None,
            "errors": self._errors.newest_first(),
            "unready": (self._end,) if self._end else tuple(unready),
        }


class WorkerVitals(Vitals[Snapshot]):
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
        self._unlisted = "."  # how a sentence ends that says why
        self._unreached: str | None = None
        self._lag: tuple[Lag, datetime, float] | None = None
        self._others: tuple[tuple[Heartbeat, ...], float] | None = None
        # By lease: its oldest age, and when that was seen
        self._ages: dict[str, tuple[timedelta, float]] = {}

    def _hear(self, record: Record, now: float) -> None:
        if isinstance(record, MessagesPublished):
            self._count(record.messages)
        elif isinstance(record, LeasesBalanced):
            self._balanced_at = now if record.outcome == "listed" else self._balanced_at
            self._unlisted = f": {record.error}" if record.error else "."

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
        phase, mine = self._phase(starting=self._balanced_at is None), self._leases(self.stalled_after)
        lag, lag_at, polled_at = self._lag or (None, None, self._loop.time())
        return Snapshot(
            **self._facts(phase, self._reasons(mine)),
            mine=mine,
            lag=lag and self._aged(lag, polled_at),
            lag_at=lag_at,
            unseen=self._unseen(polled_at),
            event_ttl=self._event_ttl,
            sent=self._done,
            sent_per_second=self._per_second(),
            others=None if self._others is None or self._unseen(self._others[1]) else self._others[0],
        )

    def _reasons(self, mine: Iterable[LeaseStatus]) -> Iterator[str]:
        """Yield what keeps it from being ready; one without leases is: it takes over as soon as another one ends."""
        if self._balanced_at is None:
            yield f"The worker has not seen the leases yet{self._unlisted}"
        elif (unlisted := self._loop.time() - self._balanced_at) > self._stalled_seconds:
            yield f"The leases could not be listed for {unlisted:.0f} s{self._unlisted}"
        if self._unreached is not None:
            yield f"No link to the topics was opened yet: {self._unreached}"
        # A lease that waits for the topic has no error of its own.
        last_error = self._errors.last_since(self._utcnow() - self.stalled_after) or "no error known"
        for lease in mine:
            if lease.stalled:
                yield f"Lease {lease.token} did not move for {lease.idle_seconds:.0f} s: {lease.error or last_error}."

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


class ConsumerVitals(Vitals[ConsumerSnapshot]):
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
        stalled = self._stalled(self._loop.time())
        sessions = tuple(sorted(self._sessions(), key=lambda one: -(one.handling_seconds or 0)))
        if not self._is_delayed():
            self._delayed = None
        if self._is_receiving():
            self._cut_off = None
        return ConsumerSnapshot(
            **self._facts(self._phase(starting=not self._reached), self._reasons(sessions, stalled)),
            sessions=sessions,
            handled=self._done,
            handled_per_second=self._per_second(),
            stalled=stalled,
            fallback=self._fallback,
        )

    def _reasons(self, sessions: Iterable[SessionStatus], stalled: tuple[StalledKey, ...]) -> Iterator[str]:
        """Yield what keeps it from being ready."""
        now, least, source = self._loop.time(), self._stalled_seconds, self._named["source"]
        if not self._reached:
            hint = "" if "/" in source else " If it is a topic, set OUTBOX_SUBSCRIPTION."
            said_last = f": {self._cut_off[1]}" if self._cut_off else "."
            yield f"The consumer has not reached {source} yet{said_last}{hint}"
        elif self._cut_off and (seconds := now - self._cut_off[0]) > least:
            yield f"No session could be accepted or kept for {seconds:.0f} s: {self._cut_off[1]}"
        if self._delayed and (seconds := now - self._delayed[0]) > least:
            yield f"Messages have waited for a store for {seconds:.0f} s: {self._delayed[1]}"
        else:  # it would be said of each key
            for key in stalled[:MOST_SHOWN]:
                waited = f"has waited for {key.waited_seconds:.0f} s, through no fault of its messages"
                yield f"Key {key.key!r} {waited}: {key.error}"
            if len(stalled) > MOST_SHOWN:
                yield f"So have {len(stalled) - MOST_SHOWN} more."
        if self._is_halted():
            yield f"The handlers fail on every key, so messages wait: {self._halted_by or 'see the errors'}"
        for one in sessions:
            if one.handling_seconds is not None and one.handling_seconds > least:
                message = f"A message{f' of session {one.session!r}' if one.session else ''}"
                yield f"{message} has been handled for {one.handling_seconds:.0f} s."

    def _stalled(self, now: float) -> tuple[StalledKey, ...]:
        stalled = [
            StalledKey(key=one.key, message_id=name, waited_seconds=now - one.since, error=said(one.error))
            for name, one in self._waits.items()
            if now - one.since > self._stalled_seconds and now - one.due <= _LATE_SECONDS
        ]
        return tuple(sorted(stalled, key=lambda one: -one.waited_seconds))
