"""
`cosmos-outbox parked`: show parked partition keys, and send or drop the events that they hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos_outbox.cli.output import confirm, counted, print_json, print_rows, readable_time
from cosmos_outbox.cli.running import FAILED, AsJson, Yes, command, opened
from cosmos_outbox.errors import KeyNotParked, UsageError
from cosmos_outbox.parking.documents import BY_HAND, ParkedEvent, ParkedKey, Unreadable

app = typer.Typer(
    help="Partition keys that are parked because one of their events cannot be sent.", no_args_is_help=True
)

Key = Annotated[str, typer.Argument(help="The partition key, as the list shows it.")]
_SHOWN_CHARACTERS = 500
_NAMES = ("id", "action")  # consumers, routes and filters identify an event by them
_EVENT_COLUMNS = ("event", "action", "status", "parked_at", "closed_at", "note", "data", "original")
_COLUMNS = ("key", "state", "held", "parked_at", "event", "error", "attempts")


@app.command("list")
@command
async def list_(*, as_json: AsJson = False) -> None:
    """
    Show all parked keys, oldest first. Exit code 1 if one cannot be read; it is shown last.
    """
    async with opened() as outbox:
        keys = await (await outbox.parked_keys()).list()
    rows = [_key_row(key) for key in keys]
    shown = rows if as_json else [_shown(row) for row in rows]
    print_rows(shown, empty="No key is parked.", as_json=as_json)
    if any(isinstance(key, Unreadable) for key in keys):
        raise typer.Exit(FAILED)


@app.command()
@command
async def show(key: Key, *, as_json: AsJson = False) -> None:
    """
    Show a parked key, the events it holds, and the records of those that were dropped or sent edited.

    The records of a key that was released are shown as well. Exit code 1 if an event cannot be read; it is shown last.
    """
    events: Sequence[ParkedEvent | Unreadable]
    async with opened() as outbox:
        key, keys = await outbox.key_named(key), await outbox.parked_keys()
        try:
            parked = await keys.show(key)
            row, events = _key_row(parked.key), (*parked.held, *parked.records, *parked.unreadable)
        except KeyNotParked:
            events = await keys.records(key)
            if not events:
                raise
            row = {**dict.fromkeys(_COLUMNS), "key": key, "state": "released", "held": 0}
    rows = [_event_row(event) for event in events]
    if as_json:
        print_json({**row, "events": rows})
    else:
        print_rows([_shown(row)], empty="")
        print_rows([_shown_event(event) for event in rows], empty="It holds no event.")
    if any(isinstance(event, Unreadable) for event in events):
        raise typer.Exit(FAILED)


@app.command()
@command
async def release(
    key: Key,
    *,
    edited: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File with the JSON object to send as the first held event's data.",
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Send what a key holds, in order, and hand the key back to the workers. Exit code 1 if it stays parked.

    If another release of the key still runs, it stops, and this one goes on in its place.
    """
    data = None if edited is None else _object(edited)
    async with AsyncExitStack() as stack:
        outbox = await stack.enter_async_context(opened())
        key, keys = await outbox.key_named(key), await outbox.parked_keys()
        parked = await keys.find(key)
        first = None if data is None else await keys.first_held(key)
        if data is not None and first is not None:
            _require_named(data, first)
        confirm(f"Send the {counted(parked.held, 'held event')} of {key!r}?", yes=yes)
        bus = await stack.enter_async_context(outbox.service_bus())
        publisher = await stack.enter_async_context(outbox.publisher(bus, lanes=1))
        released = await (await outbox.parked_keys(publisher=publisher)).release(
            key, edited=data, event_id=first.event_id if first else ""
        )
    failure = released.failure
    if as_json:
        print_json({"key": key, "sent": released.sent, "failure": asdict(failure) if failure else None})
    elif failure is None:
        typer.echo(f"{counted(released.sent, 'event')} sent; the workers send the events of {key!r} again.")
    else:
        typer.echo(
            f"{counted(released.sent, 'event')} sent; {key!r} stays parked, for event {failure.event_id!r} was refused: "
            f"{failure.error}"
        )
    if failure is not None:
        raise typer.Exit(FAILED)


