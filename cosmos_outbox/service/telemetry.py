"""
Telemetry: the worker's OpenTelemetry instruments, a hook that counts records, and gauges of its health.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from opentelemetry.metrics import CallbackOptions, Counter, MeterProvider, Observation

from cosmos_outbox.changefeed import CloseReason
from cosmos_outbox.records import (
    AttemptFailed,
    EventRejected,
    EventsDeleted,
    EventsHeld,
    LeaseAcquired,
    LeaseClosed,
    LeaseHalted,
    MessageGap,
    MessageHandled,
    MessageHeld,
    MessageIgnored,
    MessageParked,
    MessageRepeated,
    MessageSettled,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
    Record,
    SessionClosed,
    level_of,
    names_of,
)
from cosmos_outbox.service.health import Snapshot
from cosmos_outbox.sessions import SessionEnd
from cosmos_outbox.sessions.held import OUTCOMES

_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Telemetry:
    """
    The worker's instruments; a hook. The event loop sets `observed`, what the gauges show; any thread reads it.
    """

    def __init__(self, provider: MeterProvider, *, topic: str) -> None:
        self.observed: Any = None  # a snapshot
        meter = provider.get_meter("cosmos_outbox", version("cosmos-outbox"))
        self._destination = {
            "messaging.system": "servicebus",
            "messaging.destination.name": topic,
            "messaging.operation.name": "send",
        }
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Messages that the topic accepted.",
        )
        self._send_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="How long the topic took to accept the messages of one call.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._handler_duration = meter.create_histogram(
            "outbox.handler.duration",
            unit="s",
            description="How long a message took from its delivery to the commit of its effect.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._message_age = meter.create_histogram(
            "outbox.message.age",
            unit="s",
            description="Time from when the broker took a message to the commit of its effect.",
            explicit_bucket_boundaries_advisory=(*_DURATIONS, 30, 60, 300, 1800, 7200),
        )
        self._alarms = meter.create_counter(
            "outbox.alarms", unit="{alarm}", description="Records of the severity ERROR, by what happened."
        )
        self._warnings = meter.create_counter(
            "outbox.warnings",
            unit="{warning}",
            description="Records of the severity WARNING, by what happened.",
        )
        self._request_units = meter.create_counter(
            "outbox.request_units", unit="{request_unit}", description="What reading the change feed cost."
        )
        # From the start: an alert on a rise would miss a series that begins at 1.
        self._sent.add(0, self._destination)
        self.charged(0)
        for name in names_of(logging.ERROR):
            self._alarms.add(0, {"outbox.alarm": name})
        for name in names_of(logging.WARNING):
            self._warnings.add(0, {"outbox.warning": name})
        self._counted: dict[type, tuple[Counter, _Count]] = {}
        for name, unit, description, known, counts in _COUNTERS:
            counter = meter.create_counter(name, unit=unit, description=description)
            for attributes in known:
                counter.add(0, attributes)
            self._counted |= {kind: (counter, count) for kind, count in counts.items()}
        for name, unit, description, read in _GAUGES:
            meter.create_observable_gauge(name, [self._reading(read)], unit=unit, description=description)

    def __call__(self, record: Record) -> None:
        """
        Count a record.
        """
        level, name = level_of(record), type(record).__name__
        if level >= logging.ERROR:
            self._alarms.add(1, {"outbox.alarm": name})
        elif level >= logging.WARNING:
            self._warnings.add(1, {"outbox.warning": name})
        if isinstance(record, MessagesPublished):
            self._sent.add(record.messages, self._destination)
            self._send_duration.record(record.seconds, self._destination)
        elif isinstance(record, MessageHandled):
            self._handler_duration.record(record.seconds)
            if record.age_seconds is not None:
                self._message_age.record(record.age_seconds)
        elif (counted := self._counted.get(type(record))) is not None:
            counter, count = counted
            counter.add(*count(record))

    def charged(self, request_units: float) -> None:
        """
        Count what a read of the feed cost.
        """
        self._request_units.add(request_units, {"outbox.operation": "read_feed"})

    def _reading(
        self, read: Callable[[Snapshot], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: read(self.observed) if self.observed is not None else ()


def _error_of(record: PublishFailed | PageFailed | AttemptFailed) -> dict[str, str]:
    return {"error.type": type(record.error).__name__}


_Attributes = Mapping[str, str]
_Count = Callable[[Any], tuple[int] | tuple[int, _Attributes]]
_PLAIN: tuple[_Attributes, ...] = ({},)
# Name, unit, description, the attributes that are known beforehand; and for each kind of record, how much to add with
# which attributes.
_COUNTERS: tuple[tuple[str, str, str, tuple[_Attributes, ...], Mapping[type, _Count]], ...] = (
    (
        "outbox.send.failures", "{attempt}", "Sends that are tried again.",
        (), {PublishFailed: lambda record: (1, _error_of(record))},
    ),
    (
        "outbox.events.rejected", "{event}", "Refusals of an event that can never be sent.",
        _PLAIN, {EventRejected: lambda _: (1,)},
    ),
    (
        "outbox.events.held", "{event}", "Later events held behind a parked one of their key.",
        _PLAIN, {EventsHeld: lambda record: (record.events,)},
    ),
    (
        "outbox.events.deleted", "{event}", "Events deleted after they were sent.",
        _PLAIN, {EventsDeleted: lambda record: (record.events,)},
    ),
    (
        "outbox.changes.handled", "{change}", "Changes that were read from the feed and handled.",
        _PLAIN, {PageHandled: lambda record: (record.changes,)},
    ),
    (
        "outbox.page.failures", "{attempt}", "Pages that are tried again.",
        (), {PageFailed: lambda record: (1, _error_of(record))},
    ),
    (
        "outbox.lease.halts", "{halt}", "Alarms: a range is stalled until an operator acts.",
        _PLAIN, {LeaseHalted: lambda _: (1,)},
    ),
    (
        "outbox.lease.moves", "{move}", "Leases that this worker acquired, released or lost.",
        # As text: the SDK keeps an enumeration member and its text apart, so the exposition would have both.
        tuple({"outbox.lease.move": move} for move in ("acquired", *map(str, CloseReason))),
        {
            LeaseAcquired: lambda _: (1, {"outbox.lease.move": "acquired"}),
            LeaseClosed: lambda record: (1, {"outbox.lease.move": str(record.reason)}),
        },
    ),
    (
        "outbox.messages.repeated", "{message}", "Messages that had taken effect before and had none again.",
        _PLAIN, {MessageRepeated: lambda _: (1,)},
    ),
    (
        "outbox.messages.ignored", "{message}", "Messages without a handler.",
        _PLAIN, {MessageIgnored: lambda _: (1,)},
    ),
    (
        "outbox.messages.gaps", "{gap}", "Messages before which events of their entity never arrived.",
        _PLAIN, {MessageGap: lambda _: (1,)},
    ),
    (
        "outbox.messages.parked", "{message}", "Messages that failed and parked their key.",
        _PLAIN, {MessageParked: lambda _: (1,)},
    ),
    (
        "outbox.messages.held", "{message}", "Later messages held behind a parked one of their key.",
        _PLAIN, {MessageHeld: lambda _: (1,)},
    ),
    (
        "outbox.messages.settled", "{message}", "Messages that were settled, by their outcome.",
        tuple({"outbox.outcome": outcome} for outcome in OUTCOMES.values()),
        {MessageSettled: lambda record: (1, {"outbox.outcome": record.outcome})},
    ),
    (
        "outbox.attempt.failures", "{attempt}", "Attempts of a consumer's handler that failed.",
        (), {AttemptFailed: lambda record: (1, _error_of(record))},
    ),
    (
        "outbox.sessions.closed", "{session}", "Sessions that this consumer gave back or lost.",
        tuple({"outbox.session.end": str(end)} for end in SessionEnd),
        {SessionClosed: lambda record: (1, {"outbox.session.end": str(record.reason)})},
    ),
)  # fmt: skip


def _gauge(value: float, **attributes: str) -> list[Observation]:
    return [Observation(value, {f"outbox.{name}": text for name, text in attributes.items()} or None)]


# When polling has failed for too long, the last values are not exported any more; age and headroom keep moving.


def _lag(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in snapshot.lag.leases if snapshot.lag and not snapshot.unseen else ():
        yield from _gauge(lease.transactions, lease=lease.token)


def _ages(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in snapshot.lag.leases if snapshot.lag else ():
        if lease.age_known:
            age = (lease.oldest_age or timedelta(0)) + snapshot.unseen
            yield from _gauge(age.total_seconds(), lease=lease.token)


def _headroom(snapshot: Snapshot) -> Iterable[Observation]:
    if snapshot.lag is None:
        return ()
    oldest = (snapshot.lag.oldest_age or timedelta(0)) + snapshot.unseen
    return _gauge((snapshot.event_ttl - oldest).total_seconds())


def _parked_events(snapshot: Snapshot) -> Iterable[Observation]:
    if snapshot.parked is None or snapshot.parked.events is None:
        return ()
    return _gauge(snapshot.parked.events)


def _unowned(snapshot: Snapshot) -> Iterable[Observation]:
    if snapshot.lag is None or snapshot.unseen:
        return ()
    return _gauge(sum(not lease.owner for lease in snapshot.lag.leases))


# Every worker exports the lag of all leases: those that run report the leases of those that do not.
_GAUGES: tuple[tuple[str, str, str, Callable[[Snapshot], Iterable[Observation]]], ...] = (
    ("outbox.lease.lag", "{transaction}", "Transactions that wait in a range, also of other workers.", _lag),
    ("outbox.oldest_unsent.age", "s",
     "Age of the oldest change that waits, or may wait unseen, in a range; 0 if none does.", _ages),
    ("outbox.ttl.headroom", "s",
     "Time until the oldest change that waits may be deleted unsent (OUTBOX_EVENT_TTL_SECONDS less its age).", _headroom),
    ("outbox.parked.keys", "{key}", "Partition keys that wait for an operator.",
     lambda snapshot: _gauge(snapshot.parked.count) if snapshot.parked else ()),
    ("outbox.parked.events", "{event}", "Events that parked keys hold, unless a key cannot be read.", _parked_events),
    ("outbox.leases.free", "{lease}", "Leases without an owner.", _unowned),
    ("outbox.leases.owned", "{lease}", "Leases of this worker.", lambda snapshot: _gauge(len(snapshot.mine))),
    ("outbox.leases.stalled", "{lease}", "Leases of this worker that are stalled.",
     lambda snapshot: _gauge(sum(lease.stalled for lease in snapshot.mine))),
    ("outbox.worker.ready", "1", "1 if the worker is ready, else 0.", lambda snapshot: _gauge(int(not snapshot.unready))),
)  # fmt: skip
