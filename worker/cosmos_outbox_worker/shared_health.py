"""
Shared health: decide whether a worker or a consumer is ready, from its records and from regular reads of Cosmos DB (polls).
`worker_health.py` and `consumer_health.py` find the causes that only workers or only consumers have.
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
# The polls (regular reads of Cosmos DB) by what they read. Error reports and texts about the health contain these words.
WAITS, PARKED, WORKERS = "what waits", "what is parked", "the other workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSummary:
    """
    The parked keys of a processor or a consumer, including those that other processes parked.

    count: the number of parked keys.
    keys: the parked keys; empty if there are too many of them to keep.
    causes: the errors because of which keys were parked, each with the number of its keys.
    unreadable: the error for each key whose document cannot be read, by partition key.
    events: the number of events that the parked keys hold; None if a key cannot be read.
    oldest_at: the time at which the oldest key was parked; None if there is no key, or no key has a time.
    """

    count: int
    keys: tuple[ParkedKey, ...] = ()
    causes: tuple[keys_by_cause.Cause, ...] = ()
    unreadable: Mapping[str, ParkingError] = field(default_factory=dict)
    events: int | None = None
    oldest_at: datetime | None = None

    def find_causes(self) -> Iterator[Cause]:
        """Yield a cause for each key that cannot be read, and one cause for all parked keys together."""
        for key, error in self.unreadable.items():
            yield cause_of(error_line(error), stops=(("", f"key {key!r}"),))
        if self.count:
            why = "".join(f" {one.keys:,} of them by {one.error}" for one in self.causes[:1] if one.error)
            yield Cause(kind="keys-parked", said=f"{self.count:,} in all.{why}", since=self.oldest_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """
    The state of a process at one moment: the part that the snapshots of workers and consumers share.

    container: the container that a worker reads, or in which a consumer commits, as `database/container`.
    parked: the parked keys at the last poll; None without a parked container, before the first poll, and while polls fail.
    parked_at: the time of the last poll of parked keys.
    failing: the failures that this process knows from its own work.
    mine: the leases that this worker owns; empty for a consumer.
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
        """
        Yield all known causes that keep events or messages waiting, in any order. A cause may be yielded several times. `causes` merges
        them.
        """
        yield from self.own()
        if self.parked is None and self.parked_at is not None and not self.own():
            yield Cause(kind="unknown", said="Parked keys could not be listed.", since=self.parked_at)
        yield from self.parked.find_causes() if self.parked else ()

    def own(self) -> tuple[Cause, ...]:
        """Return the causes that keep this process itself from making progress, without those that only other processes have."""
        return merge_causes(of_own_work(self.at, self.instance, self.failing, self.mine))

    def causes(self) -> tuple[Cause, ...]:
        """Return all known causes that keep events or messages waiting, in this process and in others: each once, the worst first."""
        return merge_causes(self.find_causes())

    @property
    def unready(self) -> tuple[str, ...]:
        """Return the reasons why this process is not ready. The tuple is empty if the process is ready."""
        ends = {Phase.DRAINING, Phase.ENDED} & {self.phase}
        return tuple(str(one) for one in self.causes() if one.unready and (not ends or one.kind in ends))

    def readiness(self) -> dict[str, Any]:
        """Return the body of the answer to `/readyz`, as a dictionary for JSON."""
        reasons, causes = self.unready, [one.facts() for one in self.causes()]
        status = "unready" if reasons else "ready"
        return {"status": status, "phase": self.phase, "reasons": list(reasons), "causes": causes}


SnapshotT = TypeVar("SnapshotT", bound=State)


