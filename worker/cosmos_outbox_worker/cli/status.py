"""
Status: what waits, what is parked, and of an outbox the leases, as the stores show them; workers and consumers are not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import typer

from cosmos_outbox.adapters.servicebus.administration import messages_counted
from cosmos_outbox.changefeed import Lag
from cosmos_outbox.changefeed.leases import START, readable, token_of
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.ports import Listing
from cosmos_outbox_worker.cli.leases import in_order
from cosmos_outbox_worker.cli.output import NO_LEASES, NothingMatches, Table, answer, table_of, text_of
from cosmos_outbox_worker.cli.parked_key_owner import OfConsumer
from cosmos_outbox_worker.cli.running import AsJson, Expiration, command_each, opened, opened_consumer
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.shared_health import ParkedSeen, parked_seen, readable_time
from cosmos_outbox_worker.worker_health import troubles

_COLUMNS = ("range", "owner", "state", "start", "waiting", "oldest_age", "written_ago")
_FACTS = (*_COLUMNS, "continuation", "id", "standstill", "error")


# An outbox or a consumer at one moment: as programs read it, as people do, and what is wrong with it: leases and parked keys that cannot
# be read, ranges that do not answer, and leases that stand still or ahead of their ranges.
_Status = tuple[Mapping[str, Any], Sequence[Table | str], Sequence[str]]


@command_each
async def status(
    *, expiration: Expiration = 60, consumer: OfConsumer = None, as_json: AsJson = False
) -> None:
    """
    Show leases, owners, and what waits; with --consumer, what waits for it and what it parked.

    Exit code 4 if a lease or a parked key is damaged, a range does not answer, or a lease stands still or ahead of its range;
    the others are shown.
    """
    if consumer is None:
        async with opened() as outbox:
            facts, shown, errors = await _status_of(outbox, timedelta(seconds=expiration))
    else:
        facts, shown, errors = await _status_of_consumer(consumer)
    answer({**facts, "errors": list(errors)}, *shown, *errors, as_json=as_json)
    if errors:
        raise typer.Exit(ExitCode.WRONG)


async def _status_of(outbox: Connection, expiration: timedelta) -> _Status:
    listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    processor, lag = outbox.settings.processor_name, await outbox.lag(expiration)
    if not listing.documents and (known := await outbox.others()):
        raise NothingMatches(f"No processor {processor!r} has leases; these have: {', '.join(known)}.")
    parked: ParkedSeen | None = None
    unlisted: tuple[str, ...] = ()
    try:
        parked = parked_seen(await (await outbox.parked_keys()).list()) if outbox.parked else None
    except ConfigurationError as error:  # the rest is known
        unlisted = (str(error),)
    rows = _rows(listing, lag)
    workers = sorted({row["owner"] for row in rows if row["state"] == "owned"})
    heartbeats = [(one, one.state(owns=one.worker in workers)) for one in await outbox.fleet.heartbeats()]
    unaged = "unknown" if lag.transactions else "none"
    oldest = unaged if lag.oldest_age is None else lag.oldest_age
    shown = [{name: row[name] for name in _COLUMNS} | {"start": readable_time(row["start"])} for row in rows]
    facts = {
        "processor": processor,
        "workers": workers,
        "heartbeats": [
            {"worker": one.worker, "state": state, "silent_seconds": one.silent_for}
            | {"unready": list(one.unready), "errors": list(one.errors), "version": one.version}
            for one, state in heartbeats
        ],
        "waiting": lag.transactions,
        "oldest_age_seconds": lag.oldest_age,
        **_of_parked(parked, "events"),
        "leases": rows,
    }
    others = [
        f"Worker {one.worker}: {state}, seen {text_of(one.silent_for)} ago. {' '.join(one.unready)}"
        for one, state in heartbeats
        if state != Phase.RUNNING
    ]
    figures = {"workers": len(workers), "waiting": lag.transactions, "oldest unsent": oldest}
    table = table_of(shown, empty=NO_LEASES)
    errors = (*unlisted, *troubles(lag, parked))
    return facts, (_head(processor, figures, parked, "events"), table, *others), errors


def _rows(listing: Listing, lag: Lag) -> list[dict[str, Any]]:
    """Return a row for each lease of a listing; the estimator says which of them are held, and what waits."""
    leases, damaged = readable(listing.documents)
    measured = {one.lease: one for one in lag.leases}
    rows = []
    for lease in leases:
        seen = measured.get(lease.id)
        owner, unowned = seen and seen.owner, "expired" if lease.owned else "free"
        row: dict[str, Any] = {
            "range": lease.token,
            "owner": owner or lease.owner,
            "state": "owned" if owner else unowned,
            "continuation": lease.continuation,
            "start": lease.properties.get(START),
            "written_ago": max(timedelta(0), listing.read_at - lease.written_at()),
            "id": lease.id,
            "standstill": seen and seen.standstill,
            "error": None,
            "waiting": seen.transactions if seen and seen.unseen is None else None,
            "oldest_age": seen and seen.oldest_age,
        }
        rows.append(row)
    for document in listing.documents:
        if error := damaged.get(name := str(document["id"])):
            known = {"range": token_of(name), "owner": document.get("Owner"), "state": "damaged"}
            rows.append(dict.fromkeys(_FACTS) | known | {"id": name, "error": str(error)})
    return sorted(rows, key=lambda row: in_order(row["range"]))


async def _status_of_consumer(named: str) -> _Status:
    parked: ParkedSeen | None = None
    async with opened_consumer(named) as (outbox, settings, consumer):
        if outbox.parked is not None:
            scope = Scope(processor=consumer.name, container=settings.source)
            parked = parked_seen(await ParkedKeys(await outbox.parked_store(), scope=scope).list())
        source = settings.topic, settings.subscription
        waiting, dead_lettered = await messages_counted(*source, **outbox.namespace)
    facts = {
        "consumer": consumer.name,
        "source": settings.source,
        "waiting": waiting,
        "dead_lettered": dead_lettered,
        **_of_parked(parked, "messages"),
    }
    figures = {"waiting": waiting, "dead-lettered": dead_lettered}
    head = _head(f"{consumer.name} of {settings.source}", figures, parked, "messages")
    return facts, (head,), tuple(map(str, parked.unreadable.values())) if parked else ()


def _of_parked(parked: ParkedSeen | None, held: str) -> dict[str, Any]:
    return {"parked_keys": parked and parked.count, f"parked_{held}": parked and parked.events}


def _head(name: str, figures: Mapping[str, object], parked: ParkedSeen | None, held: str) -> str:
    """Return a line of figures; of what is parked only where a container of parked keys is set."""
    if parked is not None:
        figures = {**figures, "parked keys": parked.count, f"parked {held}": parked.events}
    said = (f"{what} {'unknown' if it is None else text_of(it)}" for what, it in figures.items())
    return f"{name}: {', '.join(said)}"
