"""
The commands `cosmos-outbox parked`: list parked partition keys, and release, drop or purge the events or messages that they hold.
The library's `parking/release.py` decides in which order a release sends them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos_outbox.errors import KeyNotParked, UsageError
from cosmos_outbox.parking.keys_by_cause import by_cause
from cosmos_outbox.parking.parked_documents import BY_HAND, EventStatus, ParkedEvent, ParkedKey, Unreadable
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox_worker.cli.many_parked_keys import Choice, Results, StillParked, for_each
from cosmos_outbox_worker.cli.output import NothingMatches, answer, confirm, number_text, table_of
from cosmos_outbox_worker.cli.parked_key_owner import KeyOwner, OfConsumer, open_owner, operator_of
from cosmos_outbox_worker.cli.running import AsJson, DryRun, Yes, command, command_each
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.readable_times import readable_time

app = typer.Typer(
    help="Partition keys that are parked because an event of theirs cannot be sent, or a message not be handled.",
    no_args_is_help=True,
)


def require(reason: str) -> str:
    """Check that the operator gave a reason, which is stored with the decision."""
    if not reason.strip():
        raise typer.BadParameter("The reason is empty. Say why in a few words.")
    return reason


Key = Annotated[str, typer.Argument(help="The partition key, as the list shows it.")]
OneKey = Annotated[str | None, typer.Argument(metavar="KEY", help="The partition key, as the list shows it.")]
Every = Annotated[bool, typer.Option("--all", help="All parked keys.")]
OfError = Annotated[
    str | None,
    typer.Option("--error", help="Keys whose error has this text; see `parked list --by-error`."),
]
OfFile = Annotated[
    Path | None, typer.Option("--file", exists=True, dir_okay=False, help="The keys in a file, one a line.")
]
Rate = Annotated[float | None, typer.Option(min=0.1, max=1e6, help="Limit of keys a second.")]
Operator = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="Your name in the records. Defaults to the identity of the credential, or this machine's user.",
    ),
]
_SHOWN_CHARACTERS = 500
_ONLY_IN_JSON = ("original", "decisions", "deliver_at")
_NAMES = ("id", "action")  # consumers, routes and filters identify an event by these fields of its payload


@app.command("list")
@command_each
async def list_(
    *,
    by_error: Annotated[bool, typer.Option("--by-error", help="Count the keys of each cause.")] = False,
    consumer: OfConsumer = None,
    as_json: AsJson = False,
) -> None:
    """Show all parked keys, oldest first. A key that cannot be read is shown last, and the exit code is 4."""
    async with open_owner(consumer) as owner:
        keys = await owner.keys.list()
    readable = [key for key in keys if isinstance(key, ParkedKey)]
    rows = [_key_row(key, owner) for key in keys]
    if by_error:
        rows = [asdict(cause) for cause in by_cause(readable)]
    shown = table_of([_row_for_people(row) for row in rows], empty="No key is parked.")
    answer({"errors" if by_error else "keys": rows}, shown, as_json=as_json)
    if len(readable) < len(keys):
        raise typer.Exit(ExitCode.WRONG)


@app.command()
@command
async def show(key: Key, *, consumer: OfConsumer = None, as_json: AsJson = False) -> None:
    """
    Show a parked key, the events it holds, and the records of events that were dropped or sent edited.

    The records of a released key are shown, too. If an event cannot be read, it comes last, and the exit code is 4.
    """
    events: Sequence[ParkedEvent | Unreadable]
    frames: tuple[str, ...] = ()
    async with open_owner(consumer) as owner:
        key, keys = await owner.key_named(key), owner.keys
        try:
            parked = await keys.show(key)
            row, events = _key_row(parked.key, owner), (*parked.held, *parked.records, *parked.unreadable)
            frames = parked.key.failure.frames if parked.key.failure else ()
        except KeyNotParked:
            events = await keys.records(key)
            if not events:
                raise
            row = _key_columns(owner) | {"key": key, "state": "released", "held": 0}
    noun = owner.noun
    rows = [_event_row(event, owner) for event in events]
    held = table_of([_event_row_for_people(event) for event in rows], empty=f"It holds no {noun}.")
    shown = [table_of([_row_for_people(row)]), *(f"  {frame}" for frame in frames), held]
    answer({**row, "frames": frames, f"{noun}s": rows}, *shown, as_json=as_json)
    if any(isinstance(event, Unreadable) for event in events):
        raise typer.Exit(ExitCode.WRONG)


@app.command()
@command
async def release(
    key: OneKey = None,
    *,
    every: Every = False,
    error: OfError = None,
    file: OfFile = None,
    edited: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File with the JSON object to take as the data of the first held event, or the body of the first message.",
        ),
    ] = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    operator: Operator = None,
    consumer: OfConsumer = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Send the events that a parked key holds, in order, and hand the key back to the workers. The exit code is 4 if the key stays parked.

    With --consumer, this process calls the consumer's handlers with the held messages, each in as many attempts as the consumer allows, and hands the key back to the consumer's processes. If an earlier release of the key still runs, it stops, and this release goes on.

    If one of several keys stays parked, the others are still released. After an interruption, run the command again: it goes on with
    the keys that are still parked. OUTBOX_SEND_RATE limits the events that it sends.
    """
    choice = Choice(key=key, all=every, error=error, file=file)
    data = None if edited is None else _object(edited)
    if data is not None and choice.key is None:
        raise UsageError("--edited replaces the payload of one event: give the key of this event.")
    async with open_owner(consumer) as owner:
        noun, chosen, event_id = owner.noun, await _choose_keys(choice, owner), ""
        if dry_run:
            _print_chosen(chosen, owner.does, as_json=as_json)
            return
        if data is not None and (first := await owner.keys.first_held(chosen[0])) is not None:
            _require_named(data, first, noun)
            event_id = first.event_id
        confirm(f"Release {_keys_text(chosen)}?", yes=yes)
        by = operator or await operator_of(owner.outbox.credential)
        async with owner.releasing() as releasing:

            async def release_one(key: str) -> int:
                released = await releasing.release(key, edited=data, event_id=event_id, by=by)
                if (failure := released.failure) is not None:
                    done = f"{number_text(released.sent, noun)} {owner.done}"
                    raise StillParked(f"{done}, then {noun} {failure.event_id!r}: {owner.error(failure)}")
                return released.sent

            results = await for_each(chosen, release_one, ceiling=Ceiling.of(rate))
    _print_results(results, "released", f"{noun}s_{owner.done}", as_json=as_json)


