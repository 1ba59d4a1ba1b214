"""
Health: what a worker knows of itself, from the records that it hears as a hook; and a snapshot of it for any reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed import Lag, LeaseStatus
from cosmos_outbox.records import LeasesListed, MessagesPublished, Record
from cosmos_outbox.service.fleet import Heartbeat
from cosmos_outbox.service.vitals import Phase, State, Vitals


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

    def readiness(self) -> dict[str, Any]:
        """
        Return what `/readyz` answers, as JSON.
        """
        names = ("lease", "stalled", "failed_attempts", "error")
        leases = [
            {name: getattr(lease, name) for name in names} | {"idle_seconds": round(lease.idle_seconds, 1)}
            for lease in self.mine
        ]
        return State.readiness(self) | {"leases": leases}  # super() fails in a dataclass with slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """
    A worker's name, and what it works on.
    """

    instance: str
    processor: str
    container: str
    topic: str
    dashboard: str | None = None


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
        self.vitals = Vitals(
            "worker", stalled_after=stalled_after, poll_interval=poll_interval, utcnow=utcnow
        )
        self._identity, self._leases, self._event_ttl = identity, leases, event_ttl
        self._loop = asyncio.get_running_loop()
        self._balanced_at: float | None = None
        self._unreached: str | None = None
        self._lag: tuple[Lag, datetime, float] | None = None
        self._others: tuple[tuple[Heartbeat, ...], float] | None = None
        # By lease: its oldest age, and when that was seen
        self._ages: dict[str, tuple[timedelta, float]] = {}

    def __call__(self, record: Record) -> None:
        """
        Hear a record, from any thread: the watchdog of the event loop has its own.
        """
        if self.vitals.hear(record, self):
            return
        if isinstance(record, MessagesPublished):
            self.vitals.count(record.messages)
        elif isinstance(record, LeasesListed):
            self._balanced_at = self._loop.time()

    def unreached(self, why: str | None) -> None:
        """
        Note why it is not known that events can be sent; None once a link to each topic was opened.
        """
        self._unreached = why

    def measured(self, lag: Lag) -> None:
        """
        Note what waits.
        """
        now = self._loop.time()
        self._lag = (lag, self.vitals.utcnow(), now)
        self._ages = {
            one.lease: self._ages[one.lease]
            if one.unseen is not None and one.lease in self._ages
            else (one.oldest_age or timedelta(0), now)
            for one in lag.leases
        }
        self.vitals.sample(waiting=lag.transactions, oldest=lag.oldest_age)

    def heartbeat(self) -> Heartbeat:
        """
        Return what the other workers are to know of this one.
        """
        now = self.snapshot()
        return Heartbeat(
            worker=now.instance,
            every=self.vitals.poll_interval,
            phase=now.phase,
            unready=now.unready,
            errors=tuple(f"{error.event} {error.text}" for error in now.errors),
        )

    def met(self, others: tuple[Heartbeat, ...]) -> None:
        """
        Note the other workers.
        """
        self._others = (others, self._loop.time())

    def snapshot(self) -> Snapshot:
        """
        Return the worker's health now.
        """
        vitals, now = self.vitals, self._loop.time()
        phase = vitals.phase(starting=self._balanced_at is None)
        mine = self._leases(vitals.stalled_after)
        listed_at = vitals.began_at if self._balanced_at is None else self._balanced_at
        reasons = reasons_against(
            phase,
            mine,
            unreached=self._unreached,
            unlisted_seconds=now - listed_at,
            stalled_seconds=vitals.stalled_after.total_seconds(),
            last_error=vitals.errors.last_since(vitals.utcnow() - vitals.stalled_after),
        )
        return Snapshot(
            at=vitals.utcnow(),
            started_at=vitals.started_at,
            **{one.name: getattr(self._identity, one.name) for one in fields(self._identity)},
            phase=phase,
            mine=mine,
            lag=self._aged(self._lag[0], self._lag[2]) if self._lag else None,
            lag_at=self._lag[1] if self._lag else None,
            unseen=vitals.unseen(self._lag[2]) if self._lag else timedelta(0),
            event_ttl=self._event_ttl,
            parked=vitals.parked,
            parked_at=vitals.parked_at,
            sent=vitals.done,
            sent_per_second=vitals.per_second,
            errors=vitals.errors.newest_first(),
            unready=(vitals.end,) if vitals.end else reasons,
            history=vitals.history.samples(),
            others=self._others_at(now),
        )

    def _others_at(self, now: float) -> tuple[Heartbeat, ...] | None:
        if self._others is None or self.vitals.unseen(self._others[1]):
            return None
        since = timedelta(seconds=now - self._others[1])
        return tuple(replace(one, silent_for=one.silent_for + since) for one in self._others[0])

    def _aged(self, lag: Lag, polled_at: float) -> Lag:
        # What waited in a range that could not be read is older by now; where nothing waited, something may.
        leases = []
        for one in lag.leases:
            age, seen_at = self._ages[one.lease]
            late = age + timedelta(seconds=polled_at - seen_at)
            leases.append(one if one.unseen is None else replace(one, oldest_age=late))
        return replace(lag, leases=tuple(leases))


def reasons_against(
    phase: Phase,
    leases: Sequence[LeaseStatus],
    *,
    unlisted_seconds: float,
    stalled_seconds: float,
    last_error: str | None = None,
    unreached: str | None = None,
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
        unreached: why it is not known that events can be sent.
    """
    if phase is Phase.DRAINING:
        return ("The worker is draining.",)
    reasons = []
    if phase is Phase.STARTING:
        reasons.append("The worker has not seen the leases yet.")
    elif unlisted_seconds > stalled_seconds:
        reasons.append(f"The leases could not be listed for {unlisted_seconds:.0f} s.")
    if unreached is not None:
        reasons.append(f"No link to the topics was opened yet: {unreached}")
    reasons += [
        f"Lease {lease.token} did not move for {lease.idle_seconds:.0f} s: "
        f"{lease.error or last_error or 'no error known'}."
        for lease in leases
        if lease.stalled
    ]
    return tuple(reasons)
