"""
The commands put together.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from cosmos_outbox.changefeed.bootstrap import bootstrap as create_leases
from cosmos_outbox.cli import event_commands, lease_commands, parked_commands
from cosmos_outbox.cli.describing import describe, describe_for_application
from cosmos_outbox.cli.findings import Severity, findings_in
from cosmos_outbox.cli.leases import leases_in, require_come, start_named
from cosmos_outbox.cli.output import console, print_json, print_rows
from cosmos_outbox.cli.running import FAILED, LONGEST_SECONDS, AsJson, Expiration, command, seconds
from cosmos_outbox.cli.status import Status, look
from cosmos_outbox.cli.target import Opened, opened, target_of
from cosmos_outbox.errors import OutboxError

app = typer.Typer(
    help="Look at a running outbox, and put it right. Configured by the worker's OUTBOX_… variables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(lease_commands.app, name="leases")
app.add_typer(event_commands.events, name="events")
app.add_typer(parked_commands.app, name="parked")
app.command("replay")(event_commands.replay_command)

_EXIT_CODES = {Severity.ERROR: 2, Severity.WARNING: 1}


@app.command()
@command
async def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again until Ctrl-C.")] = False,
    every: Annotated[
        float,
        typer.Option(min=0.1, max=LONGEST_SECONDS, help="Seconds between two looks."),
    ] = 2.0,
    expiration: Expiration = 60,
    as_json: AsJson = False,
) -> None:
    """
    Show leases, owners, and what waits. With --json, every look is one line.

    Exit code 1 where a lease or a parked key is damaged, a range does not answer, or a lease lies ahead of its range; the others are shown.
    With --watch, a look that fails is told, with --json on standard error, and the next one comes all the same.
    """
    async with opened(target_of(os.environ)) as outbox:
        if watch:
            await _watch(outbox, expiration, every, as_json=as_json)
            return
        seen = await _look(outbox, expiration)
    if as_json:
        print_json(seen.document())
    else:
        console().print(seen.picture())
    if seen.mistakes:
        raise typer.Exit(FAILED)


@app.command()
@command
async def doctor(
    *,
    api: Annotated[
        bool, typer.Option("--api", help="Look at what a program needs that commits events, as that program.")
    ] = False,
    expiration: Expiration = 60,
    as_json: AsJson = False,
) -> None:
    """
    Compare the live resources with what the outbox needs. Exit code 2: errors, 1: warnings, 0: all is well.

    What a worker has to be allowed to do is tried with whatever identity runs this: a document is created in the lease
    container, and in that of parked keys, and deleted again. With --api, what an application does with the data container
    is tried in the same way, and nothing else is looked at.
    """
    # The SDKs log what fails while it is tried; the findings say it.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    async with opened(target_of(os.environ)) as outbox:
        seen = describe_for_application(outbox) if api else describe(outbox, expiration=seconds(expiration))
        findings = findings_in(await seen)
    rows = [asdict(finding) for finding in findings]
    if as_json:
        counts = {severity.value: sum(one.severity is severity for one in findings) for severity in Severity}
        print_json({"counts": counts, "findings": rows})
    else:
        print_rows(rows, empty="All is well.")
    raise typer.Exit(max((_EXIT_CODES.get(finding.severity, 0) for finding in findings), default=0))


@app.command()
@command
async def bootstrap(
    *,
    start: Annotated[str, typer.Option(help="Where ranges begin: beginning, now, or a time.")] = "beginning",
    as_json: AsJson = False,
) -> None:
    """
    Create the leases, and nothing else, where they are missing: so a deployment fixes where the first worker begins.
    """
    chosen = start_named(start)
    async with opened(target_of(os.environ)) as outbox:
        prefix = await outbox.prefix()
        listing = await outbox.leases.list(f"{prefix}..")
        require_come(chosen, listing.read_at)
        before = {lease.id for lease in leases_in(listing)}
        left = await create_leases(prefix, feed=outbox.feed, store=outbox.leases, start=chosen)
        leases = leases_in(await outbox.leases.list(f"{prefix}.."))
    rows = [{"range": lease.token, "created": lease.id not in before} for lease in leases]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, empty="The container has no ranges.")
    for one, error in left.items():
        sys.stderr.write(
            f"The partition of range {one.min}-{one.max} does not answer, so it has no lease yet: {error} Run this "
            "again, or start a worker: both create what is missing.\n"
        )
    if left:
        raise typer.Exit(FAILED)


async def _watch(outbox: Opened, expiration: float, every: float, *, as_json: bool) -> None:
    screen = console()
    # Without a terminal, Live would show nothing before the end.
    redrawn = screen.is_terminal and not as_json
    with Live(console=screen, auto_refresh=False) if redrawn else nullcontext() as live:
        async for seen, failure in _looks(outbox, expiration, every):
            picture = seen.picture()
            if failure is not None:
                picture = Group(picture, Text(f"The last look failed: {failure}"))
            if live is not None:
                live.update(picture, refresh=True)
            elif not as_json:
                screen.print(picture)
            elif failure is None:
                print_json(seen.document())
            else:
                sys.stderr.write(f"{failure}\n")


async def _looks(
    outbox: Opened, expiration: float, every: float
) -> AsyncIterator[tuple[Status, OutboxError | None]]:
    """
    Yield look after look; where one fails, the one before it and why. Only the first has to succeed.
    """
    seen = await _look(outbox, expiration)
    yield seen, None
    while True:
        await asyncio.sleep(every)
        failure: OutboxError | None = None
        try:
            seen = await _look(outbox, expiration)
        except OutboxError as error:
            failure = error
        yield seen, failure


async def _look(outbox: Opened, expiration: float) -> Status:
    held: list[int] | None = None
    unreadable: list[str] = []
    if outbox.parked:
        keys, damaged = await parked_commands.seen_keys(outbox)
        held, unreadable = [key.held for key in keys], list(damaged.values())
    return await look(
        processor=outbox.target.processor,
        prefix=await outbox.prefix(),
        feed=outbox.feed,
        leases=outbox.leases,
        expiration=seconds(expiration),
        parked=held,
        unreadable=unreadable,
    )


def run() -> None:
    """
    Run the command of the command line.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    app()
