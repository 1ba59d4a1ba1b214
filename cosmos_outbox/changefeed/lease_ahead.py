"""
Lease ahead: detect that a lease's position lies beyond the newest change of its range, as after a restore, a failover
that lost data, or a wrong edit.

A position is the LSN up to which all changes were handled. If the newest LSN of the range is lower, the next commits
get LSNs that count as handled, and the worker would skip them unnoticed. A replica that lags can look the same for a
moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cosmos_outbox.changefeed.read_ahead import lsn_of
from cosmos_outbox.errors import ConfigurationError

# Two properties of a lease. The value of each is the lowest number that an owner saw as the newest LSN of the
# range. AHEAD: the lease's position lies beyond that LSN, and the owner waits for an operator. BEHIND: the
# owner does not know yet whether that is so, or whether it only read from a replica that lags.
AHEAD, BEHIND = "positionAhead", "rangeBehind"
# If a position is beyond the newest LSN, a lagging replica may be the reason. After this time, an alarm is raised.
_LAGS_FOR_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Regression:
    """
    The observation that the newest LSN of a range is below the position of its lease.

    lowest: the lowest value that was seen as the newest LSN of the range.
    since: when this was first seen, on the event loop's clock.
    """

    lowest: int
    since: float

    def may_be_a_lagging_replica(self, now: float) -> bool:
        return now - self.since <= _LAGS_FOR_SECONDS


def position_at(lsn: int) -> str:
    return f'"{lsn}"'


def behind_in(properties: Mapping[str, str], position: str | None) -> int | None:
    """
    Return the lowest LSN that an earlier owner saw as the newest LSN of the range. Return None if it saw none, or if
    this LSN is not below the lease's position.

    If an operator has set the position to an earlier one since then, the worker goes on there, and the LSN must not
    move the position forward.
    """
    lowest, reached = lsn_of(properties.get(BEHIND)), lsn_of(position)
    return lowest if lowest is not None and reached is not None and reached > lowest else None


def ahead_of(lease: str, position: str | None, lowest: int | None) -> ConfigurationError:
    """Return the error for a lease whose position is beyond the newest change of its range. Its text says what to do."""
    newest = "lower" if lowest is None else f"only {lowest}"
    return ConfigurationError(
        f"Lease {lease} stands at {position}, but the newest change of its range was {newest}, as after a "
        f"restore or a failover: the worker would skip changes up to {position}. Stop the workers, reset the "
        "leases to a time before the restore, and start them."
    )
