"""
The command `cosmos-outbox status`: show leases, waiting changes and parked keys from Cosmos DB and Service Bus, without asking workers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import typer

from cosmos_outbox.adapters.servicebus.administration import messages_counted
from cosmos_outbox.changefeed import Lag
from cosmos_outbox.changefeed.leases import START, readable, token_of
from cosmos_outbox.errors import ConfigurationError, error_line
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.ports import Listing
from cosmos_outbox_worker.causes import Cause, cause_of, merge_causes, of_fleet, of_leases, of_workers
from cosmos_outbox_worker.cli.leases import in_order, require_leases
from cosmos_outbox_worker.cli.output import NO_LEASES, Table, answer, table_of, text_of
from cosmos_outbox_worker.cli.parked_key_owner import OfConsumer
from cosmos_outbox_worker.cli.running import AsJson, Expiration, command_each, connect, open_consumer
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.fleet_differences import sentences
from cosmos_outbox_worker.heartbeats import Phase
from cosmos_outbox_worker.readable_times import readable_time
from cosmos_outbox_worker.shared_health import ParkedSummary, summarize_parked

_COLUMNS = ("range", "owner", "state", "start", "waiting", "oldest_age", "written_ago")
_FACTS = (*_COLUMNS, "continuation", "id", "standstill", "error")


# The state of an outbox or a consumer: facts for JSON output, tables and texts for people, and the causes that stop work.
_Status = tuple[Mapping[str, Any], Sequence[Table | str], Sequence[Cause]]


@command_each
async def status(
    *, expiration: Expiration = 60, consumer: OfConsumer = None, as_json: AsJson = False
) -> None:
    """
    Show leases, owners, and what waits. With --consumer, show what waits for the consumer and what it parked.

    Causes come first, with their remedies. Exit code 4 if something fails or makes no progress, but not if
    keys are parked or changes are late.
    """
    if consumer is None:
        async with connect() as outbox:
            facts, shown, causes = await _status_of(outbox, timedelta(seconds=expiration))
    else:
        facts, shown, causes = await _status_of_consumer(consumer)
    errors = [str(one) for one in causes if one.stands or not one.words["waits"]]
    facts = {**facts, "causes": [one.facts() for one in causes], "errors": errors}
    answer(facts, *(f"{one} {one.advice}" for one in causes), *shown, as_json=as_json)
    if errors:
        raise typer.Exit(ExitCode.WRONG)


async def _status_of(outbox: Connection, expiration: timedelta) -> _Status:
    await require_leases(outbox)
    listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    processor, lag = outbox.settings.processor_name, await outbox.lag(expiration)
    fleet, now = await outbox.fleet.heartbeats(), listing.read_at
    found, parked = [*of_workers(now, fleet, lag), *of_leases(now, lag), *of_fleet(sentences(fleet))], None
    try:
        parked = summarize_parked(await (await outbox.parked_keys()).list()) if outbox.parked else None
        found += parked.find_causes() if parked else ()
    except ConfigurationError as error:  # report this as a cause, and still show the leases
        found.append(cause_of(error_line(error)))
    causes = merge_causes(found)
    rows = _rows(listing, lag, {what for one in causes if one.stands for _, what in one.stops})
    workers = sorted({row["owner"] for row in rows if row["state"] in ("owned", "stands still")})
    heartbeats = [(one, one.state(owns=one.worker in workers)) for one in fleet]
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
        f"Worker {one.worker}: {state}, seen {text_of(one.silent_for)} ago."
        for one, state in heartbeats
        if state != Phase.RUNNING
    ]
    figures = {"workers": len(workers), "waiting": lag.transactions, "oldest unsent": oldest}
    table = table_of(shown, empty=NO_LEASES)
    return facts, (_head(processor, figures, parked, "events"), table, *others), causes


def _rows(listing: Listing, lag: Lag, still: Collection[str]) -> list[dict[str, Any]]:
    """
    Return a row for each lease.

    Args:
        listing: the lease documents.
        lag: which leases have an owner, and how much waits in each range.
        still: the ranges that make no progress.
    """
    leases, damaged = readable(listing.documents)
    measured = {one.lease: one for one in lag.leases}
    rows = []
    for lease in leases:
        seen = measured.get(lease.id)
        owner, unowned = seen and seen.owner, "expired" if lease.owned else "free"
        owned = "stands still" if f"range {lease.token}" in still else "owned"
        row: dict[str, Any] = {
            "range": lease.token,
            "owner": owner or lease.owner,
            "state": owned if owner else unowned,
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
    parked: ParkedSummary | None = None
    async with open_consumer(named) as (outbox, settings, consumer):
        if outbox.parked is not None:
            scope = Scope(processor=consumer.name, container=settings.source)
            parked = summarize_parked(await ParkedKeys(await outbox.parked_store(), scope=scope).list())
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
    return facts, (head,), merge_causes(parked.find_causes()) if parked else ()


def _of_parked(parked: ParkedSummary | None, held: str) -> dict[str, Any]:
    return {"parked_keys": parked and parked.count, f"parked_{held}": parked and parked.events}


def _head(name: str, figures: Mapping[str, object], parked: ParkedSummary | None, held: str) -> str:
    """
    Return the first line of the output: a name, the figures, and the number of parked keys. The parked keys are left out if
    OUTBOX_PARKED_CONTAINER is not set.
    """
    if parked is not None:
        figures = {**figures, "parked keys": parked.count, f"parked {held}": parked.events}
    said = (f"{what} {'unknown' if it is None else text_of(it)}" for what, it in figures.items())
    return f"{name}: {', '.join(said)}"
