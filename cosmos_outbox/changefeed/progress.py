"""
Progress: how far the work on one lease is, and whether it stands still although there is something to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """
    A snapshot of the work on one lease that a worker owns, or fails to work on, for health checks and status pages.

    stalled is True where nothing moved for longer than the caller's limit: the handler or the service fails, or hangs; and
    at once where nothing will move before an operator acts.
    """

    lease: str
    token: str
    continuation: str | None
    lag: int | None
    idle_seconds: float
    failed_attempts: int
    error: str | None
    draining: bool
    stalled: bool


@dataclass(slots=True, kw_only=True)
class Progress:
    """
    What the pump knows of its range; times are on the loop's clock, in seconds.

    lag: changes (transactions) known to wait; 0 at the end of the feed, None before the first and between changes far apart.
    moved_at: when a page was last read empty or handled.
    halted: whether it will not move before an operator acts.
    rest: seconds from then until the feed is looked at again, where nothing is known to wait.
    """

    moved_at: float
    rest: float = 0.0
    lag: int | None = None
    failed_attempts: int = 0
    error: BaseException | None = None
    halted: bool = False

    def moved(self, now: float, *, lag: int | None, rest: float = 0.0) -> None:
        """
        Note that everything known up to here is done.
        """
        self.moved_at, self.rest, self.lag, self.failed_attempts, self.error = now, rest, lag, 0, None

    def failed(self, error: BaseException) -> None:
        """
        Note that an attempt to read or handle failed.
        """
        self.failed_attempts += 1
        self.error = error

    def halt(self, error: BaseException) -> None:
        """
        Note that nothing will move before an operator acts.
        """
        self.error, self.halted = error, True

    def stands_still(self, now: float, limit: timedelta) -> bool:
        """
        Say whether nothing moved for so long; an idle range moves with every empty page and may rest after it.
        """
        return self.halted or now - self.moved_at - self.rest > limit.total_seconds()
