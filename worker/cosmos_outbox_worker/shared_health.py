"""
Shared health: what worker and consumer alike know of themselves, from the records that they hear and from their polls; a hook.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from cosmos_outbox.changefeed import LeaseStatus
from cosmos_outbox.errors import ParkingError, error_line
from cosmos_outbox.parking import Unreadable, keys_by_cause
from cosmos_outbox.parking.parked_documents import ParkedKey
from cosmos_outbox.records import LeaseMoved, LoopBlocked, Record, WatchFailed, level_of
from cosmos_outbox_worker.causes import Cause, cause_of, merge_causes, of_own_work
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.readable_times import moment_of
from cosmos_outbox_worker.recent_errors import RecentError, RecentErrors
from cosmos_outbox_worker.settings import Settings

_RATE_SECONDS = 60.0
_MOST_KEYS = 100
# The subjects of the polls
WAITS, PARKED, WORKERS = "what waits", "what is parked", "the other workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSummary:
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
    causes: tuple[keys_by_cause.Cause, ...] = ()
    unreadable: Mapping[str, ParkingError] = field(default_factory=dict)
    events: int | None = None
    oldest_at: datetime | None = None

    def find_causes(self) -> Iterator[Cause]:
        """Yield what waits for an operator."""
        for key, error in self.unreadable.items():
            yield cause_of(error_line(error), stops=(("", f"key {key!r}"),))
        if self.count:
            why = "".join(f" {one.keys:,} of them by {one.error}" for one in self.causes[:1] if one.error)
            yield Cause(kind="keys-parked", said=f"{self.count:,} in all.{why}", since=self.oldest_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    The state of a process at one moment: the part that a worker's and a consumer's snapshot share.

    container: that a worker reads, or of a consumer's effects, as `database/container`.
    parked: of all processes, as of the last poll; None without a parked container, before the first poll, or while polls fail.
    parked_at: the time of the last poll of parked keys.
    failing: what fails now, as the process itself knows it.
    mine: the leases that it works on; a consumer has none.
    """

    at: datetime
    started_at: datetime
    instance: str
    container: str
    phase: Phase
    parked: ParkedSummary | None
    parked_at: datetime | None
    errors: tuple[RecentError, ...]
    failing: tuple[Cause, ...] = ()
    mine: tuple[LeaseStatus, ...] = ()

    def find_causes(self) -> Iterator[Cause]:
        """Yield the causes that keep work from going on, in the order in which they are found. One cause may come several times."""
        yield from self.own()
        if self.parked is None and self.parked_at is not None and not self.own():
            yield Cause(kind="unknown", said="Parked keys could not be listed.", since=self.parked_at)
        yield from self.parked.find_causes() if self.parked else ()

    def own(self) -> tuple[Cause, ...]:
        """Return the causes that keep the process's own work from going on."""
        return merge_causes(of_own_work(self.at, self.instance, self.failing, self.mine))

    def causes(self) -> tuple[Cause, ...]:
        """Return the causes that keep work from going on: each once, the worst first."""
        return merge_causes(self.find_causes())

    @property
    def unready(self) -> tuple[str, ...]:
        """Return the reasons why the process is not ready; none if it is ready."""
        ends = {Phase.DRAINING, Phase.ENDED} & {self.phase}
        return tuple(str(one) for one in self.causes() if one.unready and (not ends or one.kind in ends))

    def readiness(self) -> dict[str, Any]:
        """Return what `/readyz` answers, as JSON."""
        reasons, causes = self.unready, [one.facts() for one in self.causes()]
        status = "unready" if reasons else "ready"
        return {"status": status, "phase": self.phase, "reasons": list(reasons), "causes": causes}


SnapshotT = TypeVar("SnapshotT", bound=State)


