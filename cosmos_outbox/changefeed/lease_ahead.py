"""
Lease ahead: whether a lease lies ahead of the feed of its range, as after a restore, a failover that lost data, or a wrong edit.

A position is the LSN up to which everything is done. Where the newest LSN of the range is lower, what is committed next has
LSNs that count as done, and the worker would skip it unnoticed. A lagging replica can look the same for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cosmos_outbox.changefeed.read_ahead import lsn_of
from cosmos_outbox.errors import ConfigurationError

# Properties of a lease. Both hold the lowest LSN that an owner saw of the range. AHEAD: the lease is halted. BEHIND:
# this is undecided, because the owner may have read from a replica that lags.
AHEAD, BEHIND = "positionAhead", "rangeBehind"
_LAGS_FOR_SECONDS = 30.0  # a lagging replica may make a range look behind its lease for this long


@dataclass(frozen=True, slots=True)
class Regression:
    """A range whose newest LSN is below the lease's position: the lowest LSN that was seen, and since when."""

    lowest: int
    since: float

    def may_be_a_lagging_replica(self, now: float) -> bool:
        return now - self.since <= _LAGS_FOR_SECONDS


def position_at(lsn: int) -> str:
    return f'"{lsn}"'


def behind_in(properties: Mapping[str, str], position: str | None) -> int | None:
    """
    Return the lowest LSN that an earlier owner saw of a range that was behind; None if the lease's position is not
    above it.

    An operator that edited the position since has decided where to go on, and the mark must not move it forward.
    """
    lowest, reached = lsn_of(properties.get(BEHIND)), lsn_of(position)
    return lowest if lowest is not None and reached is not None and reached > lowest else None


def ahead_of(lease: str, position: str | None, lowest: int | None) -> ConfigurationError:
    """Return the message for a lease that lies ahead of its range: what is wrong, and how to mend it."""
    newest = "lower" if lowest is None else f"only {lowest}"
    return ConfigurationError(
        f"Lease {lease} stands at {position}, but the newest change of its range was {newest}, as after a "
        f"restore or a failover: the worker would skip changes up to {position}. Stop the workers, reset the "
        "leases to a time before the restore, and start them."
    )
