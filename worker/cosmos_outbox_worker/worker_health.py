"""
Worker health: how a worker is at one moment, each lease in words, and what is wrong; page, probes and metrics read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed import Lag, LeaseLag, LeaseStatus
from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox.records import LeasesBalanced, MessagesPublished, Record
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox_worker.fleet_differences import FleetWatch
from cosmos_outbox_worker.heartbeats import Heartbeat
from cosmos_outbox_worker.settings import Settings
from cosmos_outbox_worker.shared_health import ParkedSeen, State, Vitals, duration_text

LATE = timedelta(minutes=5)  # a change that waits for this long needs an operator


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
    ceiling: how many messages a second it may send, where that has just held sends back.
    event_ttl: how long events live, so how late they may be sent.
    others: the other workers, also those that own no lease; None before their first poll, and while polls fail.
    of_fleet: a sentence on each alarm about the fleet as a whole, and on each setting in which its workers differ.
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
    ceiling: float | None = None
    of_fleet: tuple[str, ...] = ()

    def halted(self) -> Iterable[str]:
        return (
            f"Range {lease.token} ({lease.owner}): {lease.error or lease.state}"
            for lease in self.leases()
            if lease.halted and not (self.unready and lease.owner == self.instance)  # the reasons name those
        )

    def waits(self) -> Iterable[str]:
        yield from self.of_fleet
        yield from State.waits(self)  # super() fails in a dataclass with slots
        oldest = None if self.lag is None or self.unseen else self.lag.oldest_age
        if oldest and oldest >= LATE:
            why = (
                f": OUTBOX_SEND_RATE lets {self.ceiling:g} messages a second through" if self.ceiling else ""
            )
            yield f"The oldest unsent change waits for {duration_text(oldest)}{why}."
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
        polled = {lease.lease: lease for lease in self.lag.leases} if self.lag else {}
        damaged = self.lag.damaged if self.lag else {}
        views = [
            LeaseView(
                token=token_of(lease), owner="none", state="damaged", error=error, trouble=True, halted=True
            )
            for lease, error in damaged.items()
        ]
        views += [self._own(it, polled.pop(it.lease, None)) for it in self.mine if it.lease not in damaged]
        views += map(self._polled, polled.values())
        # Tokens of partitions are numbers.
        return sorted(views, key=lambda view: (not view.halted, len(view.token), view.token))

    def _own(self, status: LeaseStatus, lag: LeaseLag | None) -> LeaseView:
        state = "draining" if status.draining else "moving"
        if status.failed_attempts:
            state = f"failing, attempt {status.failed_attempts + 1}"
        if status.stalled:
            state = f"stalled for {duration_text(timedelta(seconds=status.idle_seconds))}"
        return LeaseView(
            token=status.token,
            owner=self.instance,
            state=state,
            error=status.error or "",
            trouble=status.stalled or status.failed_attempts > 0,
            halted=status.stalled,
            **self._waiting(lag),
        )

    def _polled(self, lag: LeaseLag) -> LeaseView:
        state = "unknown" if self.unseen else "elsewhere" if lag.owner else "no owner"
        if lag.owner == self.instance:
            state = "no longer of this worker"  # the worker knows before the next poll does
        return LeaseView(
            token=lag.token,
            owner=lag.owner,
            state="stands still" if lag.standstill else state,
            error=lag.standstill or "",
            trouble=bool(lag.standstill or (not lag.owner and lag.transactions)),
            halted=lag.standstill is not None,
            **self._waiting(lag),
        )

    def _waiting(self, lag: LeaseLag | None) -> dict[str, Any]:
        if lag is None or self.unseen:
            return {}
        return {"waiting": lag.transactions, "age": lag.oldest_age, "age_known": lag.age_known}


def standing(lag: Lag) -> list[str]:
    """Return a sentence on each lease that stands still, of this worker and of the others."""
    return [
        f"Range {lease.token} stands still (changes that wait: {lease.transactions}): {lease.standstill}"
        for lease in lag.leases
        if lease.standstill
    ]


def troubles(lag: Lag, parked: ParkedSeen | None) -> tuple[str, ...]:
    """
    Return what an operator has to look at, of any worker's leases and of what is parked: what is damaged, stands still, does
    not answer or is ahead of its range.
    """
    return (
        *lag.damaged.values(),
        *standing(lag),
        *(f"What waits for lease {name} is not known: {reason}" for name, reason in lag.unseen.items()),
        *(f"{reason} `cosmos-outbox leases reset --to` sets it back." for reason in lag.ahead.values()),
        *(map(str, parked.unreadable.values()) if parked else ()),
    )


class WorkerVitals(Vitals[Snapshot]):
    """The vitals of a worker."""

    name = "worker"
    processor: Any = None  # of several containers, one may not be open yet
    ceiling: Ceiling | None = None

    def __init__(self, settings: Settings, **clock: Any) -> None:
        super().__init__(settings, **clock)
        self._balanced_at: float | None = None
        self._unlisted = "."  # how a sentence ends that says why
        self._unreached: str | None = None
        self._lag: tuple[Lag, datetime, float] | None = None
        self._others: tuple[tuple[Heartbeat, ...], float] | None = None
        self._fleet = FleetWatch(settings)
        # By lease: its oldest age, and when that was seen
        self._ages: dict[str, tuple[timedelta, float]] = {}

    def _hear(self, record: Record, now: float) -> None:
        if isinstance(record, MessagesPublished):
            self._count(record.messages)
        elif isinstance(record, LeasesBalanced):
            self._balanced_at = now if record.outcome == "listed" else self._balanced_at
            self._unlisted = f": {record.error}" if record.error else "."
        self._fleet.heard(record, now)

    def begins_again(self) -> None:
        """Note that it ended and is tried again; the record that it hears next says why."""
        self._end, self._balanced_at, self.processor = "", None, None

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
            **self._fleet.says(),
        )

    def met(self, *fleet: Heartbeat, strangers: Iterable[Heartbeat] = ()) -> Iterable[Record]:
        """Note the workers, this one first, and those of other processors; return the alarms about the fleet."""
        self._others = (fleet[1:], self._loop.time())
        self._fleet.met(fleet, strangers, self._loop.time())
        return self._fleet.alarms

    def snapshot(self) -> Snapshot:
        mine = self.processor.status(stalled_after=self.stalled_after) if self.processor else ()
        lag, lag_at, polled_at = self._lag or (None, None, self._loop.time())
        others = None if self._others is None or self._unseen(self._others[1]) else self._others[0]
        return Snapshot(
            **self._state(self._reasons(mine), starting=self._balanced_at is None),
            processor=self._settings.processor_name,
            topic=self._settings.topic,
            mine=mine,
            lag=lag and self._aged(lag, polled_at),
            lag_at=lag_at,
            unseen=self._unseen(polled_at),
            event_ttl=timedelta(seconds=self._settings.event_ttl_seconds),
            sent=self._done,
            sent_per_second=self._per_second(),
            ceiling=self.ceiling.per_second
            if self.ceiling and self.ceiling.holds_back(now=self._loop.time())
            else None,
            others=others,
            of_fleet=() if others is None else self._fleet.sentences,
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
