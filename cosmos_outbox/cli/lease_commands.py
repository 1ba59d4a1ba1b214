"""
`cosmos-outbox leases`: list, export, import and reset the leases of a processor.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from cosmos_outbox.cli.leases import (
    Change,
    exported,
    import_leases,
    reset_leases,
    row_of,
    seen_in,
    start_named,
)
from cosmos_outbox.cli.output import confirm, print_json, print_mistakes, print_rows, readable_time
from cosmos_outbox.cli.renaming import rename_host
from cosmos_outbox.cli.running import FAILED, AsJson, DryRun, Expiration, Yes, command, seconds
from cosmos_outbox.cli.target import opened, target_of
from cosmos_outbox.errors import ConfigurationError

app = typer.Typer(
    help="Leases: how far each range of the container is, and who works on it.", no_args_is_help=True
)


@app.command("list")
@command
async def list_(*, expiration: Expiration = 60, as_json: AsJson = False) -> None:
    """
    Show all leases. Exit code 1 where one is damaged; the others are shown.
    """
    async with opened(target_of(os.environ)) as outbox:
        listing = await outbox.leases.list(f"{await outbox.prefix()}..")
    leases = seen_in(listing)
    rows = [row_of(lease, listing.read_at, seconds(expiration)) for lease in leases]
    if as_json:
        print_json(rows)
    else:
        shown = [
            {name: value for name, value in row.items() if name not in ("id", "error")}
            | {"start": readable_time(row["start"])}
            for row in rows
        ]
        print_rows(shown, empty="There are no leases yet; the first worker, or `bootstrap`, creates them.")
        print_mistakes(lease.mistake for lease in leases)
    if any(lease.mistake for lease in leases):
        raise typer.Exit(FAILED)


@app.command("export")
@command
async def export(
    *,
    file: Annotated[Path | None, typer.Option(help="Where to. Defaults to standard output.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", show_default=False, help="As always: it has no other form.")
    ] = True,
) -> None:
    """
    Write all leases as a JSON array: a backup that `import` restores.

    One that is damaged is left out, for a backup of it would restore the damage: it is named on standard error, and
    the exit code is 1.
    """
    async with opened(target_of(os.environ)) as outbox:
        leases = seen_in(await outbox.leases.list(f"{await outbox.prefix()}.."))
    text = json.dumps(exported(seen.lease for seen in leases if not seen.mistake), indent=2) + "\n"
    if file is None:
        sys.stdout.write(text)
    else:
        file.write_text(text)
    damaged = [seen.mistake for seen in leases if seen.mistake]
    for mistake in damaged:
        sys.stderr.write(f"Left out: {mistake}\n")
    if damaged:
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
    Put exported leases in place, while no worker runs.

    Ranges go on from where they were when they were exported: what was sent since is sent again. One that split since
    is put back as a whole, and the leases of its parts are deleted; the worker that takes it divides it again. This is
    also how a damaged lease is mended.
    """
    documents = _documents(file)
    async with opened(target_of(os.environ)) as outbox:
        act = partial(
            import_leases,
            documents,
            prefix=await outbox.prefix(),
            store=outbox.leases,
            expiration=seconds(expiration),
        )
        question = f"Replace the leases of {outbox.target.processor!r} by those of {file}?"
        await _carry_out(act, question, dry_run=dry_run, yes=yes, as_json=as_json)


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
        act = partial(
            reset_leases,
            start,
            prefix=await outbox.prefix(),
            store=outbox.leases,
            expiration=seconds(expiration),
        )
        question = f"Reset all leases of {outbox.target.processor!r} to {to}?"
        await _carry_out(act, question, dry_run=dry_run, yes=yes, as_json=as_json)


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

    Workers of other programs, and of this one before it asked the account, named leases after the endpoint they were given,
    such as a regional one. Each range goes on where it was; of two leases of one range the earlier position counts, and
    what was sent since is sent again. Can be repeated wherever it was interrupted.
    """
    async with opened(target_of(os.environ)) as outbox:
        container = await outbox.feed.describe()
        act = partial(
            rename_host,
            container,
            processor_name=outbox.target.processor,
            store=outbox.leases,
            expiration=seconds(expiration),
        )
        question = f"Rename the leases of {outbox.target.processor!r} to {container.account_host}?"
        await _carry_out(act, question, dry_run=dry_run, yes=yes, as_json=as_json)


def _documents(file: Path) -> list[dict[str, Any]]:
    try:
        documents = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from None
    if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
        raise ConfigurationError(f"{file} is not what `leases export` writes: a JSON array of leases.")
    return documents


class _Act(Protocol):
    async def __call__(self, *, dry_run: bool) -> tuple[Change, ...]: ...


async def _carry_out(act: _Act, question: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    # Whatever speaks against it is said before anybody is asked.
    changes = await act(dry_run=True)
    if not dry_run:
        confirm(question, yes=yes)
        changes = await act(dry_run=False)
    rows = [{"range": change.lease, "done": change.done} for change in changes]
    if as_json:
        print_json({"dry_run": dry_run, "leases": rows})
    else:
        print_rows(rows, empty="There was nothing to do.", title="Would be done" if dry_run else None)