@app.command()
@command
async def park(
    key: Key,
    *,
    reason: Annotated[str, typer.Option(help="Why the key is parked; shown in the list.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Park a key by hand: the workers hold its events, in order, until it is released.

    They poll every 15 seconds; events that they send before are sent. This also helps if a worker is stalled by one key and
    has not parked it by itself.
    """
    async with opened() as outbox:
        key, keys = await outbox.key_named(key), await outbox.parked_keys()
        confirm(f"Hold all further events of {key!r}?", yes=yes)
        parked = await keys.park(key, reason=reason)
    if as_json:
        print_json(_key_row(parked))
    elif parked.failure is not None and parked.failure.reason == BY_HAND:
        typer.echo(f"{key!r} is parked; the workers hold its events within 15 seconds.")
    else:
        typer.echo(f"{key!r} was parked already, with {counted(parked.held, 'held event')}.")


@app.command()
@command
async def drop(
    key: Key,
    event: Annotated[str, typer.Argument(help="The id of a held event.")],
    *,
    reason: Annotated[str, typer.Option(help="Why the event is given up; kept with it.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Give one held event up for good; it stays in the parked store as a record. The key stays parked.
    """
    async with opened() as outbox:
        key, keys = await outbox.key_named(key), await outbox.parked_keys()
        confirm(f"Never send event {event!r} of {key!r}?", yes=yes)
        await keys.drop(key, event, reason=reason)
    if as_json:
        print_json({"key": key, "event": event, "dropped": True})
    else:
        typer.echo(f"Event {event!r} is dropped. Release {key!r} to send what it still holds.")


def _key_row(key: ParkedKey | Unreadable) -> dict[str, Any]:
    if isinstance(key, Unreadable):
        row = {"key": key.partition_key, "state": "unreadable", "error": str(key.error)}
        return {**dict.fromkeys(_COLUMNS), **row}
    failure = key.failure
    return {
        "key": key.partition_key,
        "state": key.state.value,
        "held": key.held,
        "parked_at": key.parked_at,
        "event": failure.event_id if failure else None,
        "error": failure.error if failure else None,
        "attempts": failure.attempts if failure else None,
    }


def _event_row(event: ParkedEvent | Unreadable) -> dict[str, Any]:
    if isinstance(event, Unreadable):
        row = {
            "event": event.document_id.removeprefix("event."),
            "status": "unreadable",
            "note": str(event.error),
        }
        return {**dict.fromkeys(_EVENT_COLUMNS), **row}
    return {
        "event": event.event_id,
        "action": event.data.get("action"),
        "status": event.status.value,
        "parked_at": event.parked_at,
        "closed_at": event.closed_at,
        "note": event.note,
        "data": event.event.get("data"),  # null if the event was too large to be copied
        "original": event.original,
    }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "parked_at": readable_time(row["parked_at"])}


def _shown_event(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: value for name, value in row.items() if name != "original"}
    return {**_shown(columns), "closed_at": readable_time(row["closed_at"]), "data": _shortened(row["data"])}


def _shortened(data: object) -> str:
    # Most events that are parked are too large.
    text = json.dumps(data, ensure_ascii=False)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters; --json has all)"


def _require_named(data: Mapping[str, Any], event: ParkedEvent) -> None:
    """
    Refuse a payload without the names that the committed one has; events of other programs may have none.
    """
    committed = event.original or event.data
    missing = [name for name in _NAMES if committed.get(name) and not data.get(name)]
    if missing:
        names = " and ".join(f"`{name}` ({committed[name]!r})" for name in missing)
        raise UsageError(
            f"The payload lacks {names} of event {event.event_id!r}; name all of `data`, as `parked show --json` has it."
        )


def _object(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{file} does not hold a JSON object.")
    return data
