"""
Health: what a worker knows of itself, from the records that it hears as a hook; and a snapshot of it for any reader.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from cosmos_outbox.changefeed import Lag, LeaseStatus
from cosmos_outbox.errors import ParkingError
from cosmos_outbox.parking.documents import ParkedKey
from cosmos_outbox.records import LeaseClosed, LeasesListed, MessagesPublished, Record, level_of
from cosmos_outbox.service.recent_errors import RecentError, RecentErrors

_THROUGHPUT_SECONDS = 60.0
_MOST_KEYS = 100


class Phase(StrEnum):
    """
    Where a worker is between its start and its end.
    """

    STARTING = "starting"  # the worker has not seen a lease for every range yet
    RUNNING = "running"
    DRAINING = "draining"  # it was asked to stop, and finishes the pages at hand
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSeen:
    """
    The parked keys of a processor, whichever worker parked them.

    keys: empty also where there are too many to keep.
    unreadable: by partition key, the error of each key whose document cannot be read.
    events: how many events they hold; None if a key cannot be read.
    """

    count: int
    keys: tuple[ParkedKey, ...] = ()
    unreadable: Mapping[str, ParkingError] = field(default_factory=dict)
    events: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    A worker's health at one moment.

    lag: of all leases of the processor, as of the last poll; None before the first.
    unseen: for how long polls have failed, so that what waits is so much older and may be more. Zero while they succeed.
    event_ttl: how long events live, so how late they may be sent.
    parked: of all workers, as of the last poll; None without a parked container, before the first poll, or while unseen.
    parked_at: the time of the last poll of parked keys.
    unready: reasons; none if the worker is ready.
    """

    at: datetime
    started_at: datetime
    instance: str
    processor: str
    container: str
    topic: str
    phase: Phase
    mine: tuple[LeaseStatus, ...]
    lag: Lag | None
    lag_at: datetime | None
    unseen: timedelta
    event_ttl: timedelta
    parked: ParkedSeen | None
    parked_at: datetime | None
    sent: int
    sent_per_second: float
    errors: tuple[RecentError, ...]
    unready: tuple[str, ...]

    def readiness(self) -> dict[str, Any]:
        """
        Return what `/readyz` answers, as JSON.
        """
        names = ("lease", "stalled", "failed_attempts", "error")
        return {
            "status": "unready" if self.unready else "ready",
            "phase": self.phase,
            "reasons": list(self.unready),
            "leases": [
                {name: getattr(lease, name) for name in names}
                | {"idle_seconds": round(lease.idle_seconds, 1)}
                for lease in self.mine
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """
    A worker's name, and what it works on.
    """

    instance: str
    processor: str
    container: str
    topic: str


class HealthState:
    """
    The health of a worker; a hook. All calls but those of the hook come from the worker's event loop.

    Args:
        identity: of the worker.
        leases: returns the status of the worker's own leases; its argument is `stalled_after`.
        stalled_after: a lease without progress for this long makes the worker unready.
        poll_interval: time between two polls of what waits. Defaults to 15 s.
        event_ttl: how long events live. Defaults to 10 days.
        utcnow: the wall clock, for times that people read.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        leases: Callable[[timedelta], tuple[LeaseStatus, ...]],
        stalled_after: timedelta,
        poll_interval: timedelta = timedelta(seconds=15),
        event_ttl: timedelta = timedelta(days=10),
        utcnow: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._identity, self._leases, self._stalled_after = identity, leases, stalled_after
        self._utcnow, self._started_at = utcnow, utcnow()
        self._event_ttl, self._poll_interval = event_ttl, poll_interval
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._began_at = self._loop.time()
        self._balanced_at: float | None = None
        self._draining, self._ended = False, ""
        self._lag: tuple[Lag, datetime, float] | None = None
        self._ages: dict[
            str, tuple[timedelta, float]
        ] = {}  # by lease: its oldest age, and when that was seen
        self._parked: tuple[ParkedSeen, datetime, float] | None = None
        self._sent = 0
        self._sendings: deque[tuple[float, int]] = deque()
        self._errors = RecentErrors()

    def __call__(self, record: Record) -> None:
        """
        Hear a record, from any thread: the watchdog of the event loop has its own.
        """
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self, record)
        elif isinstance(record, MessagesPublished):
            self._sent += record.messages
            self._sendings.append((self._loop.time(), record.messages))
            self._forget_old_sendings()
        elif isinstance(record, LeasesListed):
            self._balanced_at = self._loop.time()
        elif level_of(record) >= logging.WARNING or (isinstance(record, LeaseClosed) and record.error):
            self._errors.note(record, at=self._utcnow())

    def draining(self) -> None:
        """
        Note that the worker was asked to stop.
        """
        self._draining = True

    def ended(self, error: BaseException | None) -> None:
        """
        Note that the worker has ended, and the error if it did not drain.
        """
        self._ended = "The worker has ended." if error is None else f"The worker has ended: {error}"

    def measured(self, lag: Lag) -> None:
        """
        Note what waits.
        """
        now = self._loop.time()
        self._lag = (lag, self._utcnow(), now)
        self._ages = {
            one.lease: self._ages[one.lease]
            if one.unseen is not None and one.lease in self._ages
            else (one.oldest_age or timedelta(0), now)
            for one in lag.leases
        }

    def seen_parked(self, parked: ParkedSeen) -> None:
        """
        Note what is parked; of very many keys, only their number.
        """
        if len(parked.keys) > _MOST_KEYS:
            parked = replace(parked, keys=())
        self._parked = (parked, self._utcnow(), self._loop.time())

    def snapshot(self) -> Snapshot:
        """
        Return the worker's health now.
        """
        self._forget_old_sendings()
        now = self._loop.time()
        phase = Phase.STARTING if self._balanced_at is None else Phase.RUNNING
        if self._draining or self._ended:
            phase = Phase.ENDED if self._ended else Phase.DRAINING
        mine = self._leases(self._stalled_after)
        listed_at = self._began_at if self._balanced_at is None else self._balanced_at
        window = min(_THROUGHPUT_SECONDS, max(1.0, now - self._began_at))
        reasons = reasons_against(
            phase,
            mine,
            unlisted_seconds=now - listed_at,
            stalled_seconds=self._stalled_after.total_seconds(),
            last_error=self._errors.last_since(self._utcnow() - self._stalled_after),
        )
        return Snapshot(
            at=self._utcnow(),
            started_at=self._started_at,
            **{one.name: getattr(self._identity, one.name) for one in fields(self._identity)},
            phase=phase,
            mine=mine,
            lag=self._aged(self._lag[0], self._lag[2]) if self._lag else None,
            lag_at=self._lag[1] if self._lag else None,
            unseen=self._unseen(self._lag[2], now) if self._lag else timedelta(0),
            event_ttl=self._event_ttl,
            parked=self._parked[0] if self._parked and not self._unseen(self._parked[2], now) else None,
            parked_at=self._parked[1] if self._parked else None,
            sent=self._sent,
            sent_per_second=sum(count for _, count in self._sendings) / window,
            errors=self._errors.newest_first(),
            unready=(self._ended,) if self._ended else reasons,
        )

    def _aged(self, lag: Lag, polled_at: float) -> Lag:
        # What waited in a range that could not be read is older by now; where nothing waited, something may.
        leases = []
        for one in lag.leases:
            age, seen_at = self._ages[one.lease]
            late = age + timedelta(seconds=polled_at - seen_at)
            leases.append(one if one.unseen is None else replace(one, oldest_age=late))
        return replace(lag, leases=tuple(leases))

    def _unseen(self, polled_at: float, now: float) -> timedelta:
        since = timedelta(seconds=now - polled_at)
        return since if since > self._poll_interval + self._stalled_after else timedelta(0)

    def _forget_old_sendings(self) -> None:
        while self._sendings and self._sendings[0][0] < self._loop.time() - _THROUGHPUT_SECONDS:
            self._sendings.popleft()


def reasons_against(
    phase: Phase,
    leases: Sequence[LeaseStatus],
    *,
    unlisted_seconds: float,
    stalled_seconds: float,
    last_error: str | None = None,
) -> tuple[str, ...]:
    """
    Return why a worker is not ready, one sentence each; none if it is.

    A worker without leases is ready: it takes over as soon as another one ends.

    Args:
        phase: of the worker.
        leases: its own.
        unlisted_seconds: since the worker last listed the leases to balance them, or since its start.
        stalled_seconds: the longest time without progress.
        last_error: the newest one; a lease that waits for the topic has no error of its own.
    """
    if phase is Phase.DRAINING:
        return ("The worker is draining.",)
    reasons = []
    if phase is Phase.STARTING:
        reasons.append("The worker has not seen the leases yet.")
    elif unlisted_seconds > stalled_seconds:
        reasons.append(f"The leases could not be listed for {unlisted_seconds:.0f} s.")
    reasons += [
        f"Lease {lease.token} did not move for {lease.idle_seconds:.0f} s: "
        f"{lease.error or last_error or 'no error known'}."
        for lease in leases
        if lease.stalled
    ]
    return tuple(reasons)
