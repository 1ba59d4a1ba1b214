"""
Metric series: how counters and histograms are computed from the records that a worker or consumer reports, and how gauges are read from
its health. `series.toml` describes each metric, and `telemetry.py` exports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from opentelemetry.metrics import Observation

from cosmos_outbox import records
from cosmos_outbox.changefeed import CloseReason, LeaseLag
from cosmos_outbox.sessions import SessionEnd
from cosmos_outbox_worker.worker_health import Snapshot

_Attributes = Mapping[str, str]
Count = Callable[[Any], tuple[float | None] | tuple[float | None, _Attributes]]
# For each counter: the attributes of the series that start at zero, and for each type of record a function. The function returns the
# number to add for such a record, and the attributes.
_Counters = Mapping[str, tuple[tuple[_Attributes, ...], Mapping[type, Count]]]
# For each histogram: the type of record, and a function that returns the duration in seconds that such a record has, or None if it has none.
_Histograms = Mapping[str, tuple[type, Count]]
# For each gauge: a function that reads the values of the gauge from a health snapshot.
_Gauges = Mapping[str, Callable[[Any], Iterable[Observation]]]
_PLAIN: tuple[_Attributes, ...] = ({},)


def _by_error(record: Any) -> tuple[int, _Attributes]:
    return 1, {"error.type": type(record.error).__name__}


def _by_outcome(record: Any) -> tuple[int, _Attributes]:
    return 1, {"outbox.outcome": record.outcome}


def _gauge(value: float, **attributes: str) -> list[Observation]:
    return [Observation(value, {f"outbox.{name}": text for name, text in attributes.items()} or None)]


def _observe_parked_events(snapshot: Any) -> Iterable[Observation]:
    events = snapshot.parked and snapshot.parked.events
    return () if events is None else _gauge(events)


def _observe_parked_age(snapshot: Any) -> Iterable[Observation]:
    if snapshot.parked is None:
        return ()
    since = snapshot.parked.oldest_at
    return _gauge(0 if since is None else max((snapshot.at - since).total_seconds(), 0))


_PARKED_GAUGES: _Gauges = {
    "outbox.parked.keys": lambda snapshot: _gauge(snapshot.parked.count) if snapshot.parked else (),
    "outbox.parked.events": _observe_parked_events,
    "outbox.parked.age": _observe_parked_age,
}
_CONSUMER_GAUGES: _Gauges = {
    **_PARKED_GAUGES,
    "outbox.sessions.held": lambda snapshot: _gauge(len(snapshot.sessions)),
    "outbox.keys.stalled": lambda snapshot: _gauge(len(snapshot.stalled)),
    "outbox.waiting.longest": lambda snapshot: _gauge(snapshot.waiting_seconds),
    "outbox.handling.longest": lambda snapshot: _gauge(
        max((one.handling_seconds or 0 for one in snapshot.sessions), default=0)
    ),
    "outbox.consumer.ready": lambda snapshot: _gauge(int(not snapshot.unready)),
}
_HANDLED = ("handled", "repeated", "ignored", "dropped", "held", "parked", "dead-lettered")
_CONSUMER_COUNTERS: _Counters = {
    "outbox.messages.handled": (
        tuple({"outbox.outcome": outcome} for outcome in _HANDLED),
        {records.MessageHandled: _by_outcome, records.MessageGivenUp: _by_outcome},
    ),
    "outbox.attempt.failures": ((), {records.AttemptFailed: _by_error}),
    "outbox.sessions.closed": (
        tuple({"outbox.session.end": str(end)} for end in SessionEnd),
        {records.SessionClosed: lambda record: (1, {"outbox.session.end": str(record.outcome)})},
    ),
}
_WORKER_COUNTERS: _Counters = {
    "outbox.events.rejected": (_PLAIN, {records.EventRejected: lambda _: (1,)}),
    "outbox.events.held": (
        _PLAIN,
        {records.EventsHeld: lambda record: (record.events if record.outcome == "held" else 0,)},
    ),
    "outbox.events.deleted": (
        _PLAIN,
        {records.EventDeletion: lambda record: (record.events if record.outcome == "deleted" else 0,)},
    ),
    "outbox.changes.handled": (_PLAIN, {records.PageHandled: lambda record: (record.changes,)}),
    "outbox.page.failures": ((), {records.PageFailed: _by_error}),
    "outbox.lease.moves": (
        # Convert the members of the enumeration to text, because the SDK would export a member and its text as two different series.
        tuple({"outbox.lease.move": move} for move in ("acquired", *map(str, CloseReason))),
        {records.LeaseMoved: lambda record: (1, {"outbox.lease.move": str(record.outcome)})},
    ),
}


# While a poll fails, the gauges below do not export the old values of the last poll. Only ages, and the time until events expire, are
# exported: they are computed from the last poll and the time that has passed since.


def _own(snapshot: Snapshot) -> Iterable[LeaseLag]:
    mine = {status.lease for status in snapshot.mine}
    return (lease for lease in snapshot.lag.leases if lease.lease in mine) if snapshot.lag else ()


def _lag(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in () if snapshot.unseen else _own(snapshot):
        yield from _gauge(lease.transactions, lease=lease.token)


def _highest_lag(snapshot: Snapshot) -> Iterable[Observation]:
    if snapshot.lag is None or snapshot.unseen:
        return ()
    return _gauge(max((lease.transactions for lease in snapshot.lag.leases), default=0))


def _ages(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in _own(snapshot):
        if lease.age_known:
            yield from _gauge(_age(lease, snapshot), lease=lease.token)


def _highest_age(snapshot: Snapshot) -> Iterable[Observation]:
    known = [
        _age(lease, snapshot) for lease in (snapshot.lag.leases if snapshot.lag else ()) if lease.age_known
    ]
    return _gauge(max(known)) if known else ()


def _age(lease: LeaseLag, snapshot: Snapshot) -> float:
    return ((lease.oldest_age or timedelta(0)) + snapshot.unseen).total_seconds()


def _headroom(snapshot: Snapshot) -> Iterable[Observation]:
    if snapshot.lag is None:
        return ()
    oldest = (snapshot.lag.oldest_age or timedelta(0)) + snapshot.unseen
    return _gauge((snapshot.event_ttl - oldest).total_seconds())


def _free_leases(snapshot: Snapshot) -> Iterable[Observation]:
    if snapshot.lag is None or snapshot.unseen:
        return ()
    return _gauge(sum(not lease.owner for lease in snapshot.lag.leases))


# Each worker exports the lag of its own leases, and the highest lag of all leases. By the highest lag, live workers also report
# ranges whose lease no worker owns. If each worker exported all leases, there would be too many series: workers x leases.
_WORKER_GAUGES: _Gauges = {
    "outbox.lease.lag": _lag,
    "outbox.lease.age": _ages,
    "outbox.highest_lag": _highest_lag,
    "outbox.oldest_unsent.age": _highest_age,
    "outbox.ttl.headroom": _headroom,
    **_PARKED_GAUGES,
    "outbox.leases.free": _free_leases,
    "outbox.leases.owned": lambda snapshot: _gauge(len(snapshot.mine)),
    "outbox.leases.stalled": lambda snapshot: _gauge(sum(lease.stalled for lease in snapshot.mine)),
    # Export the next two gauges only if OUTBOX_SEND_RATE limits the messages a second.
    "outbox.send.ceiling.used": lambda it: _gauge(it.sent_per_second / it.ceiling) if it.ceiling else (),
    "outbox.send.ceiling.wait": lambda it: _gauge(it.held.total_seconds()) if it.ceiling else (),
    "outbox.worker.ready": lambda snapshot: _gauge(int(not snapshot.unready)),
}
_CONSUMER_HISTOGRAMS: _Histograms = {
    "outbox.message.age": (records.MessageHandled, lambda record: (record.age_seconds,)),
}
CONSUMER_SERIES = _CONSUMER_COUNTERS, _CONSUMER_HISTOGRAMS, _CONSUMER_GAUGES
WORKER_SERIES: tuple[_Counters, _Histograms, _Gauges] = _WORKER_COUNTERS, {}, _WORKER_GAUGES
