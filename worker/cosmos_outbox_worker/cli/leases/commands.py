"""`cosmos-outbox leases`: reset the leases of a processor; `cosmos-outbox status` shows them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from cosmos_outbox_worker.cli.leases.actions import reset_leases, start_given
from cosmos_outbox_worker.cli.output import confirm, print_table
from cosmos_outbox_worker.cli.running import AsJson, DryRun, Expiration, Yes, command, opened

app = typer.Typer(
    help="Leases: the position of each range of the container, and its owner.", no_args_is_help=True
)


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
        rows = await act(dry_run=True)  # reports errors before the question
        if not dry_run:
            confirm(f"Reset all leases of {outbox.settings.processor_name!r} to {to}?", yes=yes)
            rows = await act(dry_run=False)
    title, empty = "Would be done" if dry_run else None, "There was nothing to do."
    print_table("leases", rows, as_json=as_json, empty=empty, title=title, dry_run=dry_run)
