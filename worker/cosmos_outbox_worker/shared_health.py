"""
Shared health: what worker and consumer alike know of themselves, from the records that they hear and from their polls; a hook.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from cosmos_outbox.changefeed.leases import parse_timestamp
from cosmos_outbox.errors import ConfigurationError, ParkingError
from cosmos_outbox.parking import Unreadable
from cosmos_outbox.parking.keys_by_cause import Cause, by_cause
from cosmos_outbox.parking.parked_documents import ParkedKey
from cosmos_outbox.records import LeaseMoved, Record, level_of
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.recent_errors import RecentError, RecentErrors
from cosmos_outbox_worker.settings import Settings

_RATE_SECONDS = 60.0
_MOST_KEYS = 100


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

    def wrong(self) -> tuple[str, ...]:
        """Return what is wrong, a sentence each, the worst first."""
        return tuple(dict.fromkeys((*self.unready, *self.halted(), *self.waits())))

    def halted(self) -> Iterable[str]:
        """Return what stands still, besides the reasons why the process is unready."""
        return ()

    def waits(self) -> Iterable[str]:
        """Return what waits for a person, one sentence each."""
        parked = self.parked.count if self.parked else 0
        return ("1 parked key." if parked == 1 else f"{parked:,} parked keys.",) if parked else ()

    def readiness(self) -> dict[str, Any]:
        """Return what `/readyz` answers, as JSON."""
        status = "unready" if self.unready else "ready"
        return {"status": status, "phase": self.phase, "reasons": list(self.unready)}


SnapshotT = TypeVar("SnapshotT", bound=State)


class Vitals(Generic[SnapshotT]):
    """
    What worker and consumer have in common. All calls but those of the hook come from the event loop.

    Args:
        settings: what it is named, and how long it may be without progress; it polls four times as often.
        utcnow: the wall clock, for times that people read.
    """

    name: str  # of the kind of process, for what people read
    processor: Any  # what works and knows how it is; the assembly sets it

    def __init__(
        self, settings: Settings, *, utcnow: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._settings, self._stalled_seconds = settings, settings.stalled_seconds
        self.stalled_after = timedelta(seconds=settings.stalled_seconds)
        self.poll_interval = self.stalled_after / 4
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
        raise NotImplementedError

    def snapshot(self) -> SnapshotT:
        """Return the health now."""
        raise NotImplementedError

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

    def _state(self, unready: Iterable[str], *, starting: bool) -> dict[str, Any]:
        """Return what each snapshot has; `unready` says what keeps a process from being ready that does not drain."""
        phase = Phase.STARTING if starting else Phase.RUNNING
        if self._draining:
            phase, unready = Phase.DRAINING, (f"The {self.name} is draining.",)
        if self._end:
            phase, unready = Phase.ENDED, (self._end,)
        parked, parked_at, polled_at = self._parked or (None, None, 0.0)
        return {
            "instance": self._settings.instance_name,
            "container": self._settings.container,
            "at": self._utcnow(),
            "started_at": self._started_at,
            "phase": phase,
            "parked": None if self._unseen(polled_at) else parked,
            "parked_at": parked_at,
            "errors": self._errors.newest_first(),
            "unready": tuple(unready),
        }


def parked_seen(listed: Sequence[ParkedKey | Unreadable]) -> ParkedSeen:
    """Return what is parked, of all keys that were listed; one that cannot be read hides no other."""
    keys = tuple(key for key in listed if isinstance(key, ParkedKey))
    unreadable = {key.partition_key: key.error for key in listed if isinstance(key, Unreadable)}
    return ParkedSeen(
        count=len(listed),
        keys=keys,
        causes=by_cause(keys),
        unreadable=unreadable,
        events=None if unreadable else sum(key.held for key in keys),
        oldest_at=min(filter(None, (_moment_of(key.parked_at) for key in keys)), default=None),
    )


def duration_text(length: timedelta) -> str:
    """Return a length of time in its largest unit of which it has two."""
    seconds = int(length.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def readable_time(stored: str | None) -> str | None:
    """Return a stored time in UTC and to the second, as people read it; anything else unchanged."""
    moment = _moment_of(stored)
    return clock_time(moment) if moment else stored


def _moment_of(stored: str | None) -> datetime | None:
    """Return a stored time; None where another program wrote something else."""
    with suppress(ConfigurationError):
        return parse_timestamp(stored or "")
    return None


def clock_time(moment: datetime) -> str:
    """Return a moment as people read it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
