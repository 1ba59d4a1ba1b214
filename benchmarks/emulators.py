"""
Measure how much work the emulators do per second of CPU time, compared with the Python SDKs, and how much memory they need.

A process with the emulators serves a process with the SDKs, which does each kind of work in many rounds. For each kind of work, the
figures are the operations per second of CPU time of each process, and the emulators' figure divided by the SDKs'. If this ratio is above
1, a benchmark is limited by the SDK and not by the emulator. Memory is the growth of the emulators' process while it gets documents and
messages. This benchmark runs only on Linux, because it reads /proc.
`python -m benchmarks.emulators [--rounds N] [--data]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

ROUNDS = 10
TASKS = 16
TEXT = "x" * 500
DOCUMENTS = 20_000
MESSAGES = 20_000
_PAGE = 100
_MILLION = 1_000_000

ENTITIES = {
    "queues": [{"name": "moved"}, {"name": "held"}],
    "topics": [
        {"name": "t", "dedup_window_s": 600, "subscriptions": [{"name": "all", "requires_session": True}]}
    ],
}

Work = Callable[[], Awaitable[int]]


class Server:
    """The process of the emulators. Its methods return the CPU time and the memory that it uses."""

    def __init__(self, process: subprocess.Popen[str], announced: dict[str, str]) -> None:
        self._folder = Path("/proc") / str(process.pid)
        self.cosmos, self.servicebus = announced["cosmos"], announced["servicebus"]

    def cpu_s(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        return int((self._folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """
    The measurements of one kind of work, such as reads: its operations, the CPU seconds of the emulator and of the client, and the seconds
    that passed.
    """

    done: int
    server_s: float
    client_s: float
    wall_s: float

    @property
    def ratio(self) -> float:
        return self.client_s / self.server_s


@asynccontextmanager
async def served(*, data: bool) -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory(prefix="cosmos-outbox-bench-") as directory:
        config = Path(directory) / "config.json"
        config.write_text(json.dumps(ENTITIES))
        command = [sys.executable, "-m", "cosmos_outbox_emulators", "--json", "--config", str(config)]
        command += ["--data", str(Path(directory) / "data")] if data else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220, S603 - our own
            try:
                assert process.stdout is not None  # noqa: S101 - it is a pipe
                yield Server(process, json.loads(process.stdout.readline()))
            finally:
                process.terminate()


async def measured(server: Server, work: Work, rounds: int) -> Measured:
    """Do one kind of work in several rounds, after one round to warm up, and return the measurements."""
    await work()
    server_s, client_s, wall_s = server.cpu_s(), time.process_time(), time.perf_counter()
    done = 0
    for _ in range(rounds):
        done += await work()
    return Measured(
        done=done,
        server_s=max(server.cpu_s() - server_s, 1 / os.sysconf("SC_CLK_TCK")),
        client_s=time.process_time() - client_s,
        wall_s=time.perf_counter() - wall_s,
    )


class Documents:
    """
    The kinds of work that the benchmark does on a Cosmos DB container, with one method for each kind. A method returns how many
    operations it made.
    """

    def __init__(self, container: ContainerProxy) -> None:
        self._container = container
        self._next = 0

    def _document(self, key: str) -> dict[str, str]:
        self._next += 1
        return {"id": str(self._next), "partitionKey": key, "text": TEXT}

    async def _at_once(self, one: Callable[[str], Awaitable[object]], each: int = 8) -> int:
        async def several(key: str) -> None:
            for _ in range(each):
                await one(key)

        await asyncio.gather(*(several(f"key {number}") for number in range(TASKS)))
        return TASKS * each

    async def create(self) -> int:
        return await self._at_once(lambda key: self._container.create_item(self._document(key)))

    async def read(self) -> int:
        self._next += 1
        item = await self._container.create_item(self._document("read"))
        return await self._at_once(lambda _: self._container.read_item(item["id"], "read"))

    async def batch(self) -> int:
        """Commit transactional batches of two operations each, in several tasks at once."""

        async def commit(key: str) -> None:
            await self._container.execute_item_batch(
                [("create", (self._document(key),)) for _ in range(2)], key
            )

        return await self._at_once(commit)

    async def feed(self) -> int:
        """Read the change feed from the beginning, and return the number of documents."""
        feed = self._container.query_items_change_feed(start_time="Beginning", max_item_count=_PAGE)
        return sum([1 async for _ in feed])

    async def fill(self, count: int) -> None:
        for number in range(count // _PAGE):
            operations = [("create", (self._document(f"fill {number}"),)) for _ in range(_PAGE)]
            await self._container.execute_item_batch(operations, f"fill {number}")


async def _send(sender: ServiceBusSender, count: int, session: str | None = None) -> int:
    messages = [ServiceBusMessage(TEXT, session_id=session) for _ in range(_PAGE)]
    for _ in range(count // _PAGE):
        await sender.send_messages(messages)
    return count


async def _moved(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> int:
    """Send messages, receive and complete each of them, and return their number."""
    count = await _send(sender, _PAGE)
    left = count
    while left:
        for message in await receiver.receive_messages(left, max_wait_time=60):
            await receiver.complete_message(message)
            left -= 1
    return count


async def measure(rounds: int, *, data: bool) -> dict[str, float]:
    """Measure all kinds of work, and return the figures for the last line of the output."""
    found: dict[str, Measured] = {}
    async with served(data=data) as server, AsyncExitStack() as stack:
        client = await stack.enter_async_context(CosmosClient.from_connection_string(server.cosmos))
        database = await client.create_database("bench")

        async def documents(name: str) -> Documents:
            return Documents(await database.create_container(name, PartitionKey("/partitionKey")))

        data_ = await documents("data")
        found["create"] = await measured(server, data_.create, rounds)
        found["read"] = await measured(server, data_.read, rounds)
        found["batch of 2"] = await measured(server, data_.batch, rounds)
        found["feed, documents"] = await measured(server, data_.feed, rounds)

        bus = await stack.enter_async_context(ServiceBusClient.from_connection_string(server.servicebus))
        topic = await stack.enter_async_context(bus.get_topic_sender("t"))
        moved = await stack.enter_async_context(bus.get_queue_sender("moved"))
        receiver = await stack.enter_async_context(bus.get_queue_receiver("moved", prefetch_count=_PAGE))
        found["send, messages"] = await measured(server, lambda: _send(topic, 10 * _PAGE, "s"), rounds)
        found["send and receive"] = await measured(server, lambda: _moved(moved, receiver), rounds)

        before = server.memory()
        await (await documents("fill")).fill(DOCUMENTS)
        filled = server.memory()
        held = await stack.enter_async_context(bus.get_queue_sender("held"))
        await _send(held, MESSAGES)
        sent = server.memory()
    _print_table(found)
    return {
        **{f"{_key(kind)}_per_core_s": round(one.done / one.server_s) for kind, one in found.items()},
        **{f"{_key(kind)}_ratio": round(one.ratio, 2) for kind, one in found.items()},
        "least_ratio": round(min(one.ratio for one in found.values()), 2),
        "mb_per_million_documents": round((filled - before) / DOCUMENTS * _MILLION / 2**20),
        "mb_per_million_messages": round((sent - filled) / MESSAGES * _MILLION / 2**20),
    }


def _key(kind: str) -> str:
    return kind.split(",", maxsplit=1)[0].replace(" ", "_")


def _print_table(found: dict[str, Measured]) -> None:
    lines = [f"{'for each second of its CPU':<28}{'emulator':>12}{'SDK':>12}{'ratio':>8}{'a second':>12}"]
    lines += [
        f"{kind:<28}{one.done / one.server_s:>12,.0f}{one.done / one.client_s:>12,.0f}{one.ratio:>8.2f}"
        f"{one.done / one.wall_s:>12,.0f}"
        for kind, one in found.items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each kind of work (default {ROUNDS})")
    parser.add_argument("--data", action="store_true", help="the emulators keep everything on disk")
    options = parser.parse_args()
    if not Path("/proc/self/stat").exists():
        parser.error("this benchmark runs only on Linux: it reads /proc, which does not exist here")
    sys.stdout.write(json.dumps(asyncio.run(measure(options.rounds, data=options.data))) + "\n")


if __name__ == "__main__":
    main()
