"""Run the commands `demo` and `run`: start the processes, print what happens, and return the exit code."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from cosmos_outbox_testing.verify.child_processes import Child, Children
from demo.child_processes import show_tails, with_children
from demo.job import DemoOptions, run_demo
from demo.progress import Progress
from demo.received import RecordReader
from demo.report import explain, table, to_json
from demo.stack import DIRECTORY_CONSUMER, OF_CONSUMERS, Stack, StackOptions, open_stack
from demo.view import shown

INTERRUPTED = 128
FOLLOW_SECONDS = 0.2


async def demo(options: DemoOptions, *, as_json: bool) -> int:
    """Run the demo. Return 0 only if no event was lost, duplicated or out of order, and no process died by itself."""
    # With --json, only the JSON object is written to stdout. Everything else goes to stderr.
    console = Console(stderr=True, force_terminal=False) if as_json else Console()

    async def work(children: Children, directory: Path) -> int:
        progress = Progress(contacts_wanted=options.load.contacts, notes=_about(options))
        async with shown(progress, console):
            outcome = await run_demo(options, children, directory, progress)
        console.print(table(outcome))
        explain(outcome, console)
        if not outcome.passed:
            show_tails([child for child in children.all if child.name.startswith("worker")], console)
        if as_json:
            sys.stdout.write(to_json(outcome) + "\n")
        return 0 if outcome.passed else 1

    return await with_children(work, console)


def _about(options: DemoOptions) -> list[str]:
    load, stack = options.load, options.stack
    return [
        f"{load.contacts} contacts x {load.changes} changes = {load.contacts * load.changes} events",
        f"{load.concurrency} contacts at a time, {stack.partitions} partitions, {stack.workers} workers",
        f"lease times of this demo: {stack.leases}",
    ]


async def run(options: StackOptions) -> int:
    """
    Run all processes until Ctrl-C or SIGTERM, and then return 0. Print every message that the subscriber receives.
    """
    console = Console()

    async def work(children: Children, directory: Path) -> int:
        console.print("starting emulators, API, workers, subscriber and consumers …")
        async with open_stack(children, directory, options) as stack:
            await asyncio.to_thread(
                (directory / "env").write_text, exports(stack.environment), encoding="utf-8"
            )
            pages = await children.guard(status_pages([*stack.workers, *stack.consumers]))
            console.print(_how_to_use(stack, directory, pages), markup=False, highlight=False, soft_wrap=True)

            def told(child: Child) -> None:
                said = f"{child.name} (pid {child.pid}) died: {child.state}. It is started again."
                console.print(said, style="yellow", highlight=False, soft_wrap=True)

            return await children.guard(_served(stack, console, told))

    code = await with_children(work, console)
    return 0 if code > INTERRUPTED else code


async def _served(stack: Stack, console: Console, told: Callable[[Child], None]) -> int:
    async with asyncio.TaskGroup() as group:
        group.create_task(stack.replace_what_dies(told))
        group.create_task(_follow(stack, console))
    return 0


async def _follow(stack: Stack, console: Console) -> None:
    reader = RecordReader(stack.record)
    while True:
        for message in reader.read_new():
            console.print(
                f"received {message.subject} of contact {message.session_id}, version {message.entity_version}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        await asyncio.sleep(FOLLOW_SECONDS)


def exports(environment: Mapping[str, str]) -> str:
    """Return shell `export` lines for the OUTBOX_ settings of a stack, so that commands in another terminal can use it."""
    settings = {name: text for name, text in environment.items() if name.startswith("OUTBOX_")}
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in sorted(settings.items()))


async def status_pages(programs: Sequence[Child]) -> str:
    """Wait until each worker and consumer has logged the address of its status page. Return the addresses, one a line."""
    while True:
        said = {
            one.name: re.findall(r"status page at (http\S+/)", one.log.read_text("utf-8")) for one in programs
        }
        if all(said.values()):
            return "".join(f"\n  {name:12} {urls[-1]}" for name, urls in said.items())
        await asyncio.sleep(0.1)


def _how_to_use(stack: Stack, logs: Path, pages: str) -> str:
    processes = ", ".join(f"{child.name} {child.pid}" for child in stack.children.all)
    outbox = Path(sys.executable).with_name("cosmos-outbox")
    of_consumers = " ".join(f"{name}={text}" for name, text in OF_CONSUMERS.items())
    return f"""
API           {stack.api_url}/docs
Cosmos DB     {stack.cosmos}
Service Bus   {stack.servicebus}
fault control {stack.control}
processes     {processes}
logs          {logs}

The status page of each worker and consumer shows what it does, and what stops it:
{pages}

Create a contact; its event is printed here when the subscriber receives it:

  curl -i {stack.api_url}/api/contacts -H 'content-type: application/json' \\
    -d '{{"name": {{"firstName": "Ada", "lastName": "Lovelace"}}, "description": "first", "email": "ada@example.com",
         "company": {{"companyName": "Engines", "street": "Main Street", "houseNumber": "1",
                     "postalCode": "12345", "city": "London", "country": "UK"}}}}'

Split a range of the container; no event may get lost, and none may come out of order:

  {sys.executable} -m cosmos_outbox_emulators split --range 0 --control {stack.control}

Look at it from another terminal, with its settings in the environment:

  . {shlex.quote(str(logs / "env"))}
  {outbox} doctor
  {of_consumers} {outbox} status --consumer {DIRECTORY_CONSUMER}

Ctrl-C stops everything.
"""
