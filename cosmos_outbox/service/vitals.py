"""
Vitals: what a worker and a consumer each know of themselves: their phase, how fast they work, parked keys, newest errors.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from cosmos_outbox.errors import ParkingError
from cosmos_outbox.parking.causes import Cause
from cosmos_outbox.parking.documents import ParkedKey
from cosmos_outbox.records import LeaseClosed, Record, level_of
from cosmos_outbox.service.history import History, Sample
from cosmos_outbox.service.recent_errors import RecentError, RecentErrors

LATE = timedelta(minutes=5)  # a change that waits for this long needs an operator
_RATE_SECONDS = 60.0
_MOST_KEYS = 100


class Phase(StrEnum):
    """
    Where a process is between its start and its end.
    """

    STARTING = "starting"  # a worker has not seen a lease for every range yet, a consumer not reached its subscription
    RUNNING = "running"
    DRAINING = "draining"  # it was asked to stop, and finishes what is at hand
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSeen:
    """
    The parked keys of a processor or a consumer, whichever process parked them.

    keys: empty also where there are too many to keep.
    causes: of all keys that can be read.
    unreadable: by partition key, the error of each key whose document cannot be read.
    events: how many events they hold; None if a key cannot be read.
    oldest_at: since when the oldest key is parked; None if there is none, or none says so.
    """

    count: int
    keys: tuple[ParkedKey, ...] = ()
    causes: tuple[Cause, ...] = ()
    unreadable: Mapping[str, ParkingError] = field(default_factory=dict)
    events: int | None = None
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    What the snapshots of a worker and of a consumer have in common: how a process is at one moment.

    container: that a worker reads, or of a consumer's effects, as `database/container`.
    parked: of all processes, as of the last poll; None without a parked container, before the first poll, or while polls fail.
    parked_at: the time of the last poll of parked keys.
    unready: reasons; none if the process is ready.
    history: of the last hour.
    dashboard: the address of a page with more.
    """

    at: datetime
    started_at: datetime
    instance: str
    container: str
    phase: Phase
    parked: ParkedSeen | None
    parked_at: datetime | None
    errors: tuple[RecentError, ...]
    unready: tuple[str, ...]
    history: tuple[Sample, ...] = ()
    dashboard: str | None = None

    def readiness(self) -> dict[str, Any]:
        """
        Return what `/readyz` answers, as JSON.
        """
        status = "unready" if self.unready else "ready"
        return {"status": status, "phase": self.phase, "reasons": list(self.unready)}


class Vitals:
    """
    What health is made of. All calls come from the event loop, but `hear` may come from any thread.

    Args:
        name: of the kind of process, for what people read.
        stalled_after: without progress for this long, it is unready.
        poll_interval: time between two polls. Defaults to 15 s.
        utcnow: the wall clock, for times that people read.
    """

    def __init__(
        self,
        name: str,
        *,
        stalled_after: timedelta,
        poll_interval: timedelta = timedelta(seconds=15),
        utcnow: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name, self.stalled_after, self.poll_interval = name, stalled_after, poll_interval
        self.utcnow, self.started_at = utcnow, utcnow()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.began_at = self._loop.time()
        self._draining, self.end = False, ""
        self._parked: tuple[ParkedSeen, datetime, float] | None = None
        self.done = 0
        self._recent: deque[tuple[float, int]] = deque()
        self.errors, self.history = RecentErrors(), History()

    def hear(self, record: Record, hook: Callable[[Record], None]) -> bool:
        """
        Note an error; return whether the hook is called again in the event loop: the loop's watchdog has a thread of its own.
        """
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(hook, record)
            return True
        if level_of(record) >= logging.WARNING or (isinstance(record, LeaseClosed) and record.error):
            self.errors.note(record, at=self.utcnow())
        return False

    def draining(self) -> None:
        """
        Note that the process was asked to stop.
        """
        self._draining = True

    def ended(self, error: BaseException | None) -> None:
        """
        Note that it has ended, and the error if it did not drain.
        """
        self.end = f"The {self.name} has ended." if error is None else f"The {self.name} has ended: {error}"

    def count(self, number: int) -> None:
        """
        Count what was sent or handled.
        """
        self.done += number
        self._recent.append((self._loop.time(), number))
        self._forget_old()

    @property
    def per_second(self) -> float:
        """
        Return how much was counted each second of the last minute.
        """
        self._forget_old()
        window = min(_RATE_SECONDS, max(1.0, self._loop.time() - self.began_at))
        return sum(count for _, count in self._recent) / window

    def sample(self, *, waiting: int | None = None, oldest: timedelta | None = None) -> None:
        """
        Note how it is now, for the page's lines.
        """
        sample = Sample(
            at=self._loop.time(),
            waiting=waiting,
            oldest_seconds=None if oldest is None else oldest.total_seconds(),
            per_second=self.per_second,
            parked=None if self.parked is None else self.parked.count,
        )
        self.history.note(sample)

    def seen_parked(self, parked: ParkedSeen) -> None:
        """
        Note what is parked; of very many keys, only their number.
        """
        if len(parked.keys) > _MOST_KEYS:
            parked = replace(parked, keys=())
        self._parked = (parked, self.utcnow(), self._loop.time())

    @property
    def parked(self) -> ParkedSeen | None:
        """
        Return what is parked; None before the first poll, and while polls fail.
        """
        return self._parked[0] if self._parked and not self.unseen(self._parked[2]) else None

    @property
    def parked_at(self) -> datetime | None:
        """
        Return the time of the last poll of parked keys.
        """
        return self._parked[1] if self._parked else None

    def unseen(self, polled_at: float) -> timedelta:
        """
        Return for how long polls have failed; zero while they succeed.
        """
        since = timedelta(seconds=self._loop.time() - polled_at)
        return since if since > self.poll_interval + self.stalled_after else timedelta(0)

    def phase(self, *, starting: bool) -> Phase:
        """
        Return where the process is.
        """
        if self.end:
            return Phase.ENDED
        if self._draining:
            return Phase.DRAINING
        return Phase.STARTING if starting else Phase.RUNNING

    def _forget_old(self) -> None:
        while self._recent and self._recent[0][0] < self._loop.time() - _RATE_SECONDS:
            self._recent.popleft()


def oldest_of(keys: Iterable[ParkedKey]) -> datetime | None:
    """
    Return since when the oldest of some keys is parked; None if none says so.
    """
    moments = []
    for key in keys:
        try:
            moment = datetime.fromisoformat(key.parked_at)
        except ValueError:  # written by another program
            continue
        moments.append(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return min(moments, default=None)