async def _choose_keys(choice: Choice, owner: KeyOwner) -> list[str]:
    """
    Return the keys that the operator chose by the options of the command.

    Raises:
        KeyNotParked: the chosen key is not parked.
        NothingMatches: no key is parked with the error that --error gives.
    """
    keys = owner.keys
    if choice.key is not None:
        key = await owner.key_named(choice.key)
        await keys.find(key)
        return [key]
    named = choice.of([key for key in await keys.list() if isinstance(key, ParkedKey)])
    if choice.error is not None and not named:
        raise NothingMatches(f"No key is parked with error {choice.error!r}: see `parked list --by-error`.")
    return [await owner.key_named(key) for key in named]


def _keys_text(chosen: Sequence[str]) -> str:
    return f"the parked key {chosen[0]!r}" if len(chosen) == 1 else number_text(len(chosen), "parked key")


def _print_chosen(chosen: Sequence[str], what: str, *, as_json: bool) -> None:
    rows, empty = [{"key": key} for key in chosen], f"There is no such key to {what}."
    shown = table_of(rows, empty=empty, title="Would be done")
    answer({"dry_run": True, "keys": list(chosen)}, shown, as_json=as_json)


def _print_results(results: Results, done: str, amount: str, *, as_json: bool) -> None:
    numbers = {done: results.done, amount: results.amount, "gone": results.gone}
    said = {**numbers, "left": len(results.left)}.items()
    head = ", ".join(f"{what.replace('_', ' ')} {number}" for what, number in said)
    left = [f"{row['key']!r} stays parked: {row['error']}" for row in results.left]
    answer({**numbers, "left": results.left}, head, *left, as_json=as_json)
    if results.left:
        raise typer.Exit(ExitCode.WRONG)