class Vitals(Generic[SnapshotT]):
    """
    Collects the health of a worker or a consumer from its records and polls. As a hook, it is called with each record that is reported.

    Other threads than that of the event loop may call it with a record, but must not call its methods.

    Args:
        settings: the settings of the process, with its name and the time that it may be without progress.
        utcnow: returns the wall-clock time, for times that people read.
    """

    name: str  # the kind of process, in texts for people
    processor: Any  # the processor that does the work, from which the snapshot reads leases or sessions

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
        # For each part that fails now, such as a poll: the cause, when it failed first, and when the failure counts as over.
        self._failing: dict[Hashable, tuple[Cause, float, float]] = {}

    def __call__(self, record: Record) -> None:
        """
        Update the health from a record. Any thread may call this: the watchdog of the event loop reports from a thread of its own.
        """
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
        """Update from a record the part of the health that only a worker or only a consumer has. Subclasses implement this."""
        raise NotImplementedError

    def snapshot(self) -> SnapshotT:
        """Return the current health. Subclasses implement this."""
        raise NotImplementedError

    def note_draining(self) -> None:
        """Note that the process was asked to stop and finishes its work, so that its phase is "draining"."""
        self._draining = True

    def note_end(self, error: BaseException | None) -> None:
        """Note that the process has ended, with the error that ended it, or None if it finished its work."""
        self._end = f"The {self.name} has ended." if error is None else f"The {self.name} has ended: {error}"

    def note_parked(self, parked: ParkedSummary) -> None:
        """
        Store the result of a poll of parked keys. If there are more than a hundred, keep their number and not the keys, to save memory.
        """
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
        """
        Return the longest time in seconds until the next poll of something, such as "the other workers". Infinity means that the usual
        interval is short enough.
        """
        return math.inf

    def _unseen(self, polled_at: float, what: str) -> timedelta:
        """
        Return how old the result of a poll is, if the poll fails or gets no answer now. Return zero if the poll succeeds.

        Args:
            polled_at: the time of the last poll that succeeded.
            what: what the poll reads.
        """
        since = timedelta(seconds=self._loop.time() - polled_at)
        # If heartbeats fail, Cosmos DB does not answer. The time limit of a heartbeat is the shortest, so in an outage heartbeats fail first.
        away = "heartbeats" in self._failing
        late = since > self.poll_interval + (self.poll_interval if away else self.stalled_after)
        return since if late or what in self.blind else timedelta(0)

    def fails(self, what: Hashable, cause: Cause, *, lasts: float = math.inf) -> bool:
        """
        Note that a part of the process fails. Return whether the failure is new.

        If an earlier failure of this part made the process unready, the process stays unready until the part works again.

        Args:
            what: the part, such as a poll or a lane (one of the parallel senders).
            cause: why it fails.
            lasts: after how many seconds the failure counts as over. Defaults to never: it lasts until `works` is called.
        """
        now, since = self._loop.time(), cause.since or self._utcnow()
        news = what not in self._failing
        before, began_at, _ = self._failing.get(what, (replace(cause, since=since), now, now))
        cause = replace(cause, since=before.since, unready=cause.unready or before.unready)
        self._failing[what] = cause, began_at, now + lasts
        return news

    def lasting(self, what: Hashable) -> Iterator[Cause]:
        """
        Yield the cause of a part that has failed for longer than OUTBOX_STALLED_SECONDS, such as "receiving". The process is unready
        because of this cause.
        """
        for cause, began_at, _ in [self._failing[what]] if what in self._failing else ():
            if self._loop.time() - began_at > self._stalled_seconds:
                yield replace(cause, stands=True, unready=True)

    def works(self, what: Hashable, *, so: bool = True) -> None:
        """Note that a part of the process works, such as a poll, so that its failure is over. With `so=False`, do nothing."""
        if so:
            self._failing.pop(what, None)

    def _state(self, failing: Iterable[Cause], *, starting: bool) -> dict[str, Any]:
        """
        Return the fields that the snapshots of workers and consumers share.

        Args:
            failing: causes that only a worker or only a consumer finds, to be added.
            starting: whether the process is still starting.
        """
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
    """Summarize a list of parked keys. Keys that cannot be read are counted, and listed apart with their errors."""
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
