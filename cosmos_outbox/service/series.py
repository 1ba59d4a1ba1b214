"""
Series: how records become counters and health becomes gauges; what worker and consumer both have, and the consumer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.metrics import Observation

from cosmos_outbox.records import (
    AttemptFailed,
    MessageGap,
    MessageHeld,
    MessageIgnored,
    MessageParked,
    MessageRepeated,
    MessageSettled,
    PageFailed,
    PublishFailed,
    SessionClosed,
)
from cosmos_outbox.sessions import SessionEnd
from cosmos_outbox.sessions.held import OUTCOMES

_Attributes = Mapping[str, str]
Count = Callable[[Any], tuple[int] | tuple[int, _Attributes]]
# Name, unit, description, the attributes that are known beforehand; and for each kind of record, how much to add with
# which attributes.
Counters = tuple[tuple[str, str, str, tuple[_Attributes, ...], Mapping[type, Count]], ...]
# Name, unit, description, and how to read a snapshot
Gauges = tuple[tuple[str, str, str, Callable[[Any], Iterable[Observation]]], ...]
PLAIN: tuple[_Attributes, ...] = ({},)


def error_of(record: PublishFailed | PageFailed | AttemptFailed) -> dict[str, str]:
    """
    Return the attribute that names the error of a record.
    """
    return {"error.type": type(record.error).__name__}


def gauge(value: float, **attributes: str) -> list[Observation]:
    """
    Return one value of a gauge.
    """
    return [Observation(value, {f"outbox.{name}": text for name, text in attributes.items()} or None)]


def _parked_events(snapshot: Any) -> Iterable[Observation]:
    if snapshot.parked is None or snapshot.parked.events is None:
        return ()
    return gauge(snapshot.parked.events)


def _parked_age(snapshot: Any) -> Iterable[Observation]:
    if snapshot.parked is None:
        return ()
    since = snapshot.parked.oldest_at
    return gauge(0 if since is None else max((snapshot.at - since).total_seconds(), 0))


PARKED_GAUGES: Gauges = (
    ("outbox.parked.keys", "{key}", "Partition keys that wait for an operator.",
     lambda snapshot: gauge(snapshot.parked.count) if snapshot.parked else ()),
    ("outbox.parked.events", "{event}", "Events or messages that parked keys hold, unless a key cannot be read.",
     _parked_events),
    ("outbox.parked.age", "s", "For how long the oldest parked key waits; 0 if none does.", _parked_age),
)  # fmt: skip

CONSUMER_GAUGES: Gauges = (
    *PARKED_GAUGES,
    ("outbox.sessions.held", "{session}", "Sessions that this consumer holds.",
     lambda snapshot: gauge(len(snapshot.sessions))),
    ("outbox.keys.stalled", "{key}",
     "Keys that this consumer could not handle for long, through no fault of their messages.",
     lambda snapshot: gauge(len(snapshot.stalled))),
    ("outbox.handling.longest", "s", "For how long the message that takes longest is being handled; 0 if none is.",
     lambda snapshot: gauge(max((one.handling_seconds or 0 for one in snapshot.sessions), default=0))),
    ("outbox.consumer.ready", "1", "1 if the consumer is ready, else 0.",
     lambda snapshot: gauge(int(not snapshot.unready))),
)  # fmt: skip

CONSUMER_COUNTERS: Counters = (
    (
        "outbox.messages.repeated", "{message}", "Messages that had taken effect before and had none again.",
        PLAIN, {MessageRepeated: lambda _: (1,)},
    ),
    (
        "outbox.messages.ignored", "{message}", "Messages without a handler.",
        PLAIN, {MessageIgnored: lambda _: (1,)},
    ),
    (
        "outbox.messages.gaps", "{gap}", "Messages before which events of their entity never arrived.",
        PLAIN, {MessageGap: lambda _: (1,)},
    ),
    (
        "outbox.messages.parked", "{message}", "Messages that failed and parked their key.",
        PLAIN, {MessageParked: lambda _: (1,)},
    ),
    (
        "outbox.messages.held", "{message}", "Later messages held behind a parked one of their key.",
        PLAIN, {MessageHeld: lambda _: (1,)},
    ),
    (
        "outbox.messages.settled", "{message}", "Messages that were settled, by their outcome.",
        tuple({"outbox.outcome": outcome} for outcome in OUTCOMES.values()),
        {MessageSettled: lambda record: (1, {"outbox.outcome": record.outcome})},
    ),
    (
        "outbox.attempt.failures", "{attempt}", "Attempts of a consumer's handler that failed.",
        (), {AttemptFailed: lambda record: (1, error_of(record))},
    ),
    (
        "outbox.sessions.closed", "{session}", "Sessions that this consumer gave back or lost.",
        tuple({"outbox.session.end": str(end)} for end in SessionEnd),
        {SessionClosed: lambda record: (1, {"outbox.session.end": str(record.reason)})},
    ),
)  # fmt: skip
