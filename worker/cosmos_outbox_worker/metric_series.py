"""Metric series: which records become counters and histograms, and which facts of health gauges; `series.toml` says what each measures."""

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
# For each counter: the attributes that are known in advance; and for each kind of record, how much to add under which attributes.
_Counters = Mapping[str, tuple[tuple[_Attributes, ...], Mapping[type, Count]]]
# For each histogram: the kind of record, and the seconds that a record reports, if it reports any.
_Histograms = Mapping[str, tuple[type, Count]]
# For each gauge: how to read it from a snapshot.
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
        # As text: the SDK tells an enumeration member from its text, so the exposition would have both.
        tuple({"outbox.lease.move": move} for move in ("acquired", *map(str, CloseReason))),
        {records.LeaseMoved: lambda record: (1, {"outbox.lease.move": str(record.outcome)})},
    ),
}


# While a poll fails, its last values are not exported. Age and headroom are, because they change with time.


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


# Every worker exports its own leases, and the maximum over all leases: so live workers report the leases that dead ones left. If each
# worker exported all leases, there would be workers times leases series.
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
    # Without a ceiling neither value exists.
    "outbox.send.ceiling.used": lambda it: _gauge(it.sent_per_second / it.ceiling) if it.ceiling else (),
    "outbox.send.ceiling.wait": lambda it: _gauge(it.held.total_seconds()) if it.ceiling else (),
    "outbox.worker.ready": lambda snapshot: _gauge(int(not snapshot.unready)),
}
_CONSUMER_HISTOGRAMS: _Histograms = {
    "outbox.message.age": (records.MessageHandled, lambda record: (record.age_seconds,)),
}
CONSUMER_SERIES = _CONSUMER_COUNTERS, _CONSUMER_HISTOGRAMS, _CONSUMER_GAUGES
WORKER_SERIES: tuple[_Counters, _Histograms, _Gauges] = _WORKER_COUNTERS, {}, _WORKER_GAUGES
