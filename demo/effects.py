"""
Compare the committed events with what a consumer, such as the company directory, stored for them in its container.

Every handler of the directory records one event, whose `causationId` is the id of the message that it handled. So the events in the
consumer's container tell which messages took effect, how often, and in which order.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from azure.cosmos.aio import ContainerProxy

from cosmos_outbox_testing.verify.audit import CommittedEvent

_WATCH_SECONDS = 0.25
_EVENTS = "FROM c WHERE c.type = 'domainEvent'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """
    The ids of events whose effects are wrong, by the kind of mistake.

    `lost` has the events that took no effect. `doubled` has an entry for every further effect of an event. `out_of_order` has the events
    that took effect after a later event of the same entity. `unknown` has the ids of events that took effect but were never committed.
    """

    effects: int = 0
    lost: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    out_of_order: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether every committed event took effect exactly once and in order, and no other event took effect."""
        return not (self.lost or self.doubled or self.out_of_order or self.unknown)


def effects_of(committed: Sequence[CommittedEvent], recorded: Sequence[Mapping[str, Any]]) -> Effects:
    """Compare the committed events with the events that a consumer's handlers recorded for them in its container."""
    events = {event.event_id: event for event in committed}
    by_entity: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for document in recorded:
        meta = document["meta"]
        by_entity[meta["entityId"]].append(
            (meta["entityVersion"], meta["sequence"], str(meta.get("causationId")))
        )
    times = Counter(cause for effects in by_entity.values() for _, _, cause in effects)
    out_of_order = []
    for effects in by_entity.values():
        newest: dict[str, tuple[int, int]] = {}
        for event in (events[cause] for _, _, cause in sorted(effects) if cause in events):
            if event.order < newest.get(event.contact_id, event.order):
                out_of_order.append(event.event_id)
            newest[event.contact_id] = max(event.order, newest.get(event.contact_id, event.order))
    return Effects(
        effects=sum(event_id in times for event_id in events),
        lost=tuple(event_id for event_id in events if event_id not in times),
        doubled=tuple((times - Counter(times.keys())).elements()),
        out_of_order=tuple(out_of_order),
        unknown=tuple(cause for cause in times if cause not in events),
    )


async def counted_up_to(wanted: int, count: Callable[[], Awaitable[int]], *, stalled_seconds: float) -> int:
    """
    Call `count` until it returns the wanted number, or the same number for `stalled_seconds`. Return the last number.
    """
    counted, deadline = -1, 0.0
    while counted < wanted:
        found = await count()
        if found > counted:
            counted, deadline = found, time.monotonic() + stalled_seconds
        elif time.monotonic() > deadline:
            break
        await asyncio.sleep(_WATCH_SECONDS)
    return counted


async def count_effects(container: ContainerProxy) -> int:
    """Return how many events the handlers of a consumer have recorded in its container."""
    counts: list[Any] = [one async for one in container.query_items(f"SELECT VALUE COUNT(1) {_EVENTS}")]
    return int(sum(counts))


async def recorded_in(container: ContainerProxy) -> list[dict[str, Any]]:
    """Return the events that the handlers of a consumer have recorded in its container."""
    return [document async for document in container.query_items(f"SELECT * {_EVENTS}")]
