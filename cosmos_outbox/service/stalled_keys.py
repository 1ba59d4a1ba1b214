"""
Stalled keys: a message has waited for too long, because of an error that the message did not cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from cosmos_outbox.errors import said
from cosmos_outbox.records import ConsumingDelayed, MessageSettled, Record

_MOST = 1000
_LATE_SECONDS = 30.0  # how late a delivery may come
_REMEMBERED_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledKey:
    """
    A key whose message waits, and with it all later ones.

    waited_seconds: since this process had to delay it first.
    """

    key: str
    message_id: str
    waited_seconds: float
    error: str


@dataclass(slots=True)
class _Wait:
    key: str
    since: float
    due: float  # when it is delivered again
    error: BaseException

    def is_old(self, now: float) -> bool:
        return now - self.due > _REMEMBERED_SECONDS


class StalledKeys:
    """
    Hears which messages are delayed, and which are settled; knows at most a thousand.

    Between two deliveries the session of a key may go to another process, which then reports it: here, one that is not
    delivered in its time is reported no more, and forgotten after a quarter of an hour. Should it come back before, it has
    waited since this process delayed it first.
    """

    def __init__(self, after: timedelta) -> None:
        self._after = after.total_seconds()
        self._waits: dict[str, _Wait] = {}  # by message; a session delivers only its first one

    def hear(self, record: Record, now: float) -> None:
        """
        Note that a message waits, or waits no longer.
        """
        if isinstance(record, MessageSettled) and record.outcome != "retry":
            self._waits.pop(record.message_id, None)
        elif isinstance(record, ConsumingDelayed):
            known = self._waits.pop(record.message_id, None)
            since = now if known is None or known.is_old(now) else known.since
            if len(self._waits) == _MOST:
                self._waits = {name: one for name, one in self._waits.items() if not one.is_old(now)}
            if len(self._waits) < _MOST:
                due = now + record.delay_seconds
                self._waits[record.message_id] = _Wait(record.key, since, due, record.error)

    def at(self, now: float) -> tuple[StalledKey, ...]:
        """
        Return those that have waited for too long, the longest first.
        """
        stalled = [
            StalledKey(key=one.key, message_id=name, waited_seconds=now - one.since, error=said(one.error))
            for name, one in self._waits.items()
            if now - one.since > self._after and now - one.due <= _LATE_SECONDS
        ]
        return tuple(sorted(stalled, key=lambda one: -one.waited_seconds))
