"""
Vitals: what a worker knows of its own health; a hook that hears everything, and a snapshot for whoever asks.
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

from cosmos_outbox.changefeed import Lag, LeaseLag, LeaseStatus
from cosmos_outbox.parking.documents import ParkedKey
from cosmos_outbox.records import LeaseClosed, LeasesListed, MessagesPublished, Record, level_of
from cosmos_outbox.service.recent_errors import Trouble, Troubles, about, told

_THROUGHPUT_SECONDS = 60.0


class Phase(StrEnum):
    """
    Where a worker is between its start and its end.
    """

    STARTING = "starting"  # not every range has a lease yet, as far as the worker knows
    RUNNING = "running"
    DRAINING = "draining"  # a signal came; pages at hand are finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSeen:
    """
    The parked keys of all workers; of very many only `count` is known.

    unreadable: by partition key, what is wrong with those whose documents cannot be read.
    events: None where there are too many keys to count them, or one cannot be read.
    """

    count: int
    keys: tuple[ParkedKey, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    events: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    A worker's health at one moment.

    lag: of all leases, whoever owns them, as it was at the last look; None before it was first known.
    unseen: for how long nobody could look any more: what waited then is so much older, and more may wait. Zero while
        looks succeed in time.
    event_ttl: how long events live, so how late they may be sent.
    parked: of all workers, at the last look; None where nothing is ever parked, or it is not known yet or any more.
    parked_at: when it was last seen, None before that.
    unready: reasons, none where all is well.
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
    troubles: tuple[Trouble, ...]
    unready: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """
    What a worker is called and works on.
    """

    instance: str
    processor: str
    container: str
    topic: str


class Vitals:
    """
    Listen to a worker; all calls come from its event loop.

    Args:
        identity: which worker.
        leases: tells how the worker's own leases are doing.
        stalled_after: how long nothing may move before the worker counts as unready.
        look_every: time between two looks at what waits. Defaults to 15 s.
        event_ttl: how long events live. Defaults to 10 days.
        utcnow: the wall clock, for what people read.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        leases: Callable[[timedelta], tuple[LeaseStatus, ...]],
        stalled_after: timedelta,
        look_every: timedelta = timedelta(seconds=15),
        event_ttl: timedelta = timedelta(days=10),
        utcnow: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._identity, self._leases, self._stalled_after = identity, leases, stalled_after
        self._utcnow, self._started_at = utcnow, utcnow()
        self._event_ttl, self._look_every = event_ttl, look_every
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._balanced_at: float | None = None
        self._begun_at = self._loop.time()
        self._draining = False
        self._lag: tuple[Lag, datetime, float] | None = None
        self._seen: dict[
            str, tuple[timedelta, float]
        ] = {}  # the oldest age by lease, when it was last looked at
        self._parked: tuple[ParkedSeen, datetime, float] | None = None
        self._sent = 0
        self._sendings: deque[tuple[float, int]] = deque()
        self._troubles = Troubles()

    def __call__(self, record: Record) -> None:
        """
        Take note of a record.
        """
        if threading.get_ident() != self._thread:  # what blocks the event loop is told of by another thread
            self._loop.call_soon_threadsafe(self, record)
        elif isinstance(record, MessagesPublished):
            self._sent += record.messages
            self._sendings.append((self._loop.time(), record.messages))
            self._forget_old_sendings()
        elif isinstance(record, LeasesListed):
            self._balanced_at = self._loop.time()
        elif level_of(record) >= logging.WARNING or (isinstance(record, LeaseClosed) and record.error):
            self._troubles.note(type(record).__name__, told(record), at=self._utcnow(), about=about(record))

    def drain(self) -> None:
        """
        Take note that the worker was asked to stop.
        """
        self._draining = True

    def measured(self, lag: Lag) -> None:
        """
        Take note of what waits.
        """
        now = self._loop.time()
        self._lag = (lag, self._utcnow(), now)
        listed = {lease.lease: lease for lease in lag.leases}
        before = {name: seen for name, seen in self._seen.items() if name in listed}
        self._seen = before | {
            name: (lease.oldest_age or timedelta(0), now)
            for name, lease in listed.items()
            if lease.unseen is None or name not in before
        }

    def seen_parked(self, parked: ParkedSeen) -> None:
        """
        Take note of what is parked.
        """
        self._parked = (parked, self._utcnow(), self._loop.time())

    def snapshot(self) -> Snapshot:
        """
        Return how the worker is, now.
        """
        self._forget_old_sendings()
        now = self._loop.time()
        phase = (
            Phase.DRAINING
            if self._draining
            else Phase.STARTING
            if self._balanced_at is None
            else Phase.RUNNING
        )
        mine = self._leases(self._stalled_after)
        heard = self._begun_at if self._balanced_at is None else self._balanced_at
        window = min(_THROUGHPUT_SECONDS, max(1.0, now - self._begun_at))
        return Snapshot(
            at=self._utcnow(),
            started_at=self._started_at,
            **{one.name: getattr(self._identity, one.name) for one in fields(self._identity)},
            phase=phase,
            mine=mine,
            lag=self._aged(*self._lag) if self._lag else None,
            lag_at=self._lag[1] if self._lag else None,
            unseen=self._unseen(self._lag[2], now) if self._lag else timedelta(0),
            event_ttl=self._event_ttl,
            parked=self._parked[0] if self._parked and not self._unseen(self._parked[2], now) else None,
            parked_at=self._parked[1] if self._parked else None,
            sent=self._sent,
            sent_per_second=sum(count for _, count in self._sendings) / window,
            troubles=self._troubles.newest_first(),
            unready=reasons_against(
                phase,
                mine,
                unheard_seconds=now - heard,
                stalled_seconds=self._stalled_after.total_seconds(),
                last_trouble=self._troubles.last_since(self._utcnow() - self._stalled_after),
            ),
        )

    def _aged(self, lag: Lag, _: datetime, looked_at: float) -> Lag:
        """
        Return what waits with the ages of what was not seen: what waited, or may have begun to, got older since.
        """
        return replace(
            lag,
            leases=tuple(
                lease
                if lease.unseen is None
                else replace(lease, oldest_age=self._seen[lease.lease][0] + self._since(lease, looked_at))
                for lease in lag.leases
            ),
        )

    def _since(self, lease: LeaseLag, looked_at: float) -> timedelta:
        return timedelta(seconds=looked_at - self._seen[lease.lease][1])

    def _unseen(self, seen_at: float, now: float) -> timedelta:
        since = timedelta(seconds=now - seen_at)
        return since if since > self._look_every + self._stalled_after else timedelta(0)

    def _forget_old_sendings(self) -> None:
        while self._sendings and self._sendings[0][0] < self._loop.time() - _THROUGHPUT_SECONDS:
            self._sendings.popleft()


def reasons_against(
    phase: Phase,
    leases: Sequence[LeaseStatus],
    *,
    unheard_seconds: float,
    stalled_seconds: float,
    last_trouble: str | None = None,
) -> tuple[str, ...]:
    """
    Return why a worker is not ready, one sentence each; none where it is.

    A worker without leases is ready: it takes over as soon as another one ends.

    Args:
        phase: of the worker.
        leases: its own.
        unheard_seconds: since the leases could last be listed to balance them, or since the start.
        stalled_seconds: for how long nothing may move.
        last_trouble: what was told lately; a lease that waits for the topic has no error of its own.
    """
    if phase is Phase.DRAINING:
        return ("The worker is draining.",)
    reasons = []
    if phase is Phase.STARTING:
        reasons.append("The worker has not seen the leases yet.")
    elif unheard_seconds > stalled_seconds:
        reasons.append(f"The leases could not be listed for {unheard_seconds:.0f} s.")
    reasons += [
        f"Lease {lease.token} did not move for {lease.idle_seconds:.0f} s: "
        f"{lease.error or last_trouble or 'no error known'}."
        for lease in leases
        if lease.stalled
    ]
    return tuple(reasons)
