"""
The example's programs: `python -m examples.contacts demo | run | api | subscriber | provision`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from cosmos_outbox import ConfigurationError
from examples.contacts.api import create_app
from examples.contacts.demo.commands import demo as do_demo
from examples.contacts.demo.commands import run as do_run
from examples.contacts.demo.job import DemoOptions
from examples.contacts.demo.load import Load
from examples.contacts.demo.stack import Accounts, StackOptions
from examples.contacts.provision import provision as do_provision
from examples.contacts.settings import Settings
from examples.contacts.subscriber import load_settings, run_until_stopped
from examples.contacts.telemetry import exporting

app = typer.Typer(
    help="The contacts example: an API whose changes arrive as ordered messages.",
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
    contacts: Annotated[int, typer.Option(min=1, help="How many contacts.")] = 200,
    changes: Annotated[int, typer.Option(min=1, help="Changes a contact; the first creates it.")] = 5,
    partitions: Partitions = 2,
    workers: Workers = 2,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Contacts changed at a time.")] = 16,
    seed: Annotated[int, typer.Option(help="The same seed sends the same requests.")] = 0,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="Let all workers live.")] = False,
    cosmos: Annotated[str | None, typer.Option(help="Connection string; default: our own emulator.")] = None,
    servicebus: Annotated[str | None, typer.Option(help="Connection string; goes with --cosmos.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """
    Drive the API, kill a worker half-way, and check that every event arrives once and in order.
    """
    if workers == 1 and not no_kill:
        raise typer.BadParameter(
            "nobody could take over: use 2 or more, or --no-kill", param_hint="--workers"
        )
    if (cosmos is None) != (servicebus is None):
        raise typer.BadParameter("give both or none", param_hint="--cosmos, --servicebus")
    accounts = Accounts(cosmos=cosmos, servicebus=servicebus) if cosmos and servicebus else None
    options = DemoOptions(
        load=Load(contacts=contacts, changes=changes, concurrency=concurrency, seed=seed),
        stack=StackOptions(accounts=accounts, partitions=partitions, workers=workers),
        kill=not no_kill,
    )
    _bypass_proxies()
    raise typer.Exit(asyncio.run(do_demo(options, as_json=as_json)))


@app.command()
def run(*, port: Port = 8000, partitions: Partitions = 2, workers: Workers = 2) -> None:
    """
    Keep the whole stack up until Ctrl-C.
    """
    _listen("127.0.0.1", port).close()  # say now that the port is taken, not after everything has started
    _bypass_proxies()
    raise typer.Exit(asyncio.run(do_run(StackOptions(partitions=partitions, workers=workers, api_port=port))))


@app.command()
def api(
    *,
    host: str = "127.0.0.1",
    port: Port = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="Announce the URL as JSON on stdout.")] = False,
) -> None:
    """
    Serve the API, configured by OUTBOX_COSMOS_… variables.
    """
    _log_to_stderr()
    try:
        application = create_app(Settings())
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    listener = _listen(host, port)
    url = f"http://{host}:{listener.getsockname()[1]}"
    sys.stdout.write((json.dumps({"url": url}) if as_json else f"{url}/docs") + "\n")
    sys.stdout.flush()
    # After its own clean stop uvicorn raises the signal again; without this the exit code would say "killed".
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = uvicorn.Server(uvicorn.Config(application, access_log=False, log_config=None))
    with exporting("contacts-api"):
        server.run(sockets=[listener])


@app.command()
def subscriber(
    *,
    record: Annotated[Path, typer.Option(help="File that gets one JSON line a message.")] = Path(
        "received.jsonl"
    ),
) -> None:
    """
    Receive sessions from the topic's subscription until SIGTERM.
    """
    _log_to_stderr()
    settings = load_settings()
    with exporting("contacts-subscriber"):
        asyncio.run(run_until_stopped(settings, record))


@app.command()
def provision(
    *,
    connection_string: Annotated[str, typer.Option(envvar="OUTBOX_COSMOS_CONNECTION_STRING")],
    database: Annotated[str, typer.Option(envvar="OUTBOX_COSMOS_DATABASE")] = "contacts",
    container: Annotated[str, typer.Option(envvar="OUTBOX_COSMOS_CONTAINER")] = "data",
    lease_container: Annotated[str, typer.Option(envvar="OUTBOX_LEASE_CONTAINER")] = "leases",
    parked_container: Annotated[str, typer.Option(envvar="OUTBOX_PARKED_CONTAINER")] = "parked",
) -> None:
    """
    Create the database and its containers on an emulator, where they do not exist.
    """
    asyncio.run(
        do_provision(
            connection_string,
            database=database,
            data=container,
            leases=lease_container,
            parked=parked_container,
        )
    )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise typer.BadParameter(f"{host}:{port}: {error.strerror}", param_hint="--port") from error
    return listener


def _bypass_proxies() -> None:
    # Both SDKs obey proxy variables, and a proxy cannot reach the emulators on this machine.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)


if __name__ == "__main__":
    app()
