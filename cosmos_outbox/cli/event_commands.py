"""
`cosmos-outbox events tail` and `cosmos-outbox replay`: watch events as they are committed, and send them again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cosmos_outbox.changefeed.leases import Lease
from cosmos_outbox.cli.bookmark import Bookmark
from cosmos_outbox.cli.events import Position, Wanted, read_events, sent_up_to
from cosmos_outbox.cli.leases import leases_in, require_come, start_named
from cosmos_outbox.cli.output import clock_time, confirm, counted, print_json
from cosmos_outbox.cli.replay import Replayed, replay, sending_to
from cosmos_outbox.cli.running import FAILED, LONGEST_SECONDS, AsJson, DryRun, Yes, command
from cosmos_outbox.cli.sending import opened_publisher
from cosmos_outbox.cli.target import Opened, Target, opened, target_of
from cosmos_outbox.documents import StoredEvent
from cosmos_outbox.errors import UsageError
from cosmos_outbox.parking import ParkedKeys
from cosmos_outbox.ports import Document, StartFrom
from cosmos_outbox.records import EventRejected

events = typer.Typer(help="Events as they are stored in the container.", no_args_is_help=True)

Key = Annotated[str | None, typer.Option("--key", help="Only this partition key.")]
Action = Annotated[str | None, typer.Option(help="Only events of this action.")]


@events.command()
@command
async def tail(
    *,
    since: Annotated[str, typer.Option(help="beginning, now, or a time.")] = "now",
    key: Key = None,
    action: Action = None,
    follow: Annotated[bool, typer.Option(help="Go on with those to come.")] = True,
    poll_seconds: Annotated[
        float,
        typer.Option(min=0.05, max=LONGEST_SECONDS, help="Between two looks at what is new."),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """
    Print events as they are committed; one line each, with --json a JSON object each.
    """
    start = start_named(since)
    require_come(start, datetime.now(UTC))
    async with opened(target_of(os.environ)) as outbox:
        async for found in read_events(
            outbox.feed,
            start=start,
            wanted=Wanted(partition_key=key, action=action),
            follow=poll_seconds if follow else None,
        ):
            for event in found.events:
                if as_json:
                    print_json(asdict(event))
                else:
                    sys.stdout.write(_line(event))
                    sys.stdout.flush()


@command
async def replay_command(
    *,
    since: Annotated[str, typer.Option(help="beginning, or a time such as 2026-11-21T08:00:00Z.")],
    key: Key = None,
    action: Action = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e6, help="At most so many events a second."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Keeps the position, so that the same command goes on after an interruption."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Send events again that are still in the container, with the same message ids, in order per partition key.

    The topic drops those whose ids it still remembers (its duplicate detection window). The others arrive behind newer
    events of their key: consumers have to be able to take that. What the workers have not sent yet is left to them.
    Where OUTBOX_PARKED_CONTAINER is set, events that were dropped or are held are left out, and one that was released
    with an edited payload is sent with that. Exit code 1 where the topic refuses events; the others are sent.
    """
    target = target_of(os.environ)
    start = start_named(since)
    async with opened(target) as outbox:
        leases = await _leases_to_replay(outbox, start)
        asked = {"since": since, "key": key, "action": action, **await _ends(outbox)}
        bookmark = None if state is None else Bookmark(file=state, asked=asked)
        position = bookmark.position() if bookmark else None
        parked = await outbox.parked_keys() if outbox.parked else None
        if not dry_run:
            confirm(f"Send the events since {since} to topic {target.topic!r} again?", yes=yes)
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.completed} events"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        ) as bar:
            task = bar.add_task("replay", total=None)

            def done(sent: int, at: Position | None) -> None:
                bar.update(task, completed=sent)
                if bookmark and at is not None and not dry_run:
                    bookmark.keep(at)

            done(0, position or {})  # a file that cannot be written has to fail before anything is sent
            replayed = await _replayed(
                outbox,
                target,
                parked,
                wanted=Wanted(partition_key=key, action=action),
                start=start,
                position=position,
                leases=leases,
                rate=rate,
                dry_run=dry_run,
                done=done,
            )
    if bookmark and not dry_run:
        bookmark.remove()
    _tell(replayed, resumed=bool(position), dry_run=dry_run, as_json=as_json)
    if replayed.refused:
        raise typer.Exit(FAILED)


def _tell(replayed: Replayed, *, resumed: bool, dry_run: bool, as_json: bool) -> None:
    refused = [
        {"key": one.partition_key, "event": one.event_id, "error": str(one.error)} for one in replayed.refused
    ]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "events": replayed.sent,
                "left_out": replayed.left_out,
                "left_to_workers": replayed.left_to_workers,
                "refused": refused,
                "resumed": resumed,
            }
        )
        return
    lines = [f"{counted(replayed.sent, 'event')} {'would be sent' if dry_run else 'sent'}."]
    if replayed.left_out:
        lines.append(f"{replayed.left_out} left out: they were dropped, or are held.")
    if replayed.left_to_workers:
        lines.append("The workers are behind: what they have not sent yet is left to them.")
    lines += [f"Refused: event {one['event']!r} of {one['key']!r}: {one['error']}" for one in refused]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


async def _leases_to_replay(outbox: Opened, start: StartFrom | datetime) -> tuple[Lease, ...]:
    """
    Return the leases, which say what is sent already.

    Raises:
        UsageError: there are none, or nothing can have been written since the start.
    """
    listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    require_come(start, listing.read_at)
    if start is StartFrom.NOW:
        raise UsageError("No event was written since 'now' yet; name a time, or 'beginning'.")
    if leases := leases_in(listing):
        return leases
    raise UsageError(
        f"Processor {outbox.target.processor!r} has no leases, so nothing tells what its workers have sent. Set "
        "OUTBOX_PROCESSOR_NAME as they have it."
    )


async def _ends(outbox: Opened) -> dict[str, str | None]:
    # A position is one of this container and processor; and what was sent, was sent to these topics.
    target = outbox.target
    return {
        "outbox": await outbox.prefix(),
        "namespace": target.namespace,
        "topic": target.topic,
        "routes": target.routes,
    }


async def _replayed(
    outbox: Opened,
    target: Target,
    parked: ParkedKeys | None,
    *,
    wanted: Wanted,
    start: StartFrom | datetime,
    position: Position | None,
    leases: Sequence[Lease],
    rate: float | None,
    dry_run: bool,
    done: Callable[[int, Position | None], None],
) -> Replayed:
    pages = read_events(outbox.feed, start=start, wanted=wanted, position=position, up_to=sent_up_to(leases))
    if dry_run:

        async def nothing(documents: Sequence[Document]) -> Sequence[EventRejected]:
            return ()

        return await replay(pages, nothing, parked=parked, per_second=None, done=done)
    async with opened_publisher(target) as publisher:
        return await replay(pages, sending_to(publisher), parked=parked, per_second=rate, done=done)


def _line(event: StoredEvent) -> str:
    written = clock_time(datetime.fromtimestamp(event.written_at, UTC))
    return f"{written}  {event.partition_key}  {event.action}  {event.id}  {json.dumps(event.data, ensure_ascii=False)}\n"
