"""The process that runs both emulators and the control API, from reading its options to SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import signal
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cosmos_outbox_emulators.certificate import AUTHORITY, server_context
from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.seed import plant
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.data import open_data_folder
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.microsoft_config import broker_of, is_microsoft
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_emulators.usage import UsageError

HOST = "127.0.0.1"
# The port of the control API, unless other emulators on this machine use it. The commands `split`, `merge` and `fault` connect to
# it unless --control names another address.
CONTROL_PORT = 8971


async def serve(options: argparse.Namespace) -> None:
    """Run both emulators and the control API until SIGTERM or SIGINT."""
    if options.servicebus_https_port is not None and not options.tls:
        raise UsageError("--servicebus-https-port needs --tls")
    clock = AdjustableClock()
    broker = _broker(options.config)
    async with AsyncExitStack() as stack:
        authority: Path | None = None
        tls: ssl.SSLContext | None = None
        if options.tls:
            folder = (
                Path(stack.enter_context(TemporaryDirectory(prefix="cosmos-outbox-emulators-")))
                if options.data is None
                else options.data / "tls"
            )
            tls, authority = server_context(folder), folder / AUTHORITY
        account = Account(partitions=options.partitions, clock=clock, strict_ids=options.strict_ids)
        save = None
        if options.data is not None:
            save = broker.before_output = stack.enter_context(open_data_folder(options.data, account, broker))
        if options.seed is not None:
            with _name_file_in_error("--seed", options.seed):
                plant(account, _json(options.seed))
        latency_s = options.cosmos_latency_ms / 1000
        cosmos = CosmosServer(account, options.host, options.cosmos_port, latency_s=latency_s, tls=tls)
        cosmos.before_output = save
        servicebus = ServiceBusServer(
            broker,
            host=options.host,
            port=options.servicebus_port,
            https_port=options.servicebus_https_port,
            tls=tls,
        )
        control = ControlServer(
            cosmos,
            broker,
            clock=clock,
            servicebus_latency_s=options.servicebus_latency_ms / 1000,
            certificate=authority,
            host=options.host,
            port=CONTROL_PORT if options.control_port is None else options.control_port,
        )
        if options.deviate is not None:
            control.deviate(options.deviate)
        for server in (cosmos, servicebus, control):
            try:
                await stack.enter_async_context(server)
            except OSError as error:
                if server is control and options.control_port is None and error.errno == errno.EADDRINUSE:
                    # Other emulators on this machine use the default control port. So these emulators take any free port, and
                    # print its address for the option --control.
                    control.port = 0
                    await stack.enter_async_context(control)
                    continue
                raise UsageError(
                    f"{type(server).__name__} cannot listen on {options.host}:{server.port}: {error}"
                ) from error
        stopped = _stop_event()
        found = {
            "cosmos": cosmos.connection_string,
            "servicebus": servicebus.connection_string,
            "control": control.url,
        }
        if authority is not None:
            found["certificate"] = str(authority)
        others = {name: servicebus.connection_string_of("primary", name) for name in list(broker.keys)[1:]}
        _announce(found, others, as_json=options.json)
        await stopped.wait()


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


_TITLES = {
    "cosmos": "Cosmos DB",
    "servicebus": "Service Bus",
    "control": "Control",
    "certificate": "Certificate",
}


def _announce(found: dict[str, str], others: dict[str, str], *, as_json: bool) -> None:
    """Print the addresses of the servers. `others` are the Service Bus connection strings of all keys but the first."""
    lines = [f"{_TITLES[name]:<13}{text}" for name, text in found.items()]
    lines += [f"{f'  as {name}':<12} {text}" for name, text in others.items()]
    shown = {**found, "servicebus_keys": others} if others else found
    text = json.dumps(shown) if as_json else "\n".join([*lines, "Ctrl-C stops them."])
    # If a server listens on all addresses (0.0.0.0), print the host localhost, which a client can always reach.
    print(text.replace("//0.0.0.0:", "//localhost:"), flush=True)  # noqa: T201  # the output of this command


def _broker(config: Path | None) -> Broker:
    if config is None:
        return Broker.default()
    with _name_file_in_error("--config", config):
        value = _json(config)
        return broker_of(value) if is_microsoft(value) else Broker.from_config(value)


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8-sig"))  # the file may begin with a byte order mark


@contextmanager
def _name_file_in_error(option: str, file: Path) -> Iterator[None]:
    """Add the name of the option and of its file to an error about the content of the file."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot use {option} {file}: {error}") from error
