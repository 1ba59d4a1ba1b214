"""
The command line of the demo.

`python -m demo demo` sends requests to the contacts example and checks every event, from the API to the subscriber.
`python -m demo run` starts the same processes and keeps them running until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Annotated

import typer

from demo.commands import demo as do_demo
from demo.commands import run as do_run
from demo.job import DemoOptions
from demo.load import Load
from demo.stack import Accounts, StackOptions

app = typer.Typer(
    help="The contacts example under load: an API, workers and a subscriber on local emulators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Partitions = Annotated[int, typer.Option(min=1, max=64, help="Physical partitions of the data container.")]
Workers = Annotated[int, typer.Option(min=1, max=16, help="Worker processes that share the leases.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 is any free one.")]


@app.command()
def demo(
    *,
    contacts: Annotated[int, typer.Option(min=1, help="How many contacts to create.")] = 200,
    changes: Annotated[int, typer.Option(min=1, help="Changes of each contact; the first creates it.")] = 5,
    partitions: Partitions = 2,
    workers: Workers = 2,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Contacts to change at a time.")] = 16,
    seed: Annotated[int, typer.Option(help="The same seed sends the same requests.")] = 0,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Kill no worker and no consumer.")] = False,
    sdk_only: Annotated[bool, typer.Option("--sdk-only", help="Run workers with OUTBOX_SDK_ONLY.")] = False,
    cosmos: Annotated[str | None, typer.Option(help="Connection string; default: our emulator.")] = None,
    servicebus: Annotated[str | None, typer.Option(help="Connection string; needed with --cosmos.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as a line of JSON.")] = False,
) -> None:
    """Send requests to the API, kill a worker half-way, and check that every event arrives once and in order."""
    if workers == 1 and not no_kill:
        raise typer.BadParameter(
            "no other worker could take over from the killed one: use 2 or more, or --no-kill",
            param_hint="--workers",
        )
    if (cosmos is None) != (servicebus is None):
        raise typer.BadParameter("give both connection strings, or none", param_hint="--cosmos, --servicebus")
    accounts = Accounts(cosmos=cosmos, servicebus=servicebus) if cosmos and servicebus else None
    options = DemoOptions(
        load=Load(contacts=contacts, changes=changes, concurrency=concurrency, seed=seed),
        stack=StackOptions(accounts=accounts, partitions=partitions, workers=workers, sdk_only=sdk_only),
        kill=not no_kill,
    )
    _bypass_proxies()
    raise typer.Exit(asyncio.run(do_demo(options, as_json=as_json)))


@app.command()
def run(*, port: Port = 8000, partitions: Partitions = 2, workers: Workers = 2) -> None:
    """Start all processes of the contacts example, and keep them running until Ctrl-C."""
    try:
        # If another program uses the port, report it before the other processes start.
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--port") from error
    _bypass_proxies()
    raise typer.Exit(asyncio.run(do_run(StackOptions(partitions=partitions, workers=workers, api_port=port))))


def _bypass_proxies() -> None:
    # Both Azure SDKs obey the proxy variables of the environment. A proxy cannot reach the emulators on this machine,
    # so connections to this machine are excluded from it.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))


if __name__ == "__main__":
    app()
