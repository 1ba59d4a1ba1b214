"""
Worker health: find out whether a worker makes progress, from the records that it reports and from regular reads of Cosmos DB (polls). The
status page, the probes and the metrics show the result. `shared_health.py` decides whether a process is ready, from the causes (`causes.py`)
that are found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from cosmos_outbox.changefeed import Lag, LeaseLag, LeaseStatus
from cosmos_outbox.changefeed.leases import token_of
from cosmos_outbox.errors import error_line
from cosmos_outbox.records import LeasesBalanced, MessagesPublished, PublishFailed, Record, TopicFull
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox_worker.causes import FREE, Cause, cause_of, of_fleet, of_leases, of_workers, range_of
from cosmos_outbox_worker.fleet_differences import FleetWatch
from cosmos_outbox_worker.heartbeats import Heartbeat
from cosmos_outbox_worker.readable_times import duration_text
from cosmos_outbox_worker.settings import Settings
from cosmos_outbox_worker.shared_health import WAITS, WORKERS, State, Vitals

_HELD_LONG = timedelta(minutes=1)
_STARTING = Cause(kind="starting", said="The worker has not seen the leases yet.", unready=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """
    A lease of this worker or of another one, as the status page shows it.

    lag: how much waits in the range of the lease; None if that is unknown.
    state: the state of the lease in a few words.
    trouble: whether an operator should look at the lease.
    """

    token: str
    owner: str | None
    lag: LeaseLag | None
    state: str
    error: str = ""
    trouble: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(State):
    """
    The health of a worker at one moment, for probes, the status page and metrics.

    lag: how much waits in the range of each lease of the processor, at the last poll; None before the first poll.
    lag_at: the time of the last poll of the lag.
    unseen: the time for which polls of the lag have failed; zero while they succeed. Waiting changes are older by this time than `lag`
        says, and there may be more of them.
    ceiling: how many messages a second the worker may send (OUTBOX_SEND_RATE); None if there is no limit.
    held: for how long the limit OUTBOX_SEND_RATE has delayed messages without interruption.
    event_ttl: the time to live of events. An event that is not sent within this time is lost.
    others: the heartbeats of the other workers; None before the first poll of them, and while these polls fail.
    of_fleet: a sentence for each alarm that workers of this processor raise, and for each setting in which they differ.
    """

    processor: str
    topic: str
    lag: Lag | None
    lag_at: datetime | None
    unseen: timedelta
    event_ttl: timedelta
    sent: int
    sent_per_second: float
    others: tuple[Heartbeat, ...] | None = None
    ceiling: float | None = None
    held: timedelta = timedelta(0)
    of_fleet: tuple[str, ...] = ()

    def find_causes(self) -> Iterator[Cause]:
        yield from State.find_causes(self)  # not `super()`, which fails in a dataclass with slots
        yield from of_fleet(self.of_fleet)
        if self.unseen and not self.own():
            yield Cause(kind="unknown", since=self.at - self.unseen)
        stopped = [what.removeprefix("range ") for one in self.own() for _, what in one.stops]
        known = [*(lease.token for lease in self.mine), *stopped]
        lag = self.lag or Lag(leases=())
        yield from of_workers(self.at, self.others or (), lag, known=known)
        yield from of_leases(self.at, lag, known=known)

    def readiness(self) -> dict[str, Any]:
        return State.readiness(self) | {"leases": [asdict(lease) for lease in self.mine]}

    def leases(self) -> list[LeaseView]:
        """
        Return all leases for the status page, leases with a problem first. The state of this worker's own leases is current. The state
        of the other leases is what the last poll found.
        """
        stopped = {what: one for one in reversed(self.causes()) for _, what in one.stops}
        polled = {lease.lease: lease for lease in self.lag.leases} if self.lag else {}
        damaged = self.lag.damaged if self.lag else {}

        def view(
            token: str, owner: str | None, state: str, lag: LeaseLag | None, error: str | None = None
        ) -> LeaseView:
            cause = stopped.get(f"range {token}")
            return LeaseView(
                token=token,
                owner=owner,
                state="stands still"
                if cause and cause.stands and state in ("elsewhere", "unknown")
                else state,
                # A lease whose position is beyond the end of its range shows its own error, because this error names the position.
                error=(lag and lag.ahead) or (_brief(cause) if cause else error or ""),
                trouble=bool(cause or error or self.unseen),
                lag=None if self.unseen else lag,
            )

        views = [view(token_of(name), "none", "damaged", None) for name in damaged]
        mine = [one for one in self.mine if one.lease not in damaged]
        views += [
            view(one.token, self.instance, _state(one), polled.pop(one.lease, None), one.error)
            for one in mine
        ]
        for lag in polled.values():
            state = "unknown" if self.unseen else "elsewhere" if lag.owner else "no owner"
            if lag.owner == self.instance:
                # The last poll still names this worker as the owner, but the worker has lost the lease since.
                state = "no longer of this worker"
            views.append(view(lag.token, lag.owner, state, lag))
        # Sort tokens by length first: the tokens of partitions are numbers, so "9" has to come before "10".
        return sorted(views, key=lambda view: (not view.trouble, len(view.token), view.token))


def _brief(cause: Cause) -> str:
    """
    Return the text about a cause for the row of a lease on the status page. If the cause stops several leases, return a short text,
    because the top of the page has the full text.
    """
    texts = filter(None, (cause.said, cause.words["what"]))
    return next(texts, "") if len(cause.stops) == 1 else min(texts, key=len, default="")


def _state(status: LeaseStatus) -> str:
    if status.stalled:
        return f"stalled for {duration_text(timedelta(seconds=status.idle_seconds))}"
    if status.failed_attempts:
        return f"failing, attempt {status.failed_attempts + 1}"
    return "draining" if status.draining else "moving"


class WorkerVitals(Vitals[Snapshot]):
    """Collects the health of a worker from polls, and from the records that the worker reports to it."""

    name = "worker"
    # The processor is None until the worker is built. With several containers, the status page is served before that.
    processor: Any = None
    ceiling: Ceiling | None = None

    def __init__(self, settings: Settings, **clock: Any) -> None:
        super().__init__(settings, **clock)
        self._balanced_at: float | None = None
        self._held_since = self._utcnow()  # the time since which OUTBOX_SEND_RATE holds messages back
        self.fails("leases", _STARTING)
        # Why the worker could not acquire leases, and until when this counts as the reason.
        self._untaken = (_STARTING, 0.0)
        self._lag: tuple[Lag, datetime, float] | None = None
        self._others: tuple[tuple[Heartbeat, ...], float] | None = None
        self.fleet = FleetWatch(settings)
        # For each lease: the age of the oldest waiting change, and the time at which this age was read.
        self._ages: dict[str, tuple[timedelta, float]] = {}

    def _hear(self, record: Record, now: float) -> None:
        if isinstance(record, MessagesPublished):
            self._count(record.messages)
            self.works(("lane", record.lane))
            self.works(("lane", None))
        elif isinstance(record, PublishFailed | TopicFull):
            # The failure is shown until the next attempt has ended. That takes up to a minute after the delay, so 90 s are enough.
            lasts = (record.delay_seconds or 0.0) + 90.0
            self.fails(("lane", record.lane), cause_of(error_line(record.error)), lasts=lasts)
        elif isinstance(record, LeasesBalanced) and record.error is not None:
            self.fails("leases", cause := cause_of(error_line(record.error)))
            self._untaken = (cause, now + self._settings.lease_expiration_seconds / 2)  # some passes
        elif isinstance(record, LeasesBalanced):
            self._balanced_at = now
            self.works("leases")
        self.fleet.note_record(record, now)

    def note_restart(self) -> None:
        """Note that the worker failed and will be started again. The caller then reports a record with the error."""
        self._end, self._balanced_at, self.processor = "", None, None
        self.fails("leases", _STARTING)

    def note_lag(self, lag: Lag) -> None:
        """Store how much waits in each range, as a poll found it, and note whether the leases have disappeared."""
        now = self._loop.time()
        self._lag = (lag, self._utcnow(), now)
        if lag.leases:
            self.works("no leases")
        # `_ages` has the leases of earlier polls. If there were leases and now there are none, they were deleted.
        elif self._ages and not lag.damaged:
            self.fails("no leases", Cause(kind="no-leases", stands=True))
        self._ages = {
            one.lease: self._ages[one.lease]
            if one.unseen is not None and one.lease in self._ages
            else (one.oldest_age or timedelta(0), now)
            for one in lag.leases
        }

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of this worker, from which other workers learn its state."""
        now = self.snapshot()
        return Heartbeat(
            worker=now.instance,
            every=self.poll_interval,
            phase=now.phase,
            unready=now.unready,
            errors=tuple(f"{error.event} {error.text}" for error in now.errors),
            causes=tuple(one for one in now.own() if not one.words["quiet"]),
            **self.fleet.heartbeat_fields(),
        )

    def note_workers(self, *fleet: Heartbeat, strangers: Iterable[Heartbeat] = ()) -> Iterable[Record]:
        """
        Store the heartbeats that a poll has read, and return the alarms that this worker raises after comparing the workers.

        Args:
            fleet: the heartbeats of the workers of this processor, this worker's first.
            strangers: the heartbeats of workers of other processors of the same container.
        """
        self._others = (fleet[1:], self._loop.time())
        self.fleet.compare(fleet, strangers, self._loop.time())
        return self.fleet.alarms

    def due_in(self, what: str) -> float:
        # If the heartbeat of another worker is late, poll again at the moment at which that worker would count as silent.
        others = self._others[0] if self._others and what == WORKERS else ()
        return min((one.silent_in for one in others if one.overdue), default=super().due_in(what))

    def snapshot(self) -> Snapshot:
        mine = self.processor.status(stalled_after=self.stalled_after) if self.processor else ()
        lag, lag_at, polled_at = self._lag or (None, None, self._loop.time())
        if self.ceiling is None or not self.ceiling.holds_back(now=self._loop.time()):
            self._held_since = self._utcnow()
        others = None if self._others is None or self._unseen(self._others[1], "") else self._others[0]
        causes = (*self._list_causes(), *self._take_causes(mine), *self._rate_causes())
        return Snapshot(
            **self._state(causes, starting=self._balanced_at is None),
            processor=self._settings.processor_name,
            topic=self._settings.topic,
            mine=mine,
            lag=lag and self._with_ages_now(lag, polled_at),
            lag_at=lag_at,
            unseen=self._unseen(polled_at, WAITS),
            event_ttl=timedelta(seconds=self._settings.event_ttl_seconds),
            sent=self._done,
            sent_per_second=self._per_second(),
            ceiling=self.ceiling.per_second if self.ceiling else None,
            held=self._utcnow() - self._held_since,
            others=others,
            of_fleet=() if others is None else self.fleet.sentences,
        )

    def _list_causes(self) -> Iterator[Cause]:
        unlisted = timedelta(seconds=self._loop.time() - (self._balanced_at or 0.0))
        if self._balanced_at is not None and unlisted > self.stalled_after:
            since = self._utcnow() - unlisted
            silent = Cause(kind="store-away", said="The leases could not be listed.", since=since)
            failed, *_ = self._failing.get("leases", (silent,))
            yield replace(failed, unready=True)

    def _take_causes(self, mine: Iterable[LeaseStatus]) -> Iterator[Cause]:
        (cause, until), tokens = self._untaken, {lease.token for lease in mine}
        polled = self._lag[0].leases if self._lag and self._loop.time() < until else ()
        free = {one.token: one.free_for for one in polled if one.free_for and one.token not in tokens}
        if free and max(free.values()) >= FREE and not cause.words["checked"]:
            since, stops = self._utcnow() - max(free.values()), (range_of("", token) for token in free)
            yield replace(cause, since=since, stops=tuple(stops), stands=True, unready=True)

    def _rate_causes(self) -> Iterator[Cause]:
        if self.ceiling and self._utcnow() - self._held_since >= _HELD_LONG:
            said = f"OUTBOX_SEND_RATE lets {self.ceiling.per_second:g} messages a second of {self._settings.instance_name} through."
            yield Cause(kind="ceiling", said=said, since=self._held_since)

    def _with_ages_now(self, lag: Lag, polled_at: float) -> Lag:
        # If a range cannot be read, add the time since the last read to the age of its oldest waiting change. If no change waited at
        # the last read, assume that a change was committed just after it.
        leases = []
        for one in lag.leases:
            age, seen_at = self._ages[one.lease]
            late = age + timedelta(seconds=polled_at - seen_at)
            leases.append(one if one.unseen is None else replace(one, oldest_age=late))
        return replace(lag, leases=tuple(leases))
