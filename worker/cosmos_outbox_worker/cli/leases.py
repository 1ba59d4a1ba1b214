"""The commands `cosmos-outbox leases reset`, which resets the leases of a processor, and `bootstrap`, which creates missing leases."""

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
    to: Annotated[str, typer.Option(help="Start: beginning, now, or a time such as 2026-11-21T08:00:00Z.")],
    expiration: Expiration = 60,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """
    Make workers read all ranges again from a start. No worker may run meanwhile.

    With an earlier start, events are sent again. With a later start, events that are not sent yet are left out.
    """
    start = start_given(to)
    async with connect() as outbox:
        await require_leases(outbox)
        prefix, free_after = await outbox.prefix(), timedelta(seconds=expiration)
        act = partial(reset_leases, start, prefix=prefix, store=outbox.leases, expiration=free_after)
        rows = await act(dry_run=True)  # the operator sees errors before the question whether to reset
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
    """Create the leases that are missing, and do nothing else. A deployment can run this to set where the first worker begins."""
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
    Check that the processor of the settings has leases, or that no processor has leases yet.

    Raises:
        NothingMatches: other processors have leases, but this one has none. OUTBOX_PROCESSOR_NAME may be misspelled, or the workers
            of this processor never started.
    """
    if others := await outbox.others_alone():
        told = finding("processor-name.unknown", outbox.settings.processor_name, ", ".join(others))
        raise NothingMatches(f"{told.message} {told.fix}")


async def leases_for(
    start: StartFrom | datetime, *, prefix: str, store: LeaseStore
) -> tuple[tuple[Lease, ...], datetime]:
    """
    Return all leases of a processor, sorted by token, and the time of Cosmos DB. Check that `start` is not in the future.

    Raises:
        ConfigurationError: a lease is damaged.
        UsageError: the start is in the future by the clock of Cosmos DB.
    """
    listing = await store.list(f"{prefix}..")
    now = listing.read_at
    if isinstance(start, datetime) and start > now:
        raise UsageError(
            f"{start.isoformat()} is in the future: by the clock of Cosmos DB it is {clock_time(now)}. Give an earlier time, or 'now'."
        )
    return tuple(sorted(map(from_document, listing.documents), key=lambda lease: in_order(lease.token))), now


def in_order(token: str) -> tuple[int, str]:
    """Return a sort key for the token of a lease that puts "9" before "10", because the tokens of partitions are numbers."""
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
    Reset all leases of a processor, so that its workers read all ranges again from the position `start`.

    Return for each lease a row that says what was done, or what would be done without `dry_run`.

    Args:
        start: where all ranges begin again.
        prefix: the beginning of the ids of the leases.
        store: the lease container.
        expiration: after what time a lease that was not written counts as free.
        dry_run: whether only to return what would be done. Defaults to False.

    Raises:
        UsageError: a worker owns a lease, or the start is in the future.
        NothingMatches: there are no leases.
        PreconditionFailed: a worker acquired a lease meanwhile. The leases that come earlier in the order of tokens are reset already.
    """
    leases, now = await leases_for(start, prefix=prefix, store=store)
    if not leases:
        raise NothingMatches(NO_LEASES)
    if owners := sorted({str(lease.owner) for lease in leases if not lease.expired(now, expiration)}):
        raise UsageError(
            f"Workers own leases: {', '.join(owners)}. Stop them first; the leases of a worker that crashed are free "
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
    Parse the value of an option such as `--to`: "beginning", "now" or a time, as in OUTBOX_START.

    Raises:
        UsageError: the text has none of these forms.
    """
    try:
        return start_named(text)
    except ValueError as error:
        raise UsageError(f"The start {text!r} {error}.") from None
