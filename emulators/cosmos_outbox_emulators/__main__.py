"""
The command line: start both emulators, or steer running ones.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

from cosmos_outbox_emulators.control import ControlServer
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.clock import AdjustableClock
from cosmos_outbox_emulators.cosmos.server import CosmosServer
from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer

_PROGRAM = "cosmos-outbox-emulators"
_HOST = "127.0.0.1"
# Of the first emulators of a machine, so that `split` and the others find them without --control
CONTROL_PORT = 8971
_CONTROL_VARIABLE = "EMULATORS_CONTROL"
_ANSWER_TIMEOUT_S = 30
_EPILOG = """\
The Service Bus configuration is JSON: {"topics": [{"name": "events", "dedup_window_s": 600,
"subscriptions": [{"name": "all", "requires_session": true}]}]}
"""


class OneLineParser(argparse.ArgumentParser):
    """
    An argument parser that reports a mistake in one line, without the usage text in front.
    """

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class UsageError(Exception):
    """
    Something that the caller of the command has to change, in one line.
    """


async def serve(options: argparse.Namespace) -> None:
    """
    Run both emulators and the control API until SIGTERM or SIGINT.
    """
    clock = AdjustableClock()
    broker = _broker(options.config)
    async with AsyncExitStack() as stack:
        account = Account(partitions=options.partitions, clock=clock)
        cosmos = CosmosServer(account, _HOST, options.cosmos_port, latency_s=options.cosmos_latency_ms / 1000)
        servicebus = ServiceBusServer(broker, host=_HOST, port=options.servicebus_port)
        control = ControlServer(
            cosmos,
            broker,
            clock=clock,
            servicebus_latency_s=options.servicebus_latency_ms / 1000,
            host=_HOST,
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
                    f"{type(server).__name__} cannot listen on {_HOST}:{server.port}: {error}"
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


def command(control: str, path: str, fields: dict[str, Any] | None, *, method: str = "POST") -> str:
    """
    Send one command to the control API of running emulators and return its answer.
    """
    if not control.startswith("http://"):
        raise UsageError(f"--control must be the http:// address that `serve` printed, not {control!r}")
    body = None if fields is None else json.dumps(fields).encode()
    # A proxy of the environment cannot reach this machine's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(control.rstrip("/") + path, data=body, method=method)  # noqa: S310  # http:// was checked
    try:
        with opener.open(request, timeout=_ANSWER_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text or "ok"
    except urllib.error.HTTPError as error:
        raise UsageError(_detail(error.read())) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"no emulators answer at {control}: {error}") from error


def _detail(problem: bytes) -> str:
    try:
        return str(json.loads(problem)["detail"])
    except (ValueError, LookupError, TypeError):
        return problem.decode(errors="replace")[:200]


def run_command(options: argparse.Namespace) -> str:
    """
    Carry out `split`, `merge` or `fault`.
    """
    if options.command == "fault":
        path = f"/{options.emulator}/faults"
        if options.clear:
            return command(options.control, path, None, method="DELETE")
        return command(options.control, path, _rule(options.rule))
    named = {"database": options.database, "container": options.container}
    where = {**{key: name for key, name in named.items() if name}, "completing": options.completing}
    if options.command == "split":
        return command(options.control, "/cosmos/split", {**where, "range": options.range[0]})
    return command(options.control, "/cosmos/merge", {**where, "ranges": options.range})


def _rule(text: str | None) -> dict[str, Any]:
    try:
        rule = json.loads(text or "")
    except ValueError as error:
        raise UsageError(f"the fault must be a JSON object: {error}") from error
    if not isinstance(rule, dict):
        raise UsageError("the fault must be a JSON object")
    return rule


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog=_PROGRAM, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("serve", help="start both emulators (the default)", epilog=_EPILOG)
    for name in ("cosmos", "servicebus"):
        start.add_argument(f"--{name}-port", type=_port, default=0, help="default: a free one")
    start.add_argument("--control-port", type=_port, help=f"default: {CONTROL_PORT}, or a free one")
    start.add_argument(
        "--partitions", type=_count, default=1, help="of each new container, at least (default 1)"
    )
    start.add_argument("--config", type=Path, help="Service Bus topics and subscriptions, a JSON file")
    start.add_argument("--cosmos-latency-ms", type=_milliseconds, default=0.0, help="added to every reply")
    start.add_argument(
        "--servicebus-latency-ms", type=_milliseconds, default=0.0, help="added to every ack of a send"
    )
    start.add_argument("--json", action="store_true", help="print one line of JSON")
    split = commands.add_parser("split", help="split a partition key range")
    split.add_argument("--range", required=True, nargs=1, metavar="ID")
    merge = commands.add_parser("merge", help="merge two neighbouring partition key ranges")
    merge.add_argument("--range", required=True, nargs=2, metavar="ID")
    for change in (split, merge):
        change.add_argument("--database")
        change.add_argument("--container", help="default: the one container whose change feed was read")
        change.add_argument(
            "--completing", type=int, default=0, help="so many requests to the old range get 410/1007 first"
        )
    fault = commands.add_parser("fault", help="add a fault rule, or clear them all")
    fault.add_argument("rule", nargs="?", help='JSON, e.g. {"operation": "batch", "status": 429, "count": 3}')
    fault.add_argument("--emulator", choices=("cosmos", "servicebus"), default="cosmos")
    fault.add_argument("--clear", action="store_true")
    for steering in (split, merge, fault):
        steering.add_argument(
            "--control",
            default=os.environ.get(_CONTROL_VARIABLE, f"http://{_HOST}:{CONTROL_PORT}"),
            metavar="URL",
            help=f"the control address that serve printed (default: ${_CONTROL_VARIABLE}, or port {CONTROL_PORT})",
        )
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {port}")
    return port


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 1000:
        raise argparse.ArgumentTypeError(f"must be from 1 to 1000, not {count}")
    return count


def _milliseconds(text: str) -> float:
    milliseconds = float(text)
    if not 0 <= milliseconds <= 60_000:
        raise argparse.ArgumentTypeError(f"must be from 0 to 60000, not {text}")
    return milliseconds


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line (default: of this process); return 0, or 2 for anything the caller has to change.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    starts_server = not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"))
    options = _parser().parse_args(["serve", *arguments] if starts_server else arguments)
    try:
        if options.command == "serve":
            asyncio.run(serve(options))
        else:
            print(run_command(options))  # noqa: T201  # the output of this command
    except UsageError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)  # noqa: T201  # one line for the user of a shell
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