class Vitals(Generic[SnapshotT]):
    """
    The vitals that worker and consumer share. Only the hook may be called from other threads than that of the event loop.

    Args:
        settings: what it is named, and how long it may be without progress; it polls four times as often.
        utcnow: the wall clock, for times that people read.
    """

    name: str  # the kind of process, for texts to people
    processor: Any  # the processor, which knows its own state; the assembly sets it

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
        self._parked: tuple[ParkedSummary, datetime, float] | None = None
        self._done = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._errors = RecentErrors()
        self.found_at_start: tuple[Cause, ...] = ()
        self.blind = set[str]()  # the polls whose last attempt failed
        # for each failing subject: its cause, since when it fails, and until when that holds
        self._failing: dict[Hashable, tuple[Cause, float, float]] = {}

    def __call__(self, record: Record) -> None:
        """Hear a record. Any thread may call: the watchdog of the event loop has its own."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self, record)
            return
        if level_of(record) >= logging.WARNING or (isinstance(record, LeaseMoved) and record.error):
            self._errors.note(record, at=self._utcnow())
        if isinstance(record, WatchFailed):
            self.fails(record.subject, cause_of(error_line(record.error)))
        elif isinstance(record, LoopBlocked):
            said = f"{record.task} in {record.where}, for {record.seconds:.0f} s."
            self.fails("loop", Cause(kind="loop-blocked", said=said), lasts=60.0)
        self._hear(record, self._loop.time())

    def _hear(self, record: Record, now: float) -> None:
        """Learn from a record what only this kind of process learns."""
        raise NotImplementedError

    def snapshot(self) -> SnapshotT:
        """Return the health now."""
        raise NotImplementedError

    def note_draining(self) -> None:
        """Note that the process was asked to stop."""
        self._draining = True

    def note_end(self, error: BaseException | None) -> None:
        """Note that the process has ended. Note the error if it did not drain."""
        self._end = f"The {self.name} has ended." if error is None else f"The {self.name} has ended: {error}"

    def note_parked(self, parked: ParkedSummary) -> None:
        """Note the parked keys. Of very many keys, keep only the number."""
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

    def due_in(self, _what: str) -> float:
        """Return after how many seconds, at the latest, the next poll of a subject is due."""
        return math.inf

    def _unseen(self, polled_at: float, what: str) -> timedelta:
        """Return how long a poll has failed, or has had no answer for too long. Return zero while it succeeds."""
        since = timedelta(seconds=self._loop.time() - polled_at)
        away = "heartbeats" in self._failing  # these polls time out sooner
        late = since > self.poll_interval + (self.poll_interval if away else self.stalled_after)
        return since if late or what in self.blind else timedelta(0)

    def fails(self, what: Hashable, cause: Cause, *, lasts: float = math.inf) -> bool:
        """
        Note that something fails, until it works or for so many seconds. As long as it made the process unready, it goes on doing so.
        Return whether this is news.
        """
        now, since = self._loop.time(), cause.since or self._utcnow()
        news = what not in self._failing
        before, began_at, _ = self._failing.get(what, (replace(cause, since=since), now, now))
        cause = replace(cause, since=before.since, unready=cause.unready or before.unready)
        self._failing[what] = cause, began_at, now + lasts
        return news

    def lasting(self, what: Hashable) -> Iterator[Cause]:
        """Yield the causes that have lasted too long, which makes the process unready."""
        for cause, began_at, _ in [self._failing[what]] if what in self._failing else ():
            if self._loop.time() - began_at > self._stalled_seconds:
                yield replace(cause, stands=True, unready=True)

    def works(self, what: Hashable, *, so: bool = True) -> None:
        """Note that something works again, if it had failed."""
        if so:
            self._failing.pop(what, None)

    def _state(self, failing: Iterable[Cause], *, starting: bool) -> dict[str, Any]:
        """Return the part that each snapshot has. `failing` has further causes, which this kind of process knows."""
        phase, said = Phase.STARTING if starting else Phase.RUNNING, ""
        if self._draining:
            phase, said = Phase.DRAINING, f"The {self.name} is draining."
        if self._end:
            phase, said = Phase.ENDED, self._end
        ending = (Cause(kind=phase, said=said, unready=True),) if said else ()
        now = self._loop.time()
        self._failing = {what: one for what, one in self._failing.items() if one[2] >= now}
        parked, parked_at, polled_at = self._parked or (None, None, 0.0)
        return {
            "instance": self._settings.instance_name,
            "container": self._settings.container,
            "at": self._utcnow(),
            "started_at": self._started_at,
            "phase": phase,
            "parked": None if self._unseen(polled_at, PARKED) else parked,
            "parked_at": parked_at,
            "errors": self._errors.newest_first(),
            "failing": (
                *ending,
                *failing,
                *self.found_at_start,
                *(cause for cause, *_ in self._failing.values()),
            ),
        }


def summarize_parked(listed: Sequence[ParkedKey | Unreadable]) -> ParkedSummary:
    """Summarize the parked keys that were listed. One key that cannot be read hides no other."""
    keys = tuple(key for key in listed if isinstance(key, ParkedKey))
    unreadable = {key.partition_key: key.error for key in listed if isinstance(key, Unreadable)}
    return ParkedSummary(
        count=len(listed),
        keys=keys,
        causes=keys_by_cause.by_cause(keys),
        unreadable=unreadable,
        events=None if unreadable else sum(key.held for key in keys),
        oldest_at=min(filter(None, (moment_of(key.parked_at) for key in keys)), default=None),
    )
