"""
Telemetry: the worker's instruments, which make OpenTelemetry metrics of what hooks are told.
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
    EventRejected,
    EventsDeleted,
    EventsHeld,
    LeaseAcquired,
    LeaseClosed,
    LeaseHalted,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
    Record,
    level_of,
    names_of,
)
from cosmos_outbox.service.health import Snapshot

_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Telemetry:
    """
    The worker's instruments; a hook. `observed` is what the gauges show, told from the event loop, read by any thread.
    """

    def __init__(self, provider: MeterProvider, *, topic: str) -> None:
        self.observed: Snapshot | None = None
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
        # From the start: a series that begins with its first event never rises, and wakes nobody up.
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


def _error_of(record: PublishFailed | PageFailed) -> dict[str, str]:
    return {"error.type": type(record.error).__name__}


_Attributes = Mapping[str, str]
_Count = Callable[[Any], tuple[int] | tuple[int, _Attributes]]
_PLAIN: tuple[_Attributes, ...] = ({},)
# Name, unit, description, the attributes that are known beforehand; and for each kind of record that is counted, how many
# it stands for, and their attributes.
_COUNTERS: tuple[tuple[str, str, str, tuple[_Attributes, ...], Mapping[type, _Count]], ...] = (
    (
        "outbox.send.failures",
        "{attempt}",
        "Sends that are tried again.",
        (),
        {PublishFailed: lambda record: (1, _error_of(record))},
    ),
    (
        "outbox.events.rejected",
        "{event}",
        "Refusals of an event that can never be sent.",
        _PLAIN,
        {EventRejected: lambda _: (1,)},
    ),
    (
        "outbox.events.held",
        "{event}",
        "Later events put behind a parked one of their key.",
        _PLAIN,
        {EventsHeld: lambda record: (record.events,)},
    ),
    (
        "outbox.events.deleted",
        "{event}",
        "Events deleted after they were sent.",
        _PLAIN,
        {EventsDeleted: lambda record: (record.events,)},
    ),
    (
        "outbox.changes.handled",
        "{change}",
        "Changes read from the feed and done with.",
        _PLAIN,
        {PageHandled: lambda record: (record.changes,)},
    ),
    (
        "outbox.page.failures",
        "{attempt}",
        "Pages that are tried again.",
        (),
        {PageFailed: lambda record: (1, _error_of(record))},
    ),
    (
        "outbox.lease.halts",
        "{halt}",
        "Alarms: a range stands still until somebody acts.",
        _PLAIN,
        {LeaseHalted: lambda _: (1,)},
    ),
    (
        "outbox.lease.moves",
        "{move}",
        "Leases that came to this worker or left it.",
        # As text: the SDK tells a member of an enumeration from the same text, and the exposition would have both.
        tuple({"outbox.lease.move": move} for move in ("acquired", *map(str, CloseReason))),
        {
            LeaseAcquired: lambda _: (1, {"outbox.lease.move": "acquired"}),
            LeaseClosed: lambda record: (1, {"outbox.lease.move": str(record.reason)}),
        },
    ),
)


# What was seen is no longer told once nobody can look any more, but for what is certain: that it gets older.


def _lag(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in snapshot.lag.leases if snapshot.lag and not snapshot.unseen else ():
        yield Observation(lease.transactions, {"outbox.lease": lease.token})


def _ages(snapshot: Snapshot) -> Iterator[Observation]:
    for lease in snapshot.lag.leases if snapshot.lag else ():
        if not lease.age_known:
            continue
        age = (lease.oldest_age or timedelta(0)) + snapshot.unseen
        yield Observation(age.total_seconds(), {"outbox.lease": lease.token})


def _headroom(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.lag:
        oldest = (snapshot.lag.oldest_age or timedelta(0)) + snapshot.unseen
        yield Observation((snapshot.event_ttl - oldest).total_seconds())


def _parked_keys(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.parked:
        yield Observation(snapshot.parked.count)


def _parked_events(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.parked and snapshot.parked.events is not None:
        yield Observation(snapshot.parked.events)


def _unowned(snapshot: Snapshot) -> Iterator[Observation]:
    if snapshot.lag and not snapshot.unseen:
        yield Observation(sum(1 for lease in snapshot.lag.leases if not lease.owner))


# Lag is told by every worker for all leases: whoever still runs tells of the leases of those that do not.
_GAUGES: tuple[tuple[str, str, str, Callable[[Snapshot], Iterable[Observation]]], ...] = (
    ("outbox.lease.lag", "{transaction}", "Transactions that wait in a range, whoever owns its lease.", _lag),
    (
        "outbox.oldest_unsent.age",
        "s",
        "Age of the oldest change that waits, or may wait unseen, in a range; 0 where none does.",
        _ages,
    ),
    (
        "outbox.ttl.headroom",
        "s",
        "Time until the oldest change that waits may be deleted unsent (OUTBOX_EVENT_TTL_SECONDS less its age).",
        _headroom,
    ),
    ("outbox.parked.keys", "{key}", "Partition keys that wait for an operator.", _parked_keys),
    (
        "outbox.parked.events",
        "{event}",
        "Events they hold, where there are not too many keys to count.",
        _parked_events,
    ),
    ("outbox.leases.free", "{lease}", "Leases that nobody owns.", _unowned),
    (
        "outbox.leases.owned",
        "{lease}",
        "Leases of this worker.",
        lambda snapshot: [Observation(len(snapshot.mine))],
    ),
    (
        "outbox.leases.stalled",
        "{lease}",
        "Leases of this worker that stand still.",
        lambda snapshot: [Observation(sum(lease.stalled for lease in snapshot.mine))],
    ),
    (
        "outbox.worker.ready",
        "1",
        "1 where the worker is ready, else 0.",
        lambda snapshot: [Observation(int(not snapshot.unready))],
    ),
)
