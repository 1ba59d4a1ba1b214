"""The command line of the contacts example: `python -m examples.contacts api`, `subscriber` or `provision`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, TypeVar

import typer
import uvicorn

from cosmos_outbox import ConfigurationError
from examples.contacts.api import create_app
from examples.contacts.provision import provision as do_provision
from examples.contacts.settings import Settings, SubscriberSettings
from examples.contacts.subscriber import run_until_stopped
from examples.contacts.telemetry import exporting

app = typer.Typer(
    help="The contacts example: an API whose changes arrive as ordered messages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

S = TypeVar("S", Settings, SubscriberSettings)
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 is any free one.")]


def listening(host: str, port: int) -> socket.socket:
    """
    Return a listening socket with TCP_NODELAY, so that its connections send each answer at once.

    asyncio sets TCP_NODELAY only on sockets that it opened itself. Without it, the second answer on a connection waits 40 ms for
    the client's ACK.
    """
    listener = socket.create_server((host, port), backlog=128)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@app.command()
def api(
    *,
    host: str = "127.0.0.1",
    port: Port = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the URL as JSON on stdout.")] = False,
) -> None:
    """Serve the API. Environment variables OUTBOX_COSMOS_… name the account, database and container."""
    _log_to_stderr()
    settings = _read(Settings)
    application = create_app(settings)
    try:
        listener = listening(host, port)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--port") from error
    url = f"http://{host}:{listener.getsockname()[1]}"
    sys.stdout.write((json.dumps({"url": url}) if as_json else f"{url}/docs") + "\n")
    sys.stdout.flush()
    # After a clean stop, uvicorn raises SIGTERM again. This handler lets the process exit with code 0 instead of being killed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = uvicorn.Server(uvicorn.Config(application, access_log=False, log_config=None))
    with exporting("contacts-api", application, signs_in=settings.cosmos_endpoint is not None):
        server.run(sockets=[listener])


@app.command()
def subscriber(
    *,
    record: Annotated[Path, typer.Option(help="File that gets a line of JSON for each message.")] = Path(
        "received.jsonl"
    ),
) -> None:
    """Receive messages from the topic's subscription until SIGTERM, and record each message in a file."""
    _log_to_stderr()
    settings = _read(SubscriberSettings)
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
    directory_container: str = "directory",
) -> None:
    """Create the database and its containers on an emulator, if they do not exist."""
    asyncio.run(
        do_provision(
            connection_string,
            database=database,
            data=container,
            leases=lease_container,
            parked=parked_container,
            directory=directory_container,
        )
    )


def _read(kind: type[S]) -> S:
    try:
        return kind()
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)
    # Silence the SDK, because in an outage it logs a warning for each retry. The API itself logs each request that failed.
    logging.getLogger("azure.cosmos").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    app()
