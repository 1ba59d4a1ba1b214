"""The command `cosmos-outbox verify`: run each part, print the outcomes, and write the report."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer

from cosmos_outbox.errors import OutboxError, UsageError
from cosmos_outbox_testing.verify.claims import NotRun, denial_of
from cosmos_outbox_testing.verify.preflight import need_subscriptions
from cosmos_outbox_testing.verify.redaction import without_secrets
from cosmos_outbox_testing.verify.report import ENDS, facts_of, prepare_folder, write_report
from cosmos_outbox_testing.verify.results import Cost, Held, Outcome, Tell, exit_code
from cosmos_outbox_testing.verify.site import Site, open_site
from cosmos_outbox_worker.cli.output import Table, answer, table_of
from cosmos_outbox_worker.cli.running import AsJson, command, fail
from cosmos_outbox_worker.logs import printable
from cosmos_outbox_worker.settings import load

# The parts in the order in which they run. Each has the name for `--only`, its module, and whether it needs Service Bus.
_PARTS = {
    "preflight": ("preflight", False),
    "cosmos": ("cosmos_claims", False),
    "servicebus": ("service_bus_claims", True),
    "suites": ("suites", True),
    "job": ("main_job", True),
    "figures": ("figures", True),
}
_NOT_RUN = 3
_FIGURES = ("requests", "request_units", "seconds")


@command
async def verify(
    *,
    subscription: Annotated[
        str, typer.Option(help="Subscription of OUTBOX_TOPIC that requires sessions; for this run alone.")
    ] = "verify",
    plain_subscription: Annotated[
        str, typer.Option(help="Subscription of OUTBOX_TOPIC without sessions; for this run alone.")
    ] = "verify-plain",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="AREA/NAME", help="Run only this part, or only this claim; may be repeated."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=5, max=3_600, help="How long the main job runs under load.")
    ] = 60,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of verify.json and verify.md. Default: current folder."),
    ] = None,
    name_accounts: Annotated[
        bool, typer.Option("--name-accounts", help="Name the account and the namespace in the report.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Send no request; say what a run would write, and what it costs."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """
    Check that Cosmos DB and Service Bus answer as this library expects. Exit code 0: all claims held, 1: an
    answer differs, but no guarantee depends on it, 2: a guarantee is broken, 3: the check could not be run, or only in part.

    The settings are the OUTBOX_ variables of a worker, and the identity is that of the caller. Name containers, a topic and two
    subscriptions that no other program uses; the command creates none. All documents and messages that it writes have the id of the run,
    and are deleted at the end, also after Ctrl-C or SIGTERM. After an unknown option, the exit code is 2, without a report.
    """
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    screen = sys.stderr if as_json else sys.stdout
    wanted = tuple(only or ())

    def tell(news: str | Outcome) -> None:
        screen.write(f"{printable(news if isinstance(news, str) else _row(news))}\n")
        screen.flush()

    shares = _shares(wanted)
    try:
        if dry_run:
            answer(*_plan(seconds, (subscription, plain_subscription), shares), as_json=as_json)
            return
        folder = prepare_folder(output or Path())
        options: Any = {"sessions": subscription, "plain": plain_subscription, "seconds": seconds}
        outcomes: list[Outcome] = []
        async with AsyncExitStack() as stack:
            stack.enter_context(_end_by_signals())
            site = await stack.enter_async_context(open_site(**options, only=wanted))
            tell(f"Run {site.run}")
            for area in filter(shares.get, _PARTS):
                outcomes += await _ran(site, area, tell)
                if area == "preflight" and Held.NOT_RUN in {one.held for one in outcomes}:
                    break
            else:
                outcomes += await _module("cosmos").judge_throttling(site, tell)
            facts = await facts_of(site, name_accounts=name_accounts)
            tell("Deleting what was written")
        settings = site.connection.settings
        cleared = partial(without_secrets, settings=settings) if name_accounts else site.without_secrets
        files, code = write_report(folder, facts, outcomes, cleared), exit_code(outcomes)
    except OutboxError as error:
        fail(error, as_json=as_json)
        raise typer.Exit(_NOT_RUN) from None
    # Python would exit with 1, but exit code 1 of `verify` means that an answer differs.
    except Exception as error:
        fail(error, as_json=as_json, message=f"It could not be run: {type(error).__name__}: {error}")
        raise typer.Exit(_NOT_RUN) from error
    said = f"{ENDS[code]} Exit code {code}. The report: {', '.join(map(str, files))}"
    answer({"exit_code": code, "files": files}, said, as_json=as_json)
    raise typer.Exit(code)


@contextmanager
def _end_by_signals() -> Iterator[None]:
    """
    Let SIGTERM end the run as Ctrl-C does. Print at once that the run's documents and messages are being deleted, because this takes some
    seconds.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interrupt = before[signal.SIGINT]

    def hear(number: int, frame: Any) -> None:
        # Write to the file descriptor, because the signal may have interrupted a write to sys.stderr.
        os.write(2, b"Cleaning up: deleting what was written\n")
        (interrupt if callable(interrupt) else signal.default_int_handler)(number, frame)

    signal.signal(signal.SIGTERM, hear)
    if callable(interrupt):  # a background process ignores Ctrl-C, and has to go on ignoring it
        signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shares(wanted: tuple[str, ...]) -> dict[str, float]:
    """
    Return the parts that are to run, each with the share of its claims that `--only` asks for: 0.5 for half of them. The estimated cost of
    the part is multiplied by the share.

    Raises:
        UsageError: `--only` has a name that no part or claim has.
    """
    shares: dict[str, float] = {}
    for one in wanted or _PARTS:
        area, _, name = one.partition("/")
        if area not in _PARTS:
            raise UsageError(f"--only {one}: there is no such part. The parts are {', '.join(_PARTS)}.")
        names = getattr(_module(area), "NAMES", ())
        if name and name not in names:
            known = f"has {', '.join(names)}" if names else "can only run as a whole"
            raise UsageError(f"--only {one}: nothing has this name; {area} {known}.")
        shares[area] = min(1.0, shares.get(area, 0.0) + (1 / len(names) if name else 1.0))
    return shares


