"""`cosmos-outbox replay`: send events again."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.errors import UsageError
from cosmos_outbox.ports import StartFrom
from cosmos_outbox_worker.cli.leases import leases_in, refuse_future, start_given
from cosmos_outbox_worker.cli.output import answer, confirm, counted
from cosmos_outbox_worker.cli.replaying import Replayed, Send, read_events, replay, sending_to, sent_up_to
from cosmos_outbox_worker.cli.running import FAILED, AsJson, DryRun, Yes, command, opened
from cosmos_outbox_worker.connection import Connection

Key = Annotated[str | None, typer.Option("--key", help="Only this partition key.")]
Action = Annotated[str | None, typer.Option(help="Only events of this action.")]


@command
async def replay_command(
    *,
    since: Annotated[str, typer.Option(help="beginning, or a time such as 2026-11-21T08:00:00Z.")],
    key: Key = None,
    action: Action = None,
    rate: Annotated[float | None, typer.Option(min=0.1, max=1e6, help="Most events a second.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Send events again that are still in the container, with the same message ids, in order per partition key.

    The topic drops those whose ids it still remembers (its duplicate detection window). The others arrive after newer
    events of their key: consumers have to accept that. Events that the workers have not sent yet are left to them. If
    OUTBOX_PARKED_CONTAINER is set, events that were dropped or are held are left out, and one that was released with an
    edited payload is sent with that. Exit code 2 if the topic refuses events; the others are sent.
    """
    start = start_given(since)
    async with AsyncExitStack() as stack:
        outbox = await stack.enter_async_context(opened())
        named = key and await outbox.key_named(key)
        up_to = sent_up_to(await _leases_to_replay(outbox, start))
        parked = await outbox.parked_keys() if outbox.parked else None
        send: Send | None = None  # a dry run
        if not dry_run:
            bus = await stack.enter_async_context(outbox.service_bus())
            confirm(f"Send the events since {since} to topic {outbox.settings.topic!r} again?", yes=yes)
            publisher = await stack.enter_async_context(outbox.publisher(bus, lanes=1))
            send = sending_to(publisher, (await outbox.feed.describe()).key_paths)
        columns = SpinnerColumn(), TextColumn("{task.completed} events"), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("replay", total=None)
            replayed = await replay(
                read_events(
                    outbox.feed,
                    start=start,
                    wanted=lambda one: named in (None, one.partition_key) and action in (None, one.action),
                    up_to=up_to,
                ),
                send,
                parked=parked,
                per_second=None if dry_run else rate,
                progress=lambda sent: bar.update(task, completed=sent),
            )
    _print_replayed(replayed, dry_run=dry_run, as_json=as_json)
    if replayed.refused:
        raise typer.Exit(FAILED)


async def _leases_to_replay(outbox: Connection, start: StartFrom | datetime) -> tuple[Lease, ...]:
    """
    Return the leases, which say what is sent already.

    Raises:
        UsageError: there are none, or no event can have been written since the start.
    """
    listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    refuse_future(start, listing.read_at)
    if start is StartFrom.NOW:
        raise UsageError("No event was written since 'now' yet; name a time, or 'beginning'.")
    if leases := leases_in(listing):
        return leases
    raise UsageError(
        f"Processor {outbox.settings.processor_name!r} has no leases, so it is not known what its workers have sent. Set "
        "OUTBOX_PROCESSOR_NAME to the workers' value."
    )


def _print_replayed(replayed: Replayed, *, dry_run: bool, as_json: bool) -> None:
    refused = [
        {"key": one.partition_key, "event": one.event_id, "error": str(one.error)} for one in replayed.refused
    ]
    facts: dict[str, Any] = {"dry_run": dry_run, "events": replayed.sent, "left_out": replayed.left_out}
    facts |= {"left_to_workers": replayed.left_to_workers, "refused": refused}
    lines = [f"{counted(replayed.sent, 'event')} {'would be sent' if dry_run else 'sent'}."]
    if replayed.left_out:
        lines.append(f"{replayed.left_out} left out: they were dropped, or are held.")
    if replayed.left_to_workers:
        lines.append("The workers are behind: what they have not sent yet is left to them.")
    lines += [f"Refused: event {one['event']!r} of {one['key']!r}: {one['error']}" for one in refused]
    answer(facts, *lines, as_json=as_json)
