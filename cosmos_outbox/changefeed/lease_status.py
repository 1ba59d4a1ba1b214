"""Lease status: how far the work on one lease is, and whether it is stalled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

_LONG_SECONDS = 60.0
_MOST_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """
    A snapshot of the work on one lease that a worker owns, or fails to work on, for health checks and status pages.

    stalled: nothing moved for longer than the caller's limit, because the handler or the service fails or hangs; or nothing
        will move before an operator acts.
    """

    lease: str
    token: str
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
    halted: nothing moves before an operator acts.
    rest: seconds from `moved_at` until the feed is polled again, where nothing is known to wait.
    """

    moved_at: float
    rest: float = 0.0
    lag: int | None = None
    failed_attempts: int = 0
    error: BaseException | None = None
    halted: bool = False

    def moved(self, now: float, *, lag: int | None, rest: float = 0.0) -> None:
        self.moved_at, self.rest, self.lag, self.failed_attempts, self.error = now, rest, lag, 0, None

    def failed(self, error: BaseException) -> None:
        self.failed_attempts += 1
        self.error = error

    def halt(self, error: BaseException) -> None:
        self.error, self.halted = error, True

    def standstill(self, now: float) -> str | None:
        """
        Return why nothing moves: attempts have failed for half a minute, or a page is at hand for a whole one; else None.

        The next renewal, within a minute, writes it into the lease, for programs that only see the leases.
        """
        idle = now - self.moved_at - self.rest
        if not self.halted and idle <= (_LONG_SECONDS if self.error is None else _LONG_SECONDS / 2):
            return None
        reason = "A page is not done yet." if self.error is None else str(self.error)
        said = f"No progress for {max(idle, 0.0):.0f} s, {self.failed_attempts} attempts failed: {reason}"
        return said[:_MOST_CHARACTERS]

    def stalled(self, now: float, limit: timedelta) -> bool:
        """
        Return whether nothing moved for so long; an idle range moves with every empty page and may rest after it.
        """
        return self.halted or now - self.moved_at - self.rest > limit.total_seconds()
