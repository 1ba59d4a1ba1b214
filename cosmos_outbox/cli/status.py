"""
Status: leases, owners and what waits, as the stores show them; workers are not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import typer
from rich.console import Group
from rich.text import Text

from cosmos_outbox.changefeed import estimate_lag
from cosmos_outbox.cli.consumer_status import ConsumerStatus, consumer_status_of
from cosmos_outbox.cli.holders import OfConsumer
from cosmos_outbox.cli.leases.actions import listed_in, row_of
from cosmos_outbox.cli.output import NO_LEASES, console, print_json, table_of
from cosmos_outbox.cli.running import FAILED, AsJson, Expiration, command, opened
from cosmos_outbox.service.connection import Connection, connected
from cosmos_outbox.service.consumer_settings import load_consumer
from cosmos_outbox.service.fleet import Heartbeat, Phase
from cosmos_outbox.service.health import ParkedSeen, parked_seen, troubles

_COLUMNS = ("range", "owner", "state", "waiting", "oldest_age", "written_ago")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """
    An outbox at one moment.

    heartbeats: of the workers, also of those that own no lease.
    parked: None without a parked container.
    errors: leases and parked keys that cannot be read, ranges that do not answer, and leases that stand still or ahead of
        their ranges.
    """

    processor: str
    leases: tuple[Mapping[str, Any], ...]
    heartbeats: tuple[Heartbeat, ...]
    transactions: int
    oldest_age: timedelta | None
    parked: ParkedSeen | None
    errors: tuple[str, ...]

    @property
    def workers(self) -> list[str]:
        """
        Return the names of the owners.
        """
        return sorted({lease["owner"] for lease in self.leases if lease["state"] == "owned"})

    def document(self) -> dict[str, Any]:
        """
        Return the status as programs read it.
        """
        return {
            "processor": self.processor,
            "workers": self.workers,
            "heartbeats": [
                {
                    "worker": one.worker,
                    "state": one.state(owns=one.worker in self.workers),
                    "silent_seconds": one.silent_for,
                    "unready": list(one.unready),
                    "errors": list(one.errors),
                }
                for one in self.heartbeats
            ],
            "waiting": self.transactions,
            "oldest_age_seconds": self.oldest_age,
            "parked_keys": self.parked and self.parked.count,
            "parked_events": self.parked and self.parked.events,
            "errors": list(self.errors),
            "leases": [dict(lease) for lease in self.leases],
        }

    def picture(self) -> Group:
        """
        Return the status as people read it.
        """
        none = "unknown" if self.transactions else "none"
        age = none if self.oldest_age is None else f"{self.oldest_age.total_seconds():.0f} s"
        head = (
            f"{self.processor}: workers {len(self.workers)}, waiting {self.transactions}, oldest unsent {age}"
        )
        if self.parked is not None:
            events = "unknown" if self.parked.events is None else self.parked.events
            head += f", parked keys {self.parked.count}, parked events {events}"
        rows = [{name: lease[name] for name in _COLUMNS} for lease in self.leases]
        others = [
            Text(
                f"Worker {one.worker}: {state}, seen {one.silent_for.total_seconds():.0f} s ago. {' '.join(one.unready)}"
            )
            for one in self.heartbeats
            if (state := one.state(owns=one.worker in self.workers)) != Phase.RUNNING
        ]
        table = table_of(rows) if rows else Text(NO_LEASES)
        return Group(Text(head), table, *others, *map(Text, self.errors))


@command
async def status(
    *,
    expiration: Expiration = 60,
    consumer: OfConsumer = None,
    as_json: AsJson = False,
) -> None:
    """
    Show leases, owners, and what waits; with --consumer, what waits for it and what it parked.

    Exit code 2 if a lease or a parked key is damaged, a range does not answer, or a lease stands still or ahead of its range;
    the others are shown.
    """
    settings = None if consumer is None else load_consumer(for_command=True)
    async with opened() if settings is None else connected(settings) as outbox:
        seen: Status | ConsumerStatus
        if consumer is not None and settings is not None:
            seen = await consumer_status_of(consumer, outbox, settings)
        else:
            seen = await _status_of(outbox, timedelta(seconds=expiration))
    if as_json:
        print_json(seen.document())
    else:
        console().print(seen.picture())
    if seen.errors:
        raise typer.Exit(FAILED)


async def _status_of(outbox: Connection, expiration: timedelta) -> Status:
    parked = parked_seen(await (await outbox.parked_keys()).list()) if outbox.parked else None
    processor = outbox.settings.processor_name
    listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    listed = listed_in(listing)
    lag = await estimate_lag(processor, feed=outbox.feed, leases=outbox.leases)
    measured = {one.lease: one for one in lag.leases}
    rows = []
    for one in listed:
        row, waiting = row_of(one, listing.read_at, expiration), measured.get(one.lease.id)
        row["waiting"] = waiting.transactions if waiting and waiting.unseen is None else None
        row["oldest_age"] = waiting.oldest_age if waiting else None
        rows.append({name: row[name] for name in (*_COLUMNS, "id", "standstill", "error")})
    return Status(
        processor=processor,
        leases=tuple(rows),
        heartbeats=await outbox.fleet.heartbeats(),
        transactions=lag.transactions,
        oldest_age=lag.oldest_age,
        parked=parked,
        errors=troubles(lag, parked),
    )
