"""
The process: both emulators and the control API, from the options of the command line to SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from cosmos_outbox_emulators.usage import UsageError

HOST = "127.0.0.1"
# Of the first emulators of a machine, so that `split` and the others find them without --control
CONTROL_PORT = 8971


async def serve(options: argparse.Namespace) -> None:
    """
    Run both emulators and the control API until SIGTERM or SIGINT.
    """
    clock = AdjustableClock()
    broker = _broker(options.config)
    async with AsyncExitStack() as stack:
        account = Account(partitions=options.partitions, clock=clock)
        cosmos = CosmosServer(account, HOST, options.cosmos_port, latency_s=options.cosmos_latency_ms / 1000)
        servicebus = ServiceBusServer(broker, host=HOST, port=options.servicebus_port)
        control = ControlServer(
            cosmos,
            broker,
            clock=clock,
            servicebus_latency_s=options.servicebus_latency_ms / 1000,
            host=HOST,
            port=CONTROL_PORT if options.control_port is None else options.control_port,
        )
        for server in (cosmos, servicebus, control):
            try:
                await stack.enter_async_context(server)
            except OSError as error:
                if server is control and options.control_port is None and error.errno == errno.EADDRINUSE:
                    # Other emulators run here; these are steered at the address that is printed
                    control.port = 0
                    await stack.enter_async_context(control)
                    continue
                raise UsageError(
                    f"{type(server).__name__} cannot listen on {HOST}:{server.port}: {error}"
                ) from error
        stopped = _stop_event()
        _announce(cosmos.connection_string, servicebus.connection_string, control.url, as_json=options.json)
        await stopped.wait()


def _stop_event() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _announce(cosmos: str, servicebus: str, control: str, *, as_json: bool) -> None:
    if as_json:
        text = json.dumps({"cosmos": cosmos, "servicebus": servicebus, "control": control})
    else:
        text = f"Cosmos DB    {cosmos}\nService Bus  {servicebus}\nControl      {control}\nCtrl-C stops them."
    print(text, flush=True)  # noqa: T201  # the output of this command


def _broker(config: Path | None) -> Broker:
    if config is None:
        return Broker.default()
    try:
        return Broker.from_config(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--config {config}: {error}") from error
