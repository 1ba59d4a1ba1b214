"""
`cosmos-outbox leases`: list, export, import and reset the leases of a processor.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos_outbox.cli.leases import (
    Change,
    exported,
    import_leases,
    leases_in,
    refuse_if_owned,
    reset_leases,
    row_of,
    start_named,
)
from cosmos_outbox.cli.output import confirm, print_json, print_rows
from cosmos_outbox.cli.running import AsJson, DryRun, Expiration, Yes, command, seconds
from cosmos_outbox.cli.target import opened, target_of
from cosmos_outbox.errors import ConfigurationError

app = typer.Typer(
    help="Leases: how far each range of the container is, and who works on it.", no_args_is_help=True
)


@app.command("list")
@command
async def list_(*, expiration: Expiration = 60, as_json: AsJson = False) -> None:
    """
    Show all leases.
    """
    async with opened(target_of(os.environ)) as outbox:
        listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    rows = [row_of(lease, listing.read_at, seconds(expiration)) for lease in leases_in(listing)]
    if as_json:
        print_json(rows)
    else:
        shown = [{name: value for name, value in row.items() if name != "id"} for row in rows]
        print_rows(shown, empty="There are no leases yet; the first worker, or `bootstrap`, creates them.")


@app.command("export")
@command
async def export(
    *,
    file: Annotated[Path | None, typer.Option(help="Where to. Defaults to standard output.")] = None,
    as_json: AsJson = True,
) -> None:
    """
    Write all leases as a JSON array: a backup that `import` restores.
    """
    async with opened(target_of(os.environ)) as outbox:
        listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    text = json.dumps(exported(leases_in(listing)), indent=2) + "\n"
    if file is None:
        sys.stdout.write(text)
    else:
        file.write_text(text)


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
    Put exported leases in place, while no worker runs.

    Ranges go on from where they were when they were exported: what was sent since is sent again. One that split since
    is put back as a whole, and the leases of its parts are deleted; the worker that takes it divides it again.
    """
    documents = _documents(file)
    async with opened(target_of(os.environ)) as outbox:
        prefix = await outbox.prefix()
        listing = await outbox.leases.list(f"{prefix}..")
        refuse_if_owned(leases_in(listing), listing.read_at, seconds(expiration))
        if not dry_run:
            confirm(f"Replace the leases of {outbox.target.processor!r} by those of {file}?", yes=yes)
        changes = await import_leases(
            documents, prefix=prefix, store=outbox.leases, expiration=seconds(expiration), dry_run=dry_run
        )
    _print(changes, dry_run=dry_run, as_json=as_json)


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
    Have all ranges read again from a start, while no worker runs.

    An earlier start sends events again; a later one leaves out what is not sent yet.
    """
    start = start_named(to)
    async with opened(target_of(os.environ)) as outbox:
        prefix = await outbox.prefix()
        listing = await outbox.leases.list(f"{prefix}..")
        refuse_if_owned(leases_in(listing), listing.read_at, seconds(expiration))
        if not dry_run:
            confirm(f"Reset all leases of {outbox.target.processor!r} to {to}?", yes=yes)
        changes = await reset_leases(
            start, prefix=prefix, store=outbox.leases, expiration=seconds(expiration), dry_run=dry_run
        )
    _print(changes, dry_run=dry_run, as_json=as_json)


def _documents(file: Path) -> list[dict[str, Any]]:
    try:
        documents = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from None
    if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
        raise ConfigurationError(f"{file} is not what `leases export` writes: a JSON array of leases.")
    return documents


def _print(changes: tuple[Change, ...], *, dry_run: bool, as_json: bool) -> None:
    rows = [{"range": change.lease, "done": change.done} for change in changes]
    if as_json:
        print_json({"dry_run": dry_run, "leases": rows})
    else:
        print_rows(rows, empty="There was nothing to do.", title="Would be done" if dry_run else None)
