"""
`cosmos-outbox leases`: list and reset the leases of a processor.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from cosmos_outbox.cli.leases.actions import listed_in, reset_leases, row_of, start_given
from cosmos_outbox.cli.output import NO_LEASES, confirm, print_errors, print_json, print_rows, readable_time
from cosmos_outbox.cli.running import FAILED, AsJson, DryRun, Expiration, Yes, command, opened

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
        act = partial(
            reset_leases,
            start,
            prefix=await outbox.prefix(),
            store=outbox.leases,
            expiration=timedelta(seconds=expiration),
        )
        changes = await act(dry_run=True)  # reports errors before the question
        if not dry_run:
            confirm(f"Reset all leases of {outbox.settings.processor_name!r} to {to}?", yes=yes)
            changes = await act(dry_run=False)
    rows = [{"range": change.lease, "done": change.done} for change in changes]
    if as_json:
        print_json({"dry_run": dry_run, "leases": rows})
    else:
        print_rows(rows, empty="There was nothing to do.", title="Would be done" if dry_run else None)