def _module(area: str) -> Any:
    return import_module(f"{__package__}.{_PARTS[area][0]}")


async def _ran(site: Site, area: str, tell: Tell) -> list[Outcome]:
    """Run a part of the command and return its outcomes. If the whole part fails or cannot be run, return one outcome that says why."""
    try:
        if _PARTS[area][1]:
            await need_subscriptions(site)
        return list(await _module(area).run(site, tell))
    except Exception as error:  # noqa: BLE001 - the other parts are run, and the report says why this one was not
        said = str(error) if isinstance(error, NotRun) else f"{type(error).__name__}: {error}"
        said = denial_of(error) or said
        outcome = Outcome(name=area, area=area, held=Held.NOT_RUN, found=site.without_secrets(said))
        tell(outcome)
        return [outcome]


def _row(one: Outcome) -> str:
    row = f"{one.held:<10} {f'{one.area}/{one.name}':<34} {one.seconds:6.1f} s {one.request_units:8.1f} RU"
    if one.held is Held.HELD:
        return row
    if one.held is Held.NOT_RUN:
        return f"{row}  {one.found} {one.meaning}"
    return f"{row}  expected: {one.expected}; found: {one.found}"


def _plan(
    seconds: float, subscriptions: tuple[str, str], shares: Mapping[str, float]
) -> tuple[object, Table | str, str]:
    """Return what a run would write and cost, as JSON for programs and as a table for people."""
    settings = load(for_command=True)
    rows: list[dict[str, Any]] = []
    for area in filter(shares.get, _PARTS):
        cost: Cost = _module(area).cost(seconds)
        figures = {name: ceil(getattr(cost, name) * shares[area]) for name in _FIGURES}
        rows.append({"part": area, **figures, "touches": cost.touches})
    sums = {name: float(sum(row[name] for row in rows)) for name in _FIGURES}
    containers = filter(
        None, (settings.cosmos_container, settings.lease_container, settings.parked_container)
    )
    touched = f"{settings.cosmos_database}: containers {', '.join(containers)}"
    if settings.topic and settings.namespace:
        touched += f"; topic {settings.topic} with its subscriptions {' and '.join(subscriptions)}"
    total = (
        f"Writes to {touched}, and deletes it at the end. About {sums['requests']:.0f} requests, {sums['request_units']:.0f} request "
        f"units, {max(1, sums['seconds'] / 60):.0f} minutes. Creates no container, topic or subscription. Nothing was sent."
    )
    return {"parts": rows, "total": sums, "touches": touched}, table_of(rows), total
