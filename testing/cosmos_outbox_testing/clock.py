"""Clock: the time of a test, which passes on command."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

from cosmos_outbox.domain.events import fixed

__all__ = ["NOON", "Clock", "fixed"]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    """
    A clock that stands still, or that of the system, plus the time by which a test has moved it.

    Args:
        at: where it stands. Defaults to the system's clock, which goes on by itself.
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
        """Return the next id: a UUID that ends in 1, in 2, and so on."""
        return f"00000000-0000-4000-8000-{next(self._ids):012}"

    def advance(self, by: timedelta | float) -> None:
        """Move the clock by a time, or by seconds."""
        self._moved += by if isinstance(by, timedelta) else timedelta(seconds=by)
