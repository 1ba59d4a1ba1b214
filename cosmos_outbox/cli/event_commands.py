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
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cosmos_outbox.cli.events import Position, Wanted, read_events, sent_up_to
from cosmos_outbox.cli.leases import leases_in, start_named
from cosmos_outbox.cli.output import clock_time, confirm, counted, print_json
from cosmos_outbox.cli.replay import Replayed, replay, sending_to
from cosmos_outbox.cli.running import FAILED, LONGEST_SECONDS, AsJson, DryRun, Yes, command
from cosmos_outbox.cli.sending import opened_publisher
from cosmos_outbox.cli.target import Opened, Target, opened, target_of
from cosmos_outbox.documents import StoredEvent
from cosmos_outbox.errors import UsageError
from cosmos_outbox.instrumentation import EventRejected
from cosmos_outbox.leases import Lease
from cosmos_outbox.ports import Document, ParkedStore, StartFrom
from cosmos_outbox.relay import ParkedKeys

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
    async with opened(target_of(os.environ)) as outbox:
        async for found in read_events(
            outbox.feed,
            start=start_named(since),
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
    events of their key: consumers have to be able to take that. What the workers have not sent yet, and the keys that
    are parked, are left to them. Where OUTBOX_PARKED_CONTAINER is set, dropped events are left out, and one that was
    released with an edited payload is sent with that. Exit code 1 where the topic refuses events; the others are sent.
    """
    target = target_of(os.environ)
    start = start_named(since)
    asked = {"since": since, "key": key, "action": action}
    position = _saved(state, asked)
    async with opened(target) as outbox:
        listing = await outbox.leases.list(f"{await outbox.prefix()}..")
        leases = leases_in(listing)
        if start is StartFrom.NOW or (isinstance(start, datetime) and start > listing.read_at):
            raise UsageError(
                f"No event was written after --since {since} yet; name an earlier time, or beginning."
            )
        store = await outbox.parked_store() if outbox.parked else None
        parked = await ParkedKeys(store).list() if store else ()
        wanted = Wanted(
            partition_key=key, action=action, without=frozenset(one.partition_key for one in parked)
        )
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
                if state is not None and at is not None and not dry_run:
                    _save(state, {"asked": asked, "position": dict(at)})

            done(0, position or {})  # a file that cannot be written has to fail before anything is sent
            replayed = await _replayed(
                outbox,
                target,
                store,
                wanted=wanted,
                start=start,
                position=position,
                leases=leases,
                rate=rate,
                dry_run=dry_run,
                done=done,
            )
    if state is not None and not dry_run:
        state.unlink(missing_ok=True)
    refused = [
        {"key": one.partition_key, "event": one.event_id, "error": str(one.error)} for one in replayed.refused
    ]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "events": replayed.sent,
                "left_out": replayed.left_out,
                "refused": refused,
                "resumed": bool(position),
            }
        )
    else:
        sys.stdout.write(f"{counted(replayed.sent, 'event')} {'would be sent' if dry_run else 'sent'}.\n")
        if replayed.left_out:
            sys.stdout.write(f"{replayed.left_out} left out: they were dropped, or are held.\n")
        for one in refused:
            sys.stdout.write(f"Refused: event {one['event']!r} of {one['key']!r}: {one['error']}\n")
    if refused:
        raise typer.Exit(FAILED)


async def _replayed(
    outbox: Opened,
    target: Target,
    parked: ParkedStore | None,
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


def _saved(state: Path | None, asked: dict[str, str | None]) -> Position | None:
    """
    Return the position that an interrupted replay came to, or None where there was none.
    """
    if state is None:
        return None
    saved = None
    try:
        saved = json.loads(state.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        pass  # as any other file that is none
    match saved:
        case {"asked": dict(before), "position": dict(position)} if all(
            isinstance(continuation, str | None) for continuation in position.values()
        ):
            if before != asked:
                raise UsageError(
                    f"{state} belongs to another replay: {before}. Repeat that one, or delete the file."
                )
            return position
    raise UsageError(f"{state} is no state of a replay; name another file.")


def _save(state: Path, content: dict[str, Any]) -> None:
    # Replaced as a whole: an interruption must not leave half of it.
    written = state.with_name(f"{state.name}.new")
    written.write_text(json.dumps(content))
    written.replace(state)


def _line(event: StoredEvent) -> str:
    written = clock_time(datetime.fromtimestamp(event.written_at, UTC))
    return f"{written}  {event.partition_key}  {event.action}  {event.id}  {json.dumps(event.data, ensure_ascii=False)}\n"
