"""
`cosmos-outbox parked`: show parked partition keys, and send or drop the events that they hold; with --consumer, messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos_outbox.cli.holders import Holder, OfConsumer, opened_holder
from cosmos_outbox.cli.output import confirm, counted, print_json, print_rows, readable_time
from cosmos_outbox.cli.running import FAILED, AsJson, Yes, command
from cosmos_outbox.errors import KeyNotParked, UsageError
from cosmos_outbox.parking.documents import BY_HAND, EventStatus, ParkedEvent, ParkedKey, Unreadable

app = typer.Typer(
    help="Partition keys that are parked because an event of theirs cannot be sent, or a message not be handled.",
    no_args_is_help=True,
)

Key = Annotated[str, typer.Argument(help="The partition key, as the list shows it.")]
_SHOWN_CHARACTERS = 500
_NAMES = ("id", "action")  # consumers, routes and filters identify an event by them


@app.command("list")
@command
async def list_(*, consumer: OfConsumer = None, as_json: AsJson = False) -> None:
    """
    Show all parked keys, oldest first. Exit code 2 if one cannot be read; it is shown last.
    """
    async with opened_holder(consumer) as holder:
        keys = await (await holder.keys()).list()
    rows = [_key_row(key, holder) for key in keys]
    if as_json:
        print_json({"keys": rows})
    else:
        print_rows([_shown(row) for row in rows], empty="No key is parked.")
    if any(isinstance(key, Unreadable) for key in keys):
        raise typer.Exit(FAILED)


@app.command()
@command
async def show(key: Key, *, consumer: OfConsumer = None, as_json: AsJson = False) -> None:
    """
    Show a parked key, the events it holds, and the records of those that were dropped or sent edited.

    The records of a key that was released are shown as well. Exit code 2 if an event cannot be read; it is shown last.
    """
    events: Sequence[ParkedEvent | Unreadable]
    async with opened_holder(consumer) as holder:
        key, keys = await holder.key_named(key), await holder.keys()
        try:
            parked = await keys.show(key)
            row, events = _key_row(parked.key, holder), (*parked.held, *parked.records, *parked.unreadable)
        except KeyNotParked:
            events = await keys.records(key)
            if not events:
                raise
            row = _key_columns(holder) | {"key": key, "state": "released", "held": 0}
    noun = holder.words.noun
    rows = [_event_row(event, holder) for event in events]
    if as_json:
        print_json({**row, f"{noun}s": rows})
    else:
        print_rows([_shown(row)], empty="")
        print_rows([_shown_event(event) for event in rows], empty=f"It holds no {noun}.")
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
            help="File with the JSON object to take as the data of the first held event, or the body of the first message.",
        ),
    ] = None,
    consumer: OfConsumer = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Send what a key holds, in order, and hand the key back to the workers. Exit code 2 if it stays parked.

    With --consumer the consumer's handlers take the messages in this process, once each, and its other processes go on then. If another release of the key still runs, it stops, and this one goes on in its place.
    """
    data = None if edited is None else _object(edited)
    async with opened_holder(consumer) as holder:
        key, keys = await holder.key_named(key), await holder.keys()
        words = holder.words
        parked = await keys.find(key)
        first = None if data is None else await keys.first_held(key)
        if data is not None and first is not None:
            _require_named(data, first, words.noun)
        held = counted(parked.held, f"held {words.noun}")
        confirm(f"{words.does.capitalize()} the {held} of {key!r}?", yes=yes)
        async with holder.releasing() as releasing:
            released = await releasing.release(key, edited=data, event_id=first.event_id if first else "")
    failure = released.failure
    if as_json:
        print_json({"key": key, words.done: released.sent, "failure": asdict(failure) if failure else None})
        if failure is not None:
            raise typer.Exit(FAILED)
        return
    done = f"{counted(released.sent, words.noun)} {words.done}"
    if failure is None:
        typer.echo(f"{done}; the {words.who} {words.does} the {words.noun}s of {key!r} again.")
        return
    typer.echo(
        f"{done}; {key!r} stays parked, because {words.noun} {failure.event_id!r} {words.failed}: {holder.error(failure)}"
    )
    raise typer.Exit(FAILED)


