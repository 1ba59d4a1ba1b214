"""
The verdict: what commits returned against what was received, or took effect.

Nothing of the relay's own counting comes in. Which event came in which version of which entity is taken from what the commits returned, so
a message with wrong properties cannot make its own order look right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class Received(Protocol):
    """One delivery of a message; times as ISO 8601, and the wall clock as nanoseconds since 1970."""

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
    """An event that a successful response of the API named."""

    event_id: str
    contact_id: str
    version: int
    position: int  # the place inside the commit

    @property
    def order(self) -> tuple[int, int]:
        """Return the event's place among the events of its contact."""
        return self.version, self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """
    The ids of events that failed, by the kind of failure, and how long delivery took.

    `duplicated` names every further copy, `out_of_order` every event whose first copy came after a later event of
    its contact, `unknown` every message that no response of the API accounts for.
    """

    committed: int
    delivered: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    out_of_order: tuple[str, ...]
    unknown: tuple[str, ...]
    p50_ms: float | None
    p99_ms: float | None
    # until the broker had accepted the event: the relay's share of the times above
    topic_p50_ms: float | None
    topic_p99_ms: float | None

    @property
    def passed(self) -> bool:
        """Say whether every event arrived exactly once, in order, and nothing else did."""
        return not (self.lost or self.duplicated or self.out_of_order or self.unknown)


def audit(committed: Sequence[CommittedEvent], received: Sequence[Received]) -> Audit:
    """Compare the committed events with the received ones; `received` is in the order of receipt."""
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
    # If two responses named the same id, it can be delivered only once: the other event is lost.
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
    # The start is the event's own createdAt, set in the API's process just before its commit. So the duration of the commit is
    # included, and the figure is rather too high. `_ts` has whole seconds only, and the time when a response reached the driver does
    # not say when the service had committed. All processes here share one clock.
    creations = [_milliseconds(message.created_at) for message in messages]
    return sorted(
        moment - created
        for created, moment in zip(creations, moments, strict=True)
        if created is not None and moment is not None
    )


def _milliseconds(moment: str | None) -> float | None:
    return datetime.fromisoformat(moment).timestamp() * 1e3 if moment else None


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    # Nearest rank: the result is always a latency that was measured.
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1) if ordered else None
