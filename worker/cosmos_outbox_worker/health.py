"""
Health: how a worker or a consumer is at one moment, as facts, and what is wrong with it; page, probes and metrics read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed import Lag, LeaseLag, LeaseStatus
from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox.errors import ParkingError
from cosmos_outbox.parking import Unreadable
from cosmos_outbox.parking.causes import Cause, by_cause
from cosmos_outbox.parking.documents import ParkedKey
from cosmos_outbox.sessions import SessionStatus
from cosmos_outbox_worker.fleet import Heartbeat, Phase
from cosmos_outbox_worker.recent_errors import RecentError

LATE = timedelta(minutes=5)  # a change that waits for this long needs an operator
MOST_SHOWN = 10  # of stalled keys


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """
    A lease of any worker; `trouble` where it needs a look, `halted` where it makes no progress.

    waiting: changes; None where that is unknown.
    age: of the oldest change that waits; None where none does, or its age is unknown.
    """

    token: str
    owner: str | None
    waiting: int | None = None
    age: timedelta | None = None
    age_known: bool = False
    state: str
    error: str = ""
    trouble: bool
    halted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(State):
    """
    A worker's health at one moment.

    lag: of all leases of the processor, as of the last poll; None before the first.
    unseen: for how long polls have failed, so that what waits is so much older and may be more. Zero while they succeed.
    event_ttl: how long events live, so how late they may be sent.
    others: the other workers, also those that own no lease; None before their first poll, and while polls fail.
    """

    processor: str
    topic: str
    mine: tuple[LeaseStatus, ...]
    lag: Lag | None
    lag_at: datetime | None
    unseen: timedelta
    event_ttl: timedelta
    sent: int
    sent_per_second: float
    others: tuple[Heartbeat, ...] | None = None

    def halted(self) -> Iterable[str]:
        return (
            f"Range {lease.token} ({lease.owner}): {lease.error or lease.state}"
            for lease in self.leases()
            if lease.halted and not (self.unready and lease.owner == self.instance)  # the reasons name those
        )

    def waits(self) -> Iterable[str]:
        yield from State.waits(self)  # super() fails in a dataclass with slots
        oldest = None if self.lag is None or self.unseen else self.lag.oldest_age
        if oldest and oldest >= LATE:
            yield f"The oldest unsent change waits for {duration_text(oldest)}."
        leases = self.leases()
        for lease in leases:
            if lease.owner is None and lease.waiting:
                yield f"Range {lease.token} has no owner; changes that wait: {lease.waiting:,}."
        named = {lease.owner for lease in leases if lease.halted}
        for other in self.others or ():
            if other.troubled and other.worker not in named:
                yield f"Worker {other.worker} is not ready: {' '.join(other.unready)}"

    def readiness(self) -> dict[str, Any]:
        names = ("lease", "stalled", "failed_attempts", "error")
        leases = [
            {name: getattr(lease, name) for name in names} | {"idle_seconds": round(lease.idle_seconds, 1)}
            for lease in self.mine
        ]
        return State.readiness(self) | {"leases": leases}

    def leases(self) -> list[LeaseView]:
        """
        Return all leases, those that stand still first: the worker's own as it knows them, the others as they were polled.
        """
        mine = {status.lease: status for status in self.mine}
        polled = {lease.lease: lease for lease in self.lag.leases} if self.lag else {}
        damaged = self.lag.damaged if self.lag else {}
        views = [
            LeaseView(
                token=token_of(lease), owner="none", state="damaged", error=error, trouble=True, halted=True
            )
            for lease, error in damaged.items()
        ]
        views += [
            self._view(lease, mine.get(lease), polled.get(lease))
            for lease in {*mine, *polled} - damaged.keys()
        ]
        # Tokens of partitions are numbers.
        return sorted(views, key=lambda view: (not view.halted, len(view.token), view.token))

    def _view(self, lease: str, status: LeaseStatus | None, lag: LeaseLag | None) -> LeaseView:
        seen = None if self.unseen else lag
        owner = self.instance if status else lag.owner if lag else None
        standstill = lag.standstill if lag and status is None else None
        if status is not None:
            trouble = status.stalled or status.failed_attempts > 0
        else:
            trouble = standstill is not None or (lag is not None and not lag.owner and lag.transactions > 0)
        return LeaseView(
            token=token_of(lease),
            owner=owner,
            waiting=seen.transactions if seen else None,
            age=seen.oldest_age if seen else None,
            age_known=seen is not None and seen.age_known,
            state="stands still" if standstill else self._state_of(status, owner),
            error=(status.error if status else standstill) or "",
            trouble=trouble,
            halted=(status is not None and status.stalled) or standstill is not None,
        )

    def _state_of(self, status: LeaseStatus | None, owner: str | None) -> str:
        if status is None:
            if owner == self.instance:
                return "no longer of this worker"  # the worker knows before the next poll does
            if self.unseen:
                return "unknown"
            return "elsewhere" if owner else "no owner"
        if status.stalled:
            return f"stalled for {duration_text(timedelta(seconds=status.idle_seconds))}"
        if status.failed_attempts:
            return f"failing, attempt {status.failed_attempts + 1}"
        return "draining" if status.draining else "moving"


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledKey:
    """
    A key whose message waits, and with it all later ones, because of an error that the message did not cause.

    waited_seconds: since this process had to delay it first.
    """

    key: str
    message_id: str
    waited_seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSnapshot(State):
    """
    A consumer's health at one moment.

    source: the subscription, as `topic/subscription`, or the queue.
    stalled: keys that have waited for too long; the longest first.
    """

    consumer: str
    source: str
    sessions: tuple[SessionStatus, ...]
    handled: int
    handled_per_second: float
    stalled: tuple[StalledKey, ...]
    fallback: str | None  # why the SDK receives in place of the lean receiver

    def waits(self) -> Iterable[str]:
        yield from State.waits(self)
        if self.fallback is not None:
            yield f"The SDK receives until this process ends, in place of the lean receiver: {self.fallback}"

    def readiness(self) -> dict[str, Any]:
        sessions = [asdict(session) for session in self.sessions]
        stalled = [asdict(key) for key in self.stalled[:MOST_SHOWN]]
        return State.readiness(self) | {"sessions": sessions, "stalled": stalled, "fallback": self.fallback}


def troubles(lag: Lag, parked: ParkedSeen | None) -> tuple[str, ...]:
    """
    Return what an operator has to look at, of any worker's leases and of what is parked: what is damaged, stands still, does
    not answer or is ahead of its range.
    """
    return (
        *lag.damaged.values(),
        *(f"Lease {lease.token}: {lease.standstill}" for lease in lag.leases if lease.standstill),
        *(f"What waits for lease {name} is not known: {reason}" for name, reason in lag.unseen.items()),
        *(f"{reason} `cosmos-outbox leases reset --to` sets it back." for reason in lag.ahead.values()),
        *(map(str, parked.unreadable.values()) if parked else ()),
    )


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
    with suppress(ValueError):
        moment = datetime.fromisoformat(stored or "")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


def clock_time(moment: datetime) -> str:
    """Return a moment as people read it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