@app.command()
@command
async def park(
    key: Key,
    *,
    reason: Annotated[str, typer.Option(help="Why the key is parked; shown in the list.")],
    consumer: OfConsumer = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Park a key by hand: the workers hold its events, in order, until it is released.

    They poll every 15 seconds; events that they send before are sent. This also helps if a worker is stalled by one key and
    has not parked it by itself. With --consumer its processes hold the messages from when they next open the key's session.
    """
    async with opened_holder(consumer) as holder:
        words = holder.words
        key, keys = await holder.key_named(key), await holder.keys()
        confirm(f"Hold all further {words.noun}s of {key!r}?", yes=yes)
        parked = await keys.park(key, reason=reason)
    if as_json:
        print_json(_key_row(parked, holder))
    elif parked.failure is not None and parked.failure.reason == BY_HAND:
        typer.echo(f"{key!r} is parked; the {words.who} hold its {words.noun}s {words.held_from}.")
    else:
        typer.echo(f"{key!r} was parked already, with {counted(parked.held, f'held {words.noun}')}.")


@app.command()
@command
async def drop(
    key: Key,
    event: Annotated[str, typer.Argument(help="The id of a held event or message.")],
    *,
    reason: Annotated[str, typer.Option(help="Why it is given up; kept with it.")],
    consumer: OfConsumer = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Give one held event, or message, up for good; it stays in the parked store as a record. The key stays parked.
    """
    async with opened_holder(consumer) as holder:
        words = holder.words
        key, keys = await holder.key_named(key), await holder.keys()
        confirm(f"Never {words.does} {words.noun} {event!r} of {key!r}?", yes=yes)
        await keys.drop(key, event, reason=reason)
    if as_json:
        print_json({"key": key, words.noun: event, "dropped": True})
    else:
        named = words.noun.capitalize()
        typer.echo(f"{named} {event!r} is dropped. Release {key!r} to {words.does} what it still holds.")


def _key_columns(holder: Holder) -> dict[str, Any]:
    names = ("key", "state", "held", "parked_at", holder.words.noun, "error", "attempts")
    return dict.fromkeys(names)


def _key_row(key: ParkedKey | Unreadable, holder: Holder) -> dict[str, Any]:
    row = _key_columns(holder)
    if isinstance(key, Unreadable):
        return row | {"key": key.partition_key, "state": "unreadable", "error": str(key.error)}
    failure = key.failure
    row |= {"key": key.partition_key, "state": key.state.value, "held": key.held, "parked_at": key.parked_at}
    if failure is None:
        return row
    return row | {
        holder.words.noun: failure.event_id,
        "error": holder.error(failure),
        "attempts": failure.attempts,
    }


def _event_row(event: ParkedEvent | Unreadable, holder: Holder) -> dict[str, Any]:
    noun = holder.words.noun
    about = "action" if noun == "event" else "subject"
    names = (noun, about, "status", "parked_at", "closed_at", "note", "data", "original")
    row = dict.fromkeys(names)
    if isinstance(event, Unreadable):
        return row | {
            noun: event.document_id.removeprefix("event."),
            "status": "unreadable",
            "note": str(event.error),
        }
    subject, data = holder.content(event)
    return row | {
        noun: event.event_id,
        about: subject,
        "status": holder.words.done if event.status is EventStatus.SENT else event.status.value,
        "parked_at": event.parked_at,
        "closed_at": event.closed_at,
        "note": event.note,
        "data": data,
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


def _require_named(data: Mapping[str, Any], event: ParkedEvent, noun: str) -> None:
    """
    Refuse a payload without the names that the committed one has; events of other programs may have none.
    """
    committed = event.original or event.data
    missing = [name for name in _NAMES if committed.get(name) and not data.get(name)]
    if missing:
        names = " and ".join(f"`{name}` ({committed[name]!r})" for name in missing)
        raise UsageError(
            f"The payload lacks {names} of {noun} {event.event_id!r}; name all of `data`, as `parked show --json` has it."
        )


def _object(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{file} does not hold a JSON object.")
    return data
