"""
The command `cosmos-outbox events`: describe the messages that a service sends and handles, or compare it with a description. The package
`contract` makes the description and finds the differences.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from cosmos_outbox.errors import UsageError
from cosmos_outbox.relay.routing import parse_routes
from cosmos_outbox_worker.cli.output import answer
from cosmos_outbox_worker.cli.running import AsJson, command_without
from cosmos_outbox_worker.contract.asyncapi import asyncapi_of
from cosmos_outbox_worker.contract.breaking_changes import breaks
from cosmos_outbox_worker.contract.declarations import import_declarations
from cosmos_outbox_worker.exit_codes import ExitCode

_CHECK = "Compare with this description in place of printing one; - is standard input."
_ACCEPT = "With --check: ignore breaking changes of this event; may be repeated."
app = typer.Typer(help="Events: the contract of a service with other teams.", no_args_is_help=True)


@app.command()
@command_without
async def describe(
    modules: Annotated[
        list[str], typer.Argument(metavar="MODULE...", help="A module (package.module) or a package.")
    ],
    *,
    check: Annotated[typer.FileText | None, typer.Option(metavar="FILE", help=_CHECK)] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --check: exit code 1 if FILE is out of date.")
    ] = False,
    accept: Annotated[list[str] | None, typer.Option(metavar="EVENT", help=_ACCEPT)] = None,
    topic: Annotated[str | None, typer.Option(envvar="OUTBOX_TOPIC", help="The worker's topic.")] = None,
    routes: Annotated[str, typer.Option(envvar="OUTBOX_ROUTES", help="The worker's OUTBOX_ROUTES.")] = "",
    as_json: AsJson = False,
) -> None:
    """
    Describe in AsyncAPI 3.0 the messages that modules of a service send and handle, or compare them with an earlier description.
    Opens no connection.

    With --check, exit code 0: nothing breaks (the answer says whether FILE is out of date), 1: a consumer or stored events would break,
    2: a module or FILE cannot be read.
    """
    now = asyncapi_of(import_declarations(modules), parse_routes(routes, default=topic) if topic else None)
    if check is None:
        sys.stdout.write(json.dumps(now, indent=2, ensure_ascii=False) + "\n")
        return
    try:
        was = json.load(check)
        found = [one for one in breaks(was, now) if one.event not in (accept or ())]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{check.name} was not written by `events describe`: {error!r}.") from error
    lines = [f"{it.event}, {it.field or 'the event'}: {it.problem}. Remedy: {it.remedy}." for it in found]
    if was != now:
        given = [*(("--topic", topic) if topic else ()), *(("--routes", routes) if routes else ())]
        again = shlex.join(["cosmos-outbox", "events", "describe", *modules, *given])
        lines.append(f"{check.name} is out of date: run {again} > {check.name.replace('<stdin>', 'FILE')}")
    facts = {"breaking": [asdict(one) for one in found], "out_of_date": was != now}
    answer(facts, *lines or [f"{check.name} is up to date."], as_json=as_json)
    if found or (exact and was != now):
        raise typer.Exit(ExitCode.WARNED)
