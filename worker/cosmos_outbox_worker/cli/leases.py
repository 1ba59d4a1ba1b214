"""`cosmos-outbox leases` and `bootstrap`: reset the leases of a processor, or create them; `cosmos-outbox status` shows them."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

import typer

from cosmos_outbox.changefeed.bootstrap import create_leases
from cosmos_outbox.changefeed.lease_ahead import AHEAD, BEHIND
from cosmos_outbox.changefeed.leases import START, Lease, from_document, start_property
from cosmos_outbox.errors import UsageError
from cosmos_outbox.ports import LeaseStore, StartFrom
from cosmos_outbox_worker.cli.output import NO_LEASES, NothingMatches, answer, confirm, table_of
from cosmos_outbox_worker.cli.running import AsJson, DryRun, Expiration, Yes, command, command_each, connect
from cosmos_outbox_worker.connection import Connection
from cosmos_outbox_worker.doctor.check import finding
from cosmos_outbox_worker.exit_codes import ExitCode
from cosmos_outbox_worker.logs import printable
from cosmos_outbox_worker.readable_times import clock_time, readable_time
from cosmos_outbox_worker.settings import start_named

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
    async with connect() as outbox:
        await require_leases(outbox)
        prefix, free_after = await outbox.prefix(), timedelta(seconds=expiration)
        act = partial(reset_leases, start, prefix=prefix, store=outbox.leases, expiration=free_after)
        rows = await act(dry_run=True)  # so that errors show before the question
        if not dry_run:
            confirm(f"Reset all leases of {outbox.settings.processor_name!r} to {to}?", yes=yes)
            rows = await act(dry_run=False)
    title = "Would be done" if dry_run else None
    answer({"dry_run": dry_run, "leases": rows}, table_of(rows, title=title), as_json=as_json)


@command_each
async def bootstrap(
    *,
    start: Annotated[str, typer.Option(help="Where ranges begin: beginning, now, or a time.")] = "beginning",
    as_json: AsJson = False,
) -> None:
    """Create the leases that are missing, and do nothing else. So a deployment can fix where the first worker begins."""
    chosen = start_given(start)
    async with connect() as outbox:
        prefix = await outbox.prefix()
        listed = partial(leases_for, chosen, prefix=prefix, store=outbox.leases)
        before = {lease.id for lease in (await listed())[0]}
        left = await create_leases(prefix, feed=outbox.feed, store=outbox.leases, start=chosen)
        leases, _ = await listed()
    rows = [{"range": lease.token, "created": lease.id not in before} for lease in leases]
    answer({"leases": rows}, table_of(rows, empty="The container has no ranges."), as_json=as_json)
    for one, error in left.items():
        sys.stderr.write(
            f"The partition of range {one.min}-{one.max} does not answer, so it has no lease yet: "
            f"{printable(str(error))} Run this again, or start a worker: both create what is missing.\n"
        )
    if left:
        raise typer.Exit(ExitCode.WRONG)


async def require_leases(outbox: Connection) -> None:
    """
    Refuse a processor that has no leases where others have; where none has any, no name is wrong yet.

    Raises:
        NothingMatches: its name is misspelled, or its workers never started.
    """
    if others := await outbox.others_alone():
        told = finding("processor-name.unknown", outbox.settings.processor_name, ", ".join(others))
        raise NothingMatches(f"{told.message} {told.fix}")


async def leases_for(
    start: StartFrom | datetime, *, prefix: str, store: LeaseStore
) -> tuple[tuple[Lease, ...], datetime]:
    """
    Return the leases in the order of their tokens, for a command that sets a start; return the service's time, too.

    Raises:
        ConfigurationError: a lease is damaged.
        UsageError: the start is in the future: which earlier events are left out would depend on when the next program reads the feed.
    """
    listing = await store.list(f"{prefix}..")
    now = listing.read_at
    if isinstance(start, datetime) and start > now:
        raise UsageError(
            f"{start.isoformat()} is in the future: for the service it is {clock_time(now)}. Name an earlier time, or 'now'."
        )
    return tuple(sorted(map(from_document, listing.documents), key=lambda lease: in_order(lease.token))), now


def in_order(token: str) -> tuple[int, str]:
    """Return the sort key of a token: the tokens of partitions are numbers."""
    return len(token), token


async def reset_leases(
    start: StartFrom | datetime,
    *,
    prefix: str,
    store: LeaseStore,
    expiration: timedelta,
    dry_run: bool = False,
) -> list[dict[str, str]]:
    """
    Make all ranges begin again at a start. Return for each lease a row that says what was done, or would be done.

    Raises:
        UsageError: a worker owns a lease, there is none (NothingMatches), or the start is in the future.
        PreconditionFailed: a worker took a lease meanwhile; those before it are reset.
    """
    leases, now = await leases_for(start, prefix=prefix, store=store)
    if not leases:
        raise NothingMatches(NO_LEASES)
    if owners := sorted({str(lease.owner) for lease in leases if not lease.expired(now, expiration)}):
        raise UsageError(
            f"Workers own leases: {', '.join(owners)}. Stop them first; the leases of one that crashed are free "
            f"{expiration.total_seconds():.0f} s after its last renewal."
        )
    chosen = start_property(start, now=now)
    for lease in leases if not dry_run else ():
        unmarked = {name: text for name, text in lease.properties.items() if name not in (AHEAD, BEHIND)}
        properties = {**unmarked, START: chosen}
        changed = lease.with_changes(now=now, owner=None, continuation=None, properties=properties)
        await store.replace(changed.raw, etag=lease.etag or "")
    return [{"range": lease.token, "done": f"starts at {readable_time(chosen)}"} for lease in leases]


def start_given(text: str) -> StartFrom | datetime:
    """
    Return the start that an option names, in the form that OUTBOX_START has.

    Raises:
        UsageError: it names none.
    """
    try:
        return start_named(text)
    except ValueError as error:
        raise UsageError(f"The start {text!r} {error}.") from None
