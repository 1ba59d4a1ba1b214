"""
Status: leases, owners and what waits, as one look at the stores tells it; no worker is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Group
from rich.text import Text

from cosmos_outbox.changefeed import Lag, estimate_lag
from cosmos_outbox.cli.leases import row_of, seen_in
from cosmos_outbox.cli.output import table_of
from cosmos_outbox.ports import ChangeFeed, LeaseStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """
    An outbox at one moment.

    parked_keys: None where there is no parked container, or it was not looked at.
    parked_events: None also where a parked key cannot be read.
    mistakes: what is wrong with leases and parked keys that cannot be read, with ranges that cannot be looked at, and with
        leases that lie ahead of theirs.
    """

    processor: str
    leases: tuple[Mapping[str, Any], ...]
    workers: tuple[str, ...]
    transactions: int
    oldest_age: timedelta | None
    parked_keys: int | None
    parked_events: int | None
    mistakes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """
        Return it as programs read it.
        """
        return {
            "processor": self.processor,
            "workers": list(self.workers),
            "waiting": self.transactions,
            "oldest_age_seconds": None if self.oldest_age is None else self.oldest_age.total_seconds(),
            "parked_keys": self.parked_keys,
            "parked_events": self.parked_events,
            "mistakes": list(self.mistakes),
            "leases": [dict(lease) for lease in self.leases],
        }

    def picture(self) -> Group:
        """
        Return it as people read it.
        """
        none = "unknown" if self.transactions else "none"
        age = none if self.oldest_age is None else f"{self.oldest_age.total_seconds():.0f} s"
        head = (
            f"{self.processor}: workers {len(self.workers)}, waiting {self.transactions}, oldest unsent {age}"
        )
        if self.parked_keys is not None:
            events = "unknown" if self.parked_events is None else self.parked_events
            head += f", parked keys {self.parked_keys}, parked events {events}"
        mistakes = [Text(mistake) for mistake in self.mistakes]
        if not self.leases:
            empty = "There are no leases yet; the first worker, or `bootstrap`, creates them."
            return Group(Text(head), Text(empty), *mistakes)
        shown = [
            {name: value for name, value in lease.items() if name not in ("id", "error")}
            for lease in self.leases
        ]
        return Group(Text(head), table_of(shown), *mistakes)


async def look(
    *,
    processor: str,
    prefix: str,
    feed: ChangeFeed,
    leases: LeaseStore,
    expiration: timedelta,
    parked: Sequence[int] | None = None,
    unreadable: Sequence[str] = (),
) -> Status:
    """
    Return how an outbox is.

    Args:
        processor: its name.
        prefix: of its leases.
        feed: of the container.
        leases: where they are.
        expiration: a lease not written for so long is free.
        parked: how many events each parked key holds, where that is known.
        unreadable: what is wrong with the parked keys that cannot be read.
    """
    listing = await leases.list(f"{prefix}..")
    found = seen_in(listing)
    lag = await estimate_lag(processor, feed=feed, leases=leases)
    rows = tuple(_with_lag(row_of(seen, listing.read_at, expiration), lag) for seen in found)
    return Status(
        processor=processor,
        leases=rows,
        workers=tuple(sorted({row["owner"] for row in rows if row["state"] == "owned"})),
        transactions=lag.transactions,
        oldest_age=lag.oldest_age,
        parked_keys=None if parked is None else len(parked) + len(unreadable),
        parked_events=None if parked is None or unreadable else sum(parked),
        mistakes=(
            *(seen.mistake for seen in found if seen.mistake),
            *(f"What waits for lease {name} is not known: {reason}" for name, reason in lag.unseen.items()),
            *lag.ahead.values(),
            *unreadable,
        ),
    )


def _with_lag(row: Mapping[str, Any], lag: Lag) -> dict[str, Any]:
    measured = next((one for one in lag.leases if one.lease == row["id"]), None)
    return {
        "range": row["range"],
        "owner": row["owner"],
        "state": row["state"],
        "waiting": measured.transactions if measured and measured.unseen is None else None,
        "oldest_age": measured.oldest_age if measured else None,
        "written_ago": row["written_ago"],
        "id": row["id"],
        "error": row["error"],
    }