@app.command()
@command
async def park(
    key: Key,
    *,
    reason: Annotated[str, typer.Option(help="Why the key is parked; shown in the list.", callback=require)],
    consumer: OfConsumer = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Park a key by hand: the workers hold its events, in order, until it is released.

    The workers learn of the parking within 15 seconds, and send events of the key until then. Parking also helps if a key stalls a worker
    that does not park it by itself. With --consumer, the consumer's processes hold the messages of the key.
    """
    async with open_owner(consumer) as owner:
        noun, key, keys = owner.noun, await owner.key_named(key), owner.keys
        confirm(f"Hold all further {noun}s of {key!r}?", yes=yes)
        parked = await keys.park(key, reason=reason)
    said = f"{key!r} was parked already, with {number_text(parked.held, f'held {noun}')}."
    if parked.failure is not None and parked.failure.reason == BY_HAND:
        said = f"{key!r} is parked; running {owner.who} hold its {noun}s within 15 seconds."
    answer(_key_row(parked, owner), said, as_json=as_json)


@app.command()
@command
async def drop(
    key: OneKey = None,
    event: Annotated[str | None, typer.Argument(help="The id of a held event or message.")] = None,
    *,
    every: Every = False,
    error: OfError = None,
    file: OfFile = None,
    reason: Annotated[str, typer.Option(help="Why the event is given up; this is stored.", callback=require)],
    rate: Rate = None,
    dry_run: DryRun = False,
    operator: Operator = None,
    consumer: OfConsumer = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Give up one held event, or message, for good. It stays in the parked store as a record. The key stays parked.

    With --all, --error or --file, the event on which each key failed is dropped. Events that are held behind it wait for a release.
    """
    choice = Choice(key=key, all=every, error=error, file=file)
    if (choice.key is None) != (event is None):
        raise UsageError("Give a key and the id of its event, or neither with --all, --error or --file.")
    async with open_owner(consumer) as owner:
        noun, chosen = owner.noun, await _choose_keys(choice, owner)
        if dry_run:
            _print_chosen(chosen, "drop from", as_json=as_json)
            return
        what = f"{noun} {event!r}" if event else f"the failed {noun}"
        confirm(f"Never {owner.does} {what} of {_keys_text(chosen)}?", yes=yes)
        keys, by = owner.keys, operator or await operator_of(owner.outbox.credential)

        async def drop_one(key: str) -> int:
            failure = None if event else (await keys.find(key)).failure
            dropped = event or (failure.event_id if failure else "")
            if not dropped:
                raise StillParked(f"No failed {noun} parked the key: name the {noun} to drop.")
            try:
                await keys.drop(key, dropped, reason=reason, by=by)
            except KeyNotParked as missing:
                if event:  # here the error means that the key holds no event with this id
                    raise StillParked(str(missing)) from None
                raise
            return 1

        results = await for_each(chosen, drop_one, ceiling=Ceiling.of(rate))
    _print_results(results, "keys", f"{noun}s_dropped", as_json=as_json)


@app.command()
@command
async def purge(
    key: Key,
    event: Annotated[
        str | None, typer.Argument(help="The id of a record. Defaults to all records of the key.")
    ] = None,
    *,
    reason: Annotated[str, typer.Option(help="Stored, so name no person.", callback=require)],
    operator: Operator = None,
    consumer: OfConsumer = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Erase the payloads and errors in the records of events that were dropped or sent edited. The ids stay, so that no replay sends them.

    The partition key is not erased. The data container keeps the event until the event's time to live ends.
    """
    async with open_owner(consumer) as owner:
        key, keys = await owner.key_named(key), owner.keys
        records = [one for one in await keys.records(key) if isinstance(one, ParkedEvent)]
        ids = [event] if event else [one.event_id for one in records if one.status is not EventStatus.PURGED]
        if not event and not records:
            raise NothingMatches(
                f"There is no record of {key!r} to erase. Drop the {owner.noun}s that it holds first."
            )
        confirm(f"Erase {number_text(len(ids), 'record')} of {key!r} for good?", yes=yes)
        by = operator or await operator_of(owner.outbox.credential)
        for one in ids:
            await keys.purge(key, one, reason=reason, by=by)
    said = f"{number_text(len(ids), 'record')} of {key!r} erased; the ids of their {owner.noun}s stay."
    answer({"key": key, "purged": ids}, said, as_json=as_json)


def _key_columns(owner: KeyOwner) -> dict[str, Any]:
    return dict.fromkeys(("key", "state", "held", "parked_at", owner.noun, "error", "attempts"))


def _key_row(key: ParkedKey | Unreadable, owner: KeyOwner) -> dict[str, Any]:
    row = _key_columns(owner) | {"key": key.partition_key}
    if isinstance(key, Unreadable):
        return row | {"state": "unreadable", "error": str(key.error)}
    row |= {"state": key.state.value, "held": key.held, "parked_at": key.parked_at}
    if (one := key.failure) is not None:
        row |= {owner.noun: one.event_id, "error": owner.error(one), "attempts": one.attempts}
    return row


def _event_row(event: ParkedEvent | Unreadable, owner: KeyOwner) -> dict[str, Any]:
    noun, about = owner.noun, owner.about
    names = (noun, about, "status", "parked_at", "closed_at", "note", "data", *_ONLY_IN_JSON)
    row = dict.fromkeys(names)
    if isinstance(event, Unreadable):
        name, said = event.document_id.removeprefix("event."), str(event.error)
        return row | {noun: name, "status": "unreadable", "note": said}
    row[noun] = event.event_id
    row[about], data = owner.content(event)
    meta = event.event.get("meta")
    row["deliver_at"] = meta.get("deliverAt") if isinstance(meta, dict) else None
    row |= {name: getattr(event, name) for name in ("parked_at", "closed_at", "note", "original")}
    status = owner.done if event.status is EventStatus.SENT else event.status.value
    return row | {"status": status, "data": data, "decisions": [asdict(one) for one in event.decisions]}


def _row_for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "parked_at": readable_time(row["parked_at"])}


def _event_row_for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: value for name, value in row.items() if name not in _ONLY_IN_JSON}
    decisions = row["decisions"] or ()
    said = [f"{one['did']} by {one['by'] or 'an operator'}: {one['reason'] or '-'}" for one in decisions]
    data = json.dumps(row["data"], ensure_ascii=False)
    if len(data) > _SHOWN_CHARACTERS:  # many parked events are large, and would fill the terminal
        data = f"{data[:_SHOWN_CHARACTERS]}… ({len(data)} characters; --json has all)"
    columns |= {"closed_at": readable_time(row["closed_at"]), "data": data}
    return _row_for_people(columns | {"note": "; ".join(said) or row["note"]})


def _require_named(data: Mapping[str, Any], event: ParkedEvent, noun: str) -> None:
    """
    Check that an edited payload still has the fields `id` and `action`, if the committed payload has them.

    The payload of an event that another program wrote may lack these fields.

    Raises:
        UsageError: the edited payload lacks a field that the committed payload has.
    """
    committed = event.original or event.data
    missing = [name for name in _NAMES if committed.get(name) and not data.get(name)]
    if missing:
        names = " and ".join(f"`{name}` ({committed[name]!r})" for name in missing)
        raise UsageError(
            f"The edited payload lacks {names}, which {noun} {event.event_id!r} has: write the whole `data`, as `parked show --json` prints it."
        )


def _object(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{file} does not hold a JSON object.")
    return data
