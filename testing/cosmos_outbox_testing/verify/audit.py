"""
Compare the events that were committed with the messages that were received, or with the effects of these messages.

The audit does not use the worker's own counters, which may be wrong. It takes the expected order of the events from the results of the
commits, and not from the properties of messages. So a message with wrong properties cannot make a wrong order look right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class Received(Protocol):
    """One delivery of a message. Times are texts in ISO 8601. Only `received_ns`, the time of receipt, is in nanoseconds since 1970."""

    @property
    def message_id(self) -> str: ...
    @property
    def enqueued_at(self) -> str | None: ...
    @property
    def created_at(self) -> str | None: ...
    @property
    def received_ns(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEvent:
    """A committed event, as the result of its commit describes it. The audit expects that the event is delivered."""

    event_id: str
    contact_id: str
    version: int
    position: int  # the place of the event among the events of its commit

    @property
    def order(self) -> tuple[int, int]:
        """Return the place of the event among the events of its contact: the contact's version, and the place in the commit."""
        return self.version, self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """
    The result of an audit: the ids of the events that were not delivered as promised, and how long the delivery took.

    `lost` has the events that were not received. `duplicated` has the id of a message for each copy after the first. `out_of_order` has
    the events whose first copy came after a later event of the same contact. `unknown` has the messages whose event was never committed.
    """

    committed: int
    delivered: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    out_of_order: tuple[str, ...]
    unknown: tuple[str, ...]
    p50_ms: float | None
    p99_ms: float | None
    # The time from the commit until the broker had accepted the message. `p50_ms` and `p99_ms` also include the time until it was received.
    topic_p50_ms: float | None
    topic_p99_ms: float | None

    @property
    def passed(self) -> bool:
        """Return whether every event arrived exactly once and in order, and no other message arrived."""
        return not (self.lost or self.duplicated or self.out_of_order or self.unknown)


def audit(committed: Sequence[CommittedEvent], received: Sequence[Received]) -> Audit:
    """Compare the committed events with the received messages, which the caller passes in the order of receipt. Return the result."""
    events = {event.event_id: event for event in committed}
    first_copies: dict[str, Received] = {}
    duplicated: list[str] = []
    for message in received:
        if message.message_id in first_copies:
            duplicated.append(message.message_id)
        else:
            first_copies[message.message_id] = message

    newest: dict[str, tuple[int, int]] = {}
    out_of_order: list[str] = []
    for event in (events[message_id] for message_id in first_copies if message_id in events):
        if event.order < newest.get(event.contact_id, event.order):
            out_of_order.append(event.event_id)
        else:
            newest[event.contact_id] = event.order

    known = [copy for copy in first_copies.values() if copy.message_id in events]
    to_receive = _since_creation(known, [copy.received_ns / 1e6 for copy in known])
    to_topic = _since_creation(known, [_milliseconds(copy.enqueued_at) for copy in known])
    # If two commits returned the same event id, the topic drops one of the two messages as a duplicate. Count that event as lost.
    again = Counter(event.event_id for event in committed) - Counter(events.keys())
    return Audit(
        committed=len(committed),
        delivered=sum(event_id in first_copies for event_id in events),
        lost=(*(event_id for event_id in events if event_id not in first_copies), *again.elements()),
        duplicated=tuple(duplicated),
        out_of_order=tuple(out_of_order),
        unknown=tuple(message_id for message_id in first_copies if message_id not in events),
        p50_ms=_percentile(to_receive, 0.50),
        p99_ms=_percentile(to_receive, 0.99),
        topic_p50_ms=_percentile(to_topic, 0.50),
        topic_p99_ms=_percentile(to_topic, 0.99),
    )


def _since_creation(messages: Sequence[Received], moments: Sequence[float | None]) -> list[float]:
    # Measure from the event's `createdAt`, which the committing process sets just before the commit. So the times include the duration of
    # the commit. Other starting points are worse: `_ts` has whole seconds only, and the time of the response does not say when Cosmos DB
    # committed. All processes run on one machine, so their clocks agree.
    creations = [_milliseconds(message.created_at) for message in messages]
    return sorted(
        moment - created
        for created, moment in zip(creations, moments, strict=True)
        if created is not None and moment is not None
    )


def _milliseconds(moment: str | None) -> float | None:
    return datetime.fromisoformat(moment).timestamp() * 1e3 if moment else None


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    # Use the nearest-rank method, so that the result is always one of the measured times.
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1) if ordered else None
