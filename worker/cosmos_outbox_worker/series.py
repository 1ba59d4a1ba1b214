"""Series: which records become counters, and which facts of health gauges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from opentelemetry.metrics import Observation

from cosmos_outbox.changefeed import CloseReason
from cosmos_outbox.records import (
    AttemptFailed,
    EventDeletion,
    EventRejected,
    EventsHeld,
    LeaseMoved,
    MessageGivenUp,
    MessageHandled,
    MessageSettled,
    MessagesPublished,
    PageFailed,
    PageHandled,
    PublishFailed,
    SessionClosed,
)
from cosmos_outbox.sessions import SessionEnd
from cosmos_outbox.sessions.held_session import OUTCOMES
from cosmos_outbox_worker.health import Snapshot

_Attributes = Mapping[str, str]
Count = Callable[[Any], tuple[int] | tuple[int, _Attributes]]
# Name, unit, description, the attributes that are known beforehand; and for each kind of record, how much to add with
# which attributes.
_Counters = tuple[tuple[str, str, str, tuple[_Attributes, ...], Mapping[type, Count]], ...]
Measure = Callable[[Any], tuple[float | None] | tuple[float | None, _Attributes]]
# Name, description, bounds of its buckets, the kind of record, and how many seconds that tells, if it does
_Histograms = tuple[tuple[str, str, tuple[float, ...], type, Measure], ...]
# Name, unit, description, and how to read a snapshot
_Gauges = tuple[tuple[str, str, str, Callable[[Any], Iterable[Observation]]], ...]
_PLAIN: tuple[_Attributes, ...] = ({},)
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


def _error_of(record: PublishFailed | PageFailed | AttemptFailed) -> dict[str, str]:
    return {"error.type": type(record.error).__name__}


def _by_outcome(record: MessageHandled | MessageGivenUp | MessageSettled) -> tuple[int, _Attributes]:
    return 1, {"outbox.outcome": record.outcome}


def _gauge(value: float, **attributes: str) -> list[Observation]:
    return [Observation(value, {f"outbox.{name}": text for name, text in attributes.items()} or None)]


def _parked_events(snapshot: Any) -> Iterable[Observation]:
    if snapshot.parked is None or snapshot.parked.events is None:
        return ()
    return _gauge(snapshot.parked.events)


def _parked_age(snapshot: Any) -> Iterable[Observation]:
    if snapshot.parked is None:
        return ()
    since = snapshot.parked.oldest_at
    return _gauge(0 if since is None else max((snapshot.at - since).total_seconds(), 0))


_PARKED_GAUGES: _Gauges = (
    ("outbox.parked.keys", "{key}", "Partition keys that wait for an operator.",
     lambda snapshot: _gauge(snapshot.parked.count) if snapshot.parked else ()),
    ("outbox.parked.events", "{event}", "Events or messages that parked keys hold, unless a key cannot be read.",
     _parked_events),
    ("outbox.parked.age", "s", "For how long the oldest parked key waits; 0 if none does.", _parked_age),
)  # fmt: skip

_CONSUMER_GAUGES: _Gauges = (
    *_PARKED_GAUGES,
    ("outbox.sessions.held", "{session}", "Sessions that this consumer holds.",
     lambda snapshot: _gauge(len(snapshot.sessions))),
    ("outbox.keys.stalled", "{key}",
     "Keys that this consumer could not handle for long, through no fault of their messages.",
     lambda snapshot: _gauge(len(snapshot.stalled))),
    ("outbox.handling.longest", "s", "For how long the message that takes longest is being handled; 0 if none is.",
     lambda snapshot: _gauge(max((one.handling_seconds or 0 for one in snapshot.sessions), default=0))),
    ("outbox.consumer.ready", "1", "1 if the consumer is ready, else 0.",
     lambda snapshot: _gauge(int(not snapshot.unready))),
)  # fmt: skip

_CONSUMER_COUNTERS: _Counters = (
    (
        "outbox.messages.handled", "{message}", "Messages that this consumer is done with, by what became of them.",
        tuple({"outbox.outcome": outcome} for outcome in ("handled", "repeated", "ignored", "dropped", "held", "parked", "dead-lettered")),
        dict.fromkeys((MessageHandled, MessageGivenUp), _by_outcome),
    ),
    (
        "outbox.messages.settled", "{message}", "Messages that were settled, by their outcome.",
        tuple({"outbox.outcome": outcome} for outcome in OUTCOMES.values()),
        {MessageSettled: _by_outcome},
    ),
    (
        "outbox.attempt.failures", "{attempt}", "Attempts of a consumer's handler that failed.",
        (), {AttemptFailed: lambda record: (1, _error_of(record))},
    ),
    (
        "outbox.sessions.closed", "{session}", "Sessions that this consumer gave back or lost.",
        tuple({"outbox.session.end": str(end)} for end in SessionEnd),
        {SessionClosed: lambda record: (1, {"outbox.session.end": str(record.outcome)})},
    ),
)  # fmt: skip

_WORKER_COUNTERS: _Counters = (
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
        _PLAIN, {EventsHeld: lambda record: (record.events if record.outcome == "held" else 0,)},
    ),
    (
        "outbox.events.deleted", "{event}", "Events deleted after they were sent.",
        _PLAIN, {EventDeletion: lambda record: (record.events if record.outcome == "deleted" else 0,)},
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
        "outbox.lease.moves", "{move}", "Leases that this worker acquired, released or lost.",
        # As text: the SDK keeps an enumeration member and its text apart, so the exposition would have both.
        tuple({"outbox.lease.move": move} for move in ("acquired", *map(str, CloseReason))),
        {LeaseMoved: lambda record: (1, {"outbox.lease.move": str(record.outcome)})},
    ),
)  # fmt: skip


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


def _unowned(snapshot: Snapshot) -> Iterable[Observation]:
    if snapshot.lag is None or snapshot.unseen:
        return ()
    return _gauge(sum(not lease.owner for lease in snapshot.lag.leases))


# Every worker exports the lag of all leases: those that run report the leases of those that do not.
_WORKER_GAUGES: _Gauges = (
    ("outbox.lease.lag", "{transaction}", "Transactions that wait in a range, also of other workers.", _lag),
    ("outbox.oldest_unsent.age", "s",
     "Age of the oldest change that waits, or may wait unseen, in a range; 0 if none does.", _ages),
    ("outbox.ttl.headroom", "s",
     "Time until the oldest change that waits may be deleted unsent (OUTBOX_EVENT_TTL_SECONDS less its age).", _headroom),
    *_PARKED_GAUGES,
    ("outbox.leases.free", "{lease}", "Leases without an owner, or not renewed in time.", _unowned),
    ("outbox.leases.owned", "{lease}", "Leases of this worker.", lambda snapshot: _gauge(len(snapshot.mine))),
    ("outbox.leases.stalled", "{lease}", "Leases of this worker that are stalled.",
     lambda snapshot: _gauge(sum(lease.stalled for lease in snapshot.mine))),
    ("outbox.worker.ready", "1", "1 if the worker is ready, else 0.", lambda snapshot: _gauge(int(not snapshot.unready))),
)  # fmt: skip

_CONSUMER_HISTOGRAMS: _Histograms = (
    (
        "outbox.handler.duration", "How long a message took from its delivery to the commit of its effect.",
        _DURATIONS, MessageHandled, lambda record: (record.seconds,),
    ),
    (
        "outbox.message.age", "Time from when the broker took a message to the commit of its effect.",
        (*_DURATIONS, 30, 60, 300, 1800, 7200), MessageHandled, lambda record: (record.age_seconds,),
    ),
)  # fmt: skip
CONSUMER_SERIES = _CONSUMER_COUNTERS, _CONSUMER_HISTOGRAMS, _CONSUMER_GAUGES


def worker_series(topic: str) -> tuple[_Counters, _Histograms, _Gauges]:
    """Return the series of a worker that sends to a topic; none is named where routes choose among several."""
    sends = {"messaging.system": "servicebus", "messaging.operation.name": "send"}
    if topic:
        sends["messaging.destination.name"] = topic
    sent: _Counters = ((
        "messaging.client.sent.messages", "{message}", "Messages that the topic accepted.",
        (sends,), {MessagesPublished: lambda record: (record.messages, sends)},
    ),)  # fmt: skip
    durations: _Histograms = ((
        "messaging.client.operation.duration", "How long the topic took to accept the messages of one call.",
        _DURATIONS, MessagesPublished, lambda record: (record.seconds, sends),
    ),)  # fmt: skip
    return (*sent, *_WORKER_COUNTERS), durations, _WORKER_GAUGES
