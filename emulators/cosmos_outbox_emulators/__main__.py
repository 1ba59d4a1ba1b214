"""
The command line of the emulators. `serve` starts the Cosmos DB emulator and the Service Bus emulator. `split`, `merge` and
`fault` change emulators that are running.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cosmos_outbox_emulators.control_commands import run_command
from cosmos_outbox_emulators.cosmos import deviations as cosmos_deviations
from cosmos_outbox_emulators.process import CONTROL_PORT, HOST, serve
from cosmos_outbox_emulators.servicebus import deviations as servicebus_deviations
from cosmos_outbox_emulators.usage import OneLineParser, UsageError

_PROGRAM = "cosmos-outbox-emulators"
_CONTROL_VARIABLE = "EMULATORS_CONTROL"
_EPILOG = """\
The Service Bus configuration is JSON: {"topics": [{"name": "events", "dedup_window_s": 600,
"subscriptions": [{"name": "all", "requires_session": true}]}]}. So is the seed: {"databases": [{"id": "shop",
"containers": [{"id": "orders", "partitionKey": "/partitionKey", "items": []}]}]}
"""


_USAGE = "%(prog)s [serve] [options]\n       %(prog)s {split,merge,fault} [options]"


def _parser() -> argparse.ArgumentParser:
    serving = _serve_options()
    parser = OneLineParser(
        prog=_PROGRAM,
        usage=_USAGE,
        description="Start both emulators, or change emulators that are running.",
        epilog=_EPILOG,
        parents=[serving],  # only `serve` reads these options, but --help without a command lists them, too
    )
    commands = parser.add_subparsers(dest="command", required=True, title="commands", prog=_PROGRAM)
    commands.add_parser("serve", help="start both emulators (the default)", epilog=_EPILOG, parents=[serving])
    split = commands.add_parser("split", help="split a partition key range")
    split.add_argument("--range", required=True, nargs=1, metavar="ID")
    merge = commands.add_parser("merge", help="merge two neighbouring partition key ranges")
    merge.add_argument("--range", required=True, nargs=2, metavar="ID")
    for change in (split, merge):
        change.add_argument("--database")
        change.add_argument("--container", help="default: the only container whose change feed was read")
        change.add_argument(
            "--completing", type=int, default=0, help="how many requests to the old range get 410/1007 first"
        )
    fault = commands.add_parser("fault", help="add a fault rule to one emulator, or clear all of its rules")
    fault.add_argument("rule", nargs="?", help='JSON, e.g. {"operation": "batch", "status": 429, "count": 3}')
    fault.add_argument("--emulator", choices=("cosmos", "servicebus"), default="cosmos")
    fault.add_argument("--clear", action="store_true")
    for steering in (split, merge, fault):
        steering.add_argument(
            "--control",
            default=os.environ.get(_CONTROL_VARIABLE, f"http://{HOST}:{CONTROL_PORT}"),
            metavar="URL",
            help=f"the control address that serve printed (default: ${_CONTROL_VARIABLE}, or port {CONTROL_PORT})",
        )
    return parser


def _serve_options() -> OneLineParser:
    parser = OneLineParser(add_help=False)
    add = parser.add_argument_group("options of serve").add_argument
    for name in ("cosmos", "servicebus"):
        add(f"--{name}-port", type=_port, default=0, metavar="PORT", help="default: a free port")
    add("--host", default=HOST, help=f"the address to listen on (default {HOST})")
    add("--control-port", type=_port, metavar="PORT", help=f"default: {CONTROL_PORT}, or a free port")
    add(
        "--partitions",
        type=_count,
        default=1,
        metavar="N",
        help="least number of partitions of each new container (default 1)",
    )
    add(
        "--config", type=Path, metavar="FILE", help="Service Bus entities: JSON, also Microsoft's Config.json"
    )
    add("--seed", type=Path, metavar="FILE", help="Cosmos DB databases, containers and items: JSON")
    add("--data", type=Path, metavar="DIR", help="keep everything in this folder (default: nothing on disk)")
    add("--cosmos-latency-ms", type=_milliseconds, default=0.0, metavar="MS", help="added to every reply")
    add(
        "--servicebus-latency-ms",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="added to every acknowledgement of a message that a client sends",
    )
    add("--tls", action="store_true", help="https and amqps, with a certificate whose path is printed")
    add(
        "--servicebus-https-port",
        type=_port,
        metavar="PORT",
        help="with --tls: HTTP management and WebSockets at this port too; SDKs look for them at 443",
    )
    add(
        "--strict-ids",
        action="store_true",
        help="refuse the item ids that Azure's gateway was seen to refuse",
    )
    add(
        "--deviate",
        choices=(*cosmos_deviations.DEVIATIONS, *servicebus_deviations.DEVIATIONS),
        metavar="NAME",
        help="differ from Azure in one way, to prove that a verifier notices the difference",
    )
    add("--json", action="store_true", help="print one line of JSON")
    return parser


def _number(least: int, most: int, kind: type[int | float] = int) -> Callable[[str], float]:
    """Return a function with which argparse reads a number. The function refuses a number below `least` or above `most`."""

    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"must be a number from {least} to {most}, not {text}")
        return number

    return read


_port, _count, _milliseconds = _number(0, 65535), _number(1, 1000), _number(0, 60_000, float)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run a command with these arguments, by default those of this process, and return its exit code. After a mistake that the
    caller can correct, the code is 2 and one line on stderr describes the mistake. Otherwise the code is 0.
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
