"""
`cosmos-outbox leases`: list, export, import, reset and rename the leases of a processor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos_outbox.changefeed.leases import without_system_fields
from cosmos_outbox.cli.leases.actions import (
    Change,
    import_leases,
    listed_in,
    reset_leases,
    row_of,
    start_given,
)
from cosmos_outbox.cli.leases.renaming import rename_host
from cosmos_outbox.cli.output import NO_LEASES, confirm, print_errors, print_json, print_rows, readable_time
from cosmos_outbox.cli.running import FAILED, AsJson, DryRun, Expiration, Yes, command, opened
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.service.connection import Connection

app = typer.Typer(
    help="Leases: the position of each range of the container, and its owner.", no_args_is_help=True
)


@app.command("list")
@command
async def list_(*, expiration: Expiration = 60, as_json: AsJson = False) -> None:
    """
    Show all leases. Exit code 2 if one is damaged, or its owner makes no progress; the others are shown.
    """
    async with opened() as outbox:
        listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    rows = [row_of(listed, listing.read_at, timedelta(seconds=expiration)) for listed in listed_in(listing)]
    errors = [row["error"] for row in rows if row["error"]]
    standing = [f"Lease {row['range']}: {row['standstill']}" for row in rows if row["standstill"]]
    if as_json:
        print_json({"leases": rows})
    else:
        for row in rows:
            del row["id"], row["standstill"], row["error"]
            row["start"] = readable_time(row["start"])
        print_rows(rows, empty=NO_LEASES)
        print_errors([*errors, *standing])
    if errors or standing:
        raise typer.Exit(FAILED)


@app.command("export")
@command
async def export(
    *,
    file: Annotated[Path | None, typer.Option(help="Where to. Defaults to standard output.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", show_default=False, help="No effect: it always writes JSON.")
    ] = True,
) -> None:
    """
    Write all leases as a JSON object: a backup that `import` restores.

    A damaged lease is left out, for its backup would restore the damage: standard error names it, and the exit code is 2.
    """
    async with opened() as outbox:
        listed = listed_in(await outbox.leases.list(f"{await outbox.prefix()}.."))
    leases = [without_system_fields(one.lease.raw) for one in listed if not one.error]
    text = json.dumps({"leases": leases}, indent=2) + "\n"
    if file is None:
        sys.stdout.write(text)
    else:
        file.write_text(text)
    errors = [one.error for one in listed if one.error]
    print_errors(errors, to_stderr=True, prefix="Left out: ")
    if errors:
        raise typer.Exit(FAILED)


@app.command("import")
@command
async def import_(
    *,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `export` wrote.")],
    expiration: Expiration = 60,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Restore exported leases, while no worker runs. This is also how a damaged lease is repaired.

    Ranges go on from where they were at the export: events sent since are sent again. A range that has split since is
    restored as a whole, and the leases of its children are deleted; the worker that takes it splits it again.
    """
    documents = _documents(file)
    async with opened() as outbox:
        act = partial(import_leases, documents, prefix=await outbox.prefix())
        question = f"Replace the leases of {outbox.settings.processor_name!r} by those of {file}?"
        await _carry_out(act, question, outbox, expiration, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
@command
async def reset(
    *,
    to: Annotated[str, typer.Option(help="beginning, now, or a time such as 2026-11-21T08:00:00Z.")],
    expiration: Expiration = 60,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Make all ranges begin again at a start, while no worker runs.

    An earlier start sends events again; a later one leaves out events that are not sent yet.
    """
    start = start_given(to)
    async with opened() as outbox:
        act = partial(reset_leases, start, prefix=await outbox.prefix())
        question = f"Reset all leases of {outbox.settings.processor_name!r} to {to}?"
        await _carry_out(act, question, outbox, expiration, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command("rename-host")
@command
async def rename_host_command(
    *,
    expiration: Expiration = 60,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Move leases to the account's own name, while no worker runs.

    Other programs name leases after the endpoint they were given, such as a regional one. Each range goes on where it was;
    of two leases of one range the earlier position counts, and events sent since are sent again. An interrupted command can
    be repeated.
    """
    async with opened() as outbox:
        container = await outbox.feed.describe()
        act = partial(rename_host, container, processor_name=outbox.settings.processor_name)
        question = f"Rename the leases of {outbox.settings.processor_name!r} to {container.account_host}?"
        await _carry_out(act, question, outbox, expiration, dry_run=dry_run, yes=yes, as_json=as_json)


def _documents(file: Path) -> list[dict[str, Any]]:
    try:
        exported = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from None
    documents = exported.get("leases") if isinstance(exported, dict) else exported  # an array, before 0.1.0
    if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
        raise ConfigurationError(f"{file} is not what `leases export` writes: an object with `leases`.")
    return documents


async def _carry_out(
    act: Callable[..., Awaitable[tuple[Change, ...]]],
    question: str,
    outbox: Connection,
    expiration: float,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    run = partial(act, store=outbox.leases, expiration=timedelta(seconds=expiration))
    changes = await run(dry_run=True)  # reports errors before the question
    if not dry_run:
        confirm(question, yes=yes)
        changes = await run(dry_run=False)
    rows = [{"range": change.lease, "done": change.done} for change in changes]
    if as_json:
        print_json({"dry_run": dry_run, "leases": rows})
    else:
        print_rows(rows, empty="There was nothing to do.", title="Would be done" if dry_run else None)
