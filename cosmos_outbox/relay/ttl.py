"""
TTL guard: Cosmos DB deletes an event when its time to live ends, sent or not, so what waits too long must be told of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from cosmos_outbox.correlation import inside_trace
from cosmos_outbox.documents import StoredEvent, stored_event
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import ChangeBatch, ChangeHandler
from cosmos_outbox.records import EventAgeing, EventExpiring, EventTtlShort, Hook, guarded, log_hook

DEFAULT_TOLERATED_OUTAGE = timedelta(days=2)
WARN_AT, ALARM_AT = 0.5, 0.8  # of an event's time to live
_TOLD_AGAIN_SECONDS = 60.0

_Told = type[EventAgeing] | type[EventExpiring]
_SHARES: tuple[tuple[float, _Told], ...] = ((WARN_AT, EventAgeing), (ALARM_AT, EventExpiring))


def require_ttls(ttls: Mapping[str, timedelta], *, tolerated_outage: timedelta) -> None:
    """
    Refuse events that would be deleted during an outage that is to be survived.

    Args:
        ttls: the time to live of each kind of event, by a name the message can use.

    Raises:
        ConfigurationError: names each that is too short, and the fix.
    """
    short = [f"{name} ({ttl})" for name, ttl in sorted(ttls.items()) if ttl < tolerated_outage]
    if short:
        raise ConfigurationError(
            f"An outage of {tolerated_outage} is to be survived, but events live shorter: {', '.join(short)}. "
            "Raise their time to live, or lower the tolerated outage."
        )


class TtlGuard:
    """
    A handler around another one: tells of events that wait for too large a share of their time to live.

    Half of it spent is a warning, 80 % an alarm, each told again every minute while it lasts. Age is counted from the
    service's `_ts`. What an event that is not read yet has spent, nobody knows; but it is younger than those before it.

    Args:
        handler: what sends the events; returning means that all of the batch is sent.
        tolerated_outage: events that live shorter are told of, once for each action. Defaults to 2 days.
        notify: hears of it. Defaults to logging.
        now: the wall clock, in seconds since 1970.
    """

    def __init__(
        self,
        handler: ChangeHandler,
        *,
        tolerated_outage: timedelta = DEFAULT_TOLERATED_OUTAGE,
        notify: Hook = log_hook,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._handler, self._notify, self._now = handler, guarded(notify), now
        self._tolerated_seconds = tolerated_outage.total_seconds()
        self._oldest: dict[str, int] = {}
        self._short: set[str] = set()
        self._told_at: dict[tuple[str, _Told], float] = {}

    async def __call__(self, batch: ChangeBatch) -> None:
        """
        Hand the batch on, and watch its events until that returns.
        """
        events = [event for event in map(stored_event, batch.documents) if event is not None]
        mortal = [event for event in events if event.ttl is not None and event.ttl > 0]
        self._look_for_short_ones(mortal)
        if events:
            self._oldest[batch.lease] = min(event.written_at for event in events)
        try:
            with self._watched(batch.lease, mortal):
                await self._handler(batch)
        finally:
            self._oldest.pop(batch.lease, None)

    def oldest_unsent_seconds(self) -> Mapping[str, float]:
        """
        Return, for each lease that has a page at hand, how long ago its oldest event was written.
        """
        now = self._now()
        return {lease: max(0.0, now - written_at) for lease, written_at in self._oldest.items()}

    def _look_for_short_ones(self, events: Sequence[StoredEvent]) -> None:
        for event in events:
            ttl = event.ttl or 0
            if ttl < self._tolerated_seconds and event.action not in self._short:
                self._short.add(event.action)
                self._notify(
                    EventTtlShort(
                        action=event.action,
                        ttl_seconds=ttl,
                        tolerated_outage_seconds=self._tolerated_seconds,
                    )
                )

    @contextmanager
    def _watched(self, lease: str, events: Sequence[StoredEvent]) -> Iterator[None]:
        if not events:
            yield
            return
        loop = asyncio.get_running_loop()
        timers: dict[_Told, asyncio.TimerHandle] = {}

        def wait_for(kind: _Told, event: StoredEvent, delay: float) -> None:
            timers[kind] = loop.call_later(delay, tell, kind, event)

        def tell(kind: _Told, event: StoredEvent) -> None:
            self._tell(kind, lease, event)
            wait_for(kind, event, _TOLD_AGAIN_SECONDS)

        for share, kind in _SHARES:
            soonest = min(events, key=lambda event: _reaches(event, share))
            left = _reaches(soonest, share) - self._now()
            if left > 0:
                wait_for(kind, soonest, left)
            else:
                tell(kind, soonest)
        try:
            yield
        finally:
            for timer in timers.values():
                timer.cancel()

    def _tell(self, kind: _Told, lease: str, event: StoredEvent) -> None:
        # After an outage page after page is old; one line a minute and lease says as much as a hundred.
        now = asyncio.get_running_loop().time()
        told_at = self._told_at.get((lease, kind))
        if told_at is not None and now - told_at < _TOLD_AGAIN_SECONDS:
            return
        self._told_at[lease, kind] = now
        record = kind(
            lease=lease,
            event_id=event.id,
            partition_key=event.partition_key,
            age_seconds=round(self._now() - event.written_at, 1),
            ttl_seconds=event.ttl or 0,
        )
        with inside_trace(event.meta):
            self._notify(record)


def _reaches(event: StoredEvent, share: float) -> float:
    return event.written_at + share * (event.ttl or 0)
