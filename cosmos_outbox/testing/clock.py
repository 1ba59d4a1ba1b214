"""
Clock: the time of a test, which passes on command.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """
    A clock that stands still, or the system's, and how far a test has moved it.

    Args:
        at: where it stands. Defaults to the system's clock, which goes on by itself.
    """

    def __init__(self, at: datetime | None = None) -> None:
        self._at, self._moved = at, timedelta(0)

    def now(self) -> datetime:
        """
        Return the time in UTC.
        """
        return (self._at or datetime.now(UTC)) + self._moved

    def time(self) -> float:
        """
        Return the seconds since 1970.
        """
        return self.now().timestamp()

    def advance(self, by: timedelta | float) -> None:
        """
        Move the clock by a time, or by seconds.
        """
        self._moved += by if isinstance(by, timedelta) else timedelta(seconds=by)
