"""Clock: a clock for tests, which a test can move forward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

from cosmos_outbox.domain.events import fixed

__all__ = ["NOON", "Clock", "fixed"]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    """
    A clock that a test can move forward. It either stands still until the test moves it, or runs like the system's clock.

    Args:
        at: the time at which the clock stands still. Defaults to none: the clock runs like the system's clock.
    """

    def __init__(self, at: datetime | None = None) -> None:
        self._at, self._moved = at, timedelta(0)
        self._ids = count(1)

    def now(self) -> datetime:
        """Return the time in UTC."""
        return (self._at or datetime.now(UTC)) + self._moved

    def time(self) -> float:
        """Return the seconds since 1970."""
        return self.now().timestamp()

    def new_id(self) -> str:
        """Return a new id. The ids are UUIDs that end in 1, 2, 3 and so on, so that a test knows them in advance."""
        return f"00000000-0000-4000-8000-{next(self._ids):012}"

    def advance(self, by: timedelta | float) -> None:
        """Move the clock forward by a timedelta, or by a number of seconds."""
        self._moved += by if isinstance(by, timedelta) else timedelta(seconds=by)
