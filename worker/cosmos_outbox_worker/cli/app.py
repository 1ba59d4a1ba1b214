"""The commands put together."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from cosmos_outbox.changefeed.bootstrap import create_leases
from cosmos_outbox.errors import AccessDenied, StoreUnavailable
from cosmos_outbox_worker.cli import events, parked, running, status
from cosmos_outbox_worker.cli import leases as lease_commands
from cosmos_outbox_worker.cli.leases import leases_for, start_given
from cosmos_outbox_worker.cli.output import answer, table_of
from cosmos_outbox_worker.cli.parked_key_owner import OfConsumer
from cosmos_outbox_worker.cli.plan import plan
from cosmos_outbox_worker.cli.replay import replay_command
from cosmos_outbox_worker.cli.running import FAILED, UNSEEN, WARNED, AsJson, Commands, Expiration
from cosmos_outbox_worker.doctor.check import Findings, Severity
from cosmos_outbox_worker.doctor.programs import check_application, check_consumer, check_worker, unopened
from cosmos_outbox_worker.logs import names_no_leak, printable

app = typer.Typer(
    cls=Commands,
    help="Show a running outbox, repair it, and run workers and consumers. Configured by their OUTBOX_… variables; with --env-file FILE, "
    "anywhere, a file has those that the environment has not.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(events.app, name="events")
app.add_typer(lease_commands.app, name="leases")
app.add_typer(parked.app, name="parked")
app.command("replay")(replay_command)
app.command("status")(status.status)
app.command("plan")(plan)

# The worst comes first: what is known to be wrong, then what could not be looked at.
_EXIT_CODES = {Severity.ERROR: FAILED, Severity.UNKNOWN: UNSEEN, Severity.WARNING: WARNED, Severity.NOTE: 0}


_PROGRAM = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_PROGRAM)
def worker(context: typer.Context) -> None:
    """Run a worker until SIGTERM or Ctrl-C; `worker --help` lists its settings."""
    from cosmos_outbox_worker import main  # noqa: PLC0415 - the other commands need no OpenTelemetry

    raise typer.Exit(main.work(context.args))


@app.command(context_settings=_PROGRAM)
def consume(context: typer.Context) -> None:
    """Run the consumer `package.module:name` until SIGTERM or Ctrl-C; `consume --help` lists its settings."""
    from cosmos_outbox_worker import main  # noqa: PLC0415 - as above

    raise typer.Exit(main.consume(context.args))


@app.command()
@running.command_each
async def doctor(
    *,
    api: Annotated[
        bool, typer.Option("--api", help="Check what a program needs that commits events, as that program.")
    ] = False,
    consumer: OfConsumer = None,
    expiration: Expiration = 60,
    as_json: AsJson = False,
) -> None:
    """
    Compare the live resources with what the outbox needs. Exit code 0: no finding but notes, 1: warnings, 2: errors, 3: a service did not answer.

    Tries the operations that a worker needs, with the identity that runs this: creates a document in the lease container, and
    in that of parked keys, and deletes it again. With --api, tries what an application does with the data container in the same
    way, and checks nothing else. With --consumer, checks what a consumer needs: its container, its subscription or queue, and
    its parked keys; takes no message. An account that refuses this program, or its firewall, is an error; one that does not
    answer is unknown. Then nothing else can be checked.
    """
    # The SDKs log each operation that fails; the findings name it already.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(names_no_leak)
    found = Findings()
    try:
        if consumer is not None:
            async with running.opened_consumer(consumer) as (outbox, settings, checked):
                await check_consumer(outbox, found, settings, checked)
        else:
            async with running.opened() as outbox:
                if api:
                    await check_application(outbox, found)
                else:
                    await check_worker(outbox, found, expiration=timedelta(seconds=expiration))
    except (AccessDenied, StoreUnavailable) as error:
        found = Findings(unopened(error))
    findings = found.worst_first()
    rows = [asdict(finding) for finding in findings]
    counts = {severity.value: sum(one.severity is severity for one in findings) for severity in Severity}
    answer(
        {"counts": counts, "findings": rows}, table_of(rows, empty="There are no findings."), as_json=as_json
    )
    raise typer.Exit(_EXIT_CODES[findings[0].severity] if findings else 0)


@app.command()
@running.command_each
async def bootstrap(
    *,
    start: Annotated[str, typer.Option(help="Where ranges begin: beginning, now, or a time.")] = "beginning",
    as_json: AsJson = False,
) -> None:
    """
    Create the leases that are missing, and nothing else: so a deployment fixes where the first worker begins.
    """
    chosen = start_given(start)
    async with running.opened() as outbox:
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
        raise typer.Exit(FAILED)


def run() -> None:
    """Run the command of the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    app()
