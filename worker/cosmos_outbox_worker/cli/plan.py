"""
The command `cosmos-outbox plan`: show which resources a load needs, and which limits it exceeds, before anything is deployed.
`capacity.py` computes them.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from datetime import timedelta
from typing import Annotated

import typer
from pydantic_core import to_json

from cosmos_outbox.errors import UsageError
from cosmos_outbox.stored_documents import SET_BY_THE_SERVICE
from cosmos_outbox_worker.cli.capacity import NEEDS, number, plan_capacity
from cosmos_outbox_worker.cli.output import answer, table_of
from cosmos_outbox_worker.cli.replay import read_events
from cosmos_outbox_worker.cli.running import AsJson, OfContainer, choose_containers, command_without, connect
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.settings import CONTAINER

_Number = float | None
_PRICES = "TOML file with your prices; adds the cost of a month."
_MEASURE = "Measure what no option gives, from the workers and the events of this many seconds."


@command_without
async def plan(
    *,
    events: Annotated[_Number, typer.Option(help="Events in a second. Needed without --measure.")] = None,
    event_bytes: Annotated[_Number, typer.Option(help="JSON bytes of an event. Default: 1,024.")] = None,
    entity_bytes: Annotated[
        _Number, typer.Option(help="JSON bytes of the entity in the same commit. Default: 1,024.")
    ] = None,
    keys: Annotated[_Number, typer.Option(help="Partition keys that have events. Default: 1,000.")] = None,
    subscriptions: Annotated[_Number, typer.Option(help="Subscriptions of the topic. Default: 1.")] = None,
    filters: Annotated[
        _Number, typer.Option(help="Filters of all subscriptions together. Default: one per subscription.")
    ] = None,
    outage_hours: Annotated[
        _Number, typer.Option(help="Hours for which workers, broker or consumers may be down. Default: 8.")
    ] = None,
    stalled_seconds: Annotated[
        _Number, typer.Option(envvar="OUTBOX_STALLED_SECONDS", help="OUTBOX_STALLED_SECONDS. Default: 60.")
    ] = None,
    premium: Annotated[bool, typer.Option("--premium", help="The namespace is of the tier Premium.")] = False,
    prices: Annotated[typer.FileBinaryRead | None, typer.Option(metavar="FILE", help=_PRICES)] = None,
    measure: Annotated[int | None, typer.Option(min=1, max=3_600, help=_MEASURE)] = None,
    of_container: OfContainer = None,
    as_json: AsJson = False,
) -> None:
    """
    Say what a load needs: partitions, request units, workers, tier, time to live, storage, metric series. Each figure has its formula.

    Opens no connection unless --measure asks for it. Exit code 1, with warnings first, if the load exceeds a limit.
    """
    measured: dict[str, float] = {}
    if measure is not None:
        CONTAINER.set(*choose_containers(of_container, each=False))
        async with connect() as outbox:
            measured = await _measure_load(outbox, measure)
    load = {"events": events, "event_bytes": event_bytes, "entity_bytes": entity_bytes, "keys": keys}
    load |= {"subscriptions": subscriptions, "filters": subscriptions if filters is None else filters}
    load |= {"outage_hours": outage_hours, "stalled_seconds": stalled_seconds}
    given = {name: value for name, value in load.items() if value is not None}
    try:
        paid = None if prices is None else tomllib.load(prices)
    except ValueError as error:
        raise UsageError(f"{prices and prices.name} is not valid TOML: {error}.") from error
    figures, warnings = plan_capacity(given, measured=measured, premium=premium, prices=paid)
    rows = {name: {"figure": name} | one | {"value": number(one["value"])} for name, one in figures.items()}
    needs = [rows.pop(name) for name in NEEDS if name in rows]
    answer(
        {"warnings": warnings, "figures": figures},
        *warnings,
        table_of(needs, title="What it needs"),
        table_of([*rows.values()], title="How that comes about"),
        as_json=as_json,
    )
    if warnings:
        raise typer.Exit(ExitCode.WARNED)


async def _measure_load(outbox: Connection, seconds: int) -> dict[str, float]:
    """
    Measure the load of the last seconds from the events in the change feed, and count the partitions and workers that exist.

    Raises:
        UsageError: no event was written in this time.
    """
    now = (await outbox.leases.list(f"{await outbox.prefix()}..")).read_at
    ranges, keys, size = await outbox.feed.physical_ranges(), Counter[str](), 0
    for one in ranges:
        async for page in read_events(outbox.feed, start=now - timedelta(seconds=seconds), ranges=[one]):
            for document, event in zip(page.documents, page.events, strict=True):
                if document["_ts"] <= now.timestamp():
                    keys[event.partition_key] += 1
                    own = {name: value for name, value in document.items() if name not in SET_BY_THE_SERVICE}
                    size += len(to_json(own))
            if page.documents and page.documents[-1]["_ts"] > now.timestamp():
                break  # a busy range gets changes all the time, so reading to its end would never finish
    if not (count := keys.total()):
        raise UsageError(
            f"No event was written in the last {seconds} s: measure a longer time, or give --events."
        )
    workers = sum(not one.silent for one in await outbox.fleet.heartbeats())
    found = {"events": count / seconds, "event_bytes": size / count, "keys": len(keys)}
    found["busiest_key"] = max(keys.values()) / count
    return found | {"partitions_now": len(ranges), "workers_now": max(workers, 1)}
