"""
Measure the CPU time and the requests of a commit and of a tracked read, compared with the same operations by the bare SDK.

The bare SDK is opened as its documentation says. The figures `…_our_client` compare with the bare SDK on the client that
`open_cosmos_client` opens, which leaves out a third of the SDK's work for each request. The emulator runs in a process of its own, and
the ways to commit take turns in many short rounds, so that the state of the machine is the same for all. An overhead is the ratio of the
CPU times over all rounds, with a 95 % interval from 2,000 resamplings of the rounds. A commit has an entity and two events, 1 KB in all.
In the second part 64 tasks commit at the same time, each its own entity.
`python -m benchmarks.commit [--commits N]`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import random
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient

from cosmos_outbox import DomainEvent, Entity, Outbox
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer

ROUNDS = 60
TASKS = 64
COMMITS_OF_A_TASK = 16
TEXT = "x" * 200
_WAYS = "bare SDK", "bare, our client", "cosmos-outbox"

Way = Callable[[int], Awaitable[None]]


class Renamed(DomainEvent):
    """Each measured commit writes two events of this class."""

    name: str
    previous_name: str


class Item(Entity):
    """The entity that each measured commit writes."""

    name: str
    description: str = TEXT
    counters: tuple[int, ...] = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of one way to commit or to read, such as by the bare SDK, over all repetitions (rounds)."""

    cpu_ms: list[float]  # the CPU time of one commit or read, as the mean of each repetition
    per_second: list[float]  # the commits or reads per second in each repetition

    @property
    def median_cpu(self) -> float:
        return statistics.median(self.cpu_ms)

    @property
    def median_rate(self) -> float:
        return statistics.median(self.per_second)


async def _serve(answers: Connection) -> None:
    async with CosmosServer() as server:
        answers.send(server.connection_string)
        while True:
            if answers.poll():
                if answers.recv() == "stop":
                    return
                counts = server.gateway.counts
                answers.send({str(kind): int(count) for kind, count in counts.items()})
            await asyncio.sleep(0.01)


def _run_server(answers: Connection) -> None:
    asyncio.run(_serve(answers))


@contextmanager
def server_process() -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run_server, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        ours.send("stop")
        process.join(timeout=5)


def _bare_batch(container: ContainerProxy) -> Way:
    state: dict[str, Any] = {"id": str(uuid.uuid4()), "etag": None, "version": 0}

    async def commit(number: int) -> None:
        key, version = state["id"], state["version"] + 1
        operations: list[Any] = []
        for sequence in range(2):
            event_id = str(uuid.uuid4())
            event = {
                "id": event_id,
                "partitionKey": key,
                "type": "domainEvent",
                "data": {
                    "id": event_id,
                    "action": "Renamed",
                    "createdAt": "2026-01-01T00:00:00.000000Z",
                    "name": f"name {number}",
                    "previousName": f"name {number - 1}",
                },
                "ttl": 864000,
                "meta": {
                    "entityType": "item",
                    "entityId": key,
                    "entityVersion": version,
                    "commitId": key,
                    "sequence": sequence,
                    "schemaVersion": 1,
                },
            }
            operations.append(("create", (event,), {}))
        document = {
            "id": key,
            "partitionKey": key,
            "type": "item",
            "data": {"id": key, "name": f"name {number}", "description": TEXT, "counters": [1, 2, 3]},
            "ttl": -1,
            "version": version,
        }
        if state["etag"] is None:
            operations.append(("create", (document,), {}))
        else:
            operations.append(("replace", (key, document), {"if_match_etag": state["etag"]}))
        answer = await container.execute_item_batch(operations, key)
        state.update(etag=answer[-1]["eTag"], version=version)

    return commit


def _outbox_commit(outbox: Outbox) -> Way:
    item = Item(name="name")

    async def commit(number: int) -> None:
        async with outbox.unit_of_work() as uow:
            items = uow.repository(Item)
            if item.is_new:
                items.create(item)
            else:
                items.update(item)
            item.name = f"name {number}"
            for _ in range(2):
                item.record(Renamed(name=item.name, previous_name=f"name {number - 1}"))
            await uow.commit()

    return commit


def _bare_read(container: ContainerProxy, item_id: str) -> Way:
    async def read(_: int) -> None:
        await container.read_item(item_id, item_id)

    return read


def _tracked_read(outbox: Outbox, item_id: str) -> Way:
    async def read(_: int) -> None:
        async with outbox.unit_of_work() as uow:
            await uow.repository(Item).read(item_id)
            await uow.commit()  # writes nothing; its check whether the entity changed is part of the cost

    return read


async def _round(way: Way, count: int) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        await way(number)
    spent, seconds = time.process_time() - cpu, time.perf_counter() - began
    return spent * 1000 / count, count / seconds


async def _round_at_once(ways: Sequence[Way], count: int) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_round(way, count) for way in ways))
    spent, seconds = time.process_time() - cpu, time.perf_counter() - began
    return spent * 1000 / count / len(ways), count * len(ways) / seconds


async def _in_turn(
    ways: Sequence[Callable[[], Awaitable[tuple[float, float]]]], rounds: int
) -> list[Measured]:
    measured = [Measured(cpu_ms=[], per_second=[]) for _ in ways]
    for number in range(-1, rounds):  # the first round warms up connections, caches and imports
        turn = list(zip(ways, measured, strict=True))
        first = number % len(turn)  # rotate the order, so that no way always comes first
        for way, found in (*turn[first:], *turn[:first]):
            cpu_ms, per_second = await way()
            if number >= 0:
                found.cpu_ms.append(cpu_ms)
                found.per_second.append(per_second)
        if number < 0:
            gc.collect()
            # Keep the garbage collector from scanning all imported objects, which by chance would slow down
            # only one of the ways.
            gc.freeze()
    return measured


async def measure(commits: int, server: Connection) -> dict[str, float]:
    """Measure all ways to commit and to read in turn, and return the figures for the last line of the output."""
    connection_string = server.recv()
    async with (
        open_cosmos_client(connection_string=connection_string) as client,
        CosmosClient.from_connection_string(connection_string) as bare_client,
    ):
        database = await client.create_database("bench")
        container = await database.create_container("data", PartitionKey("/partitionKey"), default_ttl=-1)
        outbox = Outbox(await open_store(client, "bench", "data"))
        bare_container = bare_client.get_database_client("bench").get_container_client("data")
        item = Item(name="read")
        async with outbox.unit_of_work() as uow:
            uow.repository(Item).create(item)
            await uow.commit()

        ways = (
            _bare_batch(bare_container),
            _bare_batch(container),
            _outbox_commit(outbox),
        )
        commit = await _in_turn([partial(_round, way, commits) for way in ways], ROUNDS)
        reads = (
            _bare_read(bare_container, item.id),
            _bare_read(container, item.id),
            _tracked_read(outbox, item.id),
        )
        read = await _in_turn([partial(_round, way, commits) for way in reads], ROUNDS // 2)
        many = [
            [_bare_batch(bare_container) for _ in range(TASKS)],
            [_bare_batch(container) for _ in range(TASKS)],
            [_outbox_commit(outbox) for _ in range(TASKS)],
        ]
        at_once = await _in_turn(
            [partial(_round_at_once, ways, COMMITS_OF_A_TASK) for ways in many], ROUNDS // 4
        )

        before = _requests(server)
        await _round(ways[2], commits)
        requests = (_requests(server) - before) / commits

    _print_table("commit", commit)
    _print_table("tracked read", read)
    _print_table(f"commit, {TASKS} tasks", at_once)
    bare, our_client, ours = commit
    low, high = _interval(bare, ours)
    return {
        "commit_overhead": _overhead(bare, ours),
        "commit_overhead_low": low,
        "commit_overhead_high": high,
        "commit_overhead_our_client": _overhead(our_client, ours),
        "tracked_read_overhead": _overhead(read[0], read[2]),
        "tracked_read_overhead_our_client": _overhead(read[1], read[2]),
        "requests_per_commit": round(requests, 3),
        "commits_per_s": round(ours.median_rate, 1),
        "commits_per_s_64": round(at_once[2].median_rate, 1),
        "concurrent_ratio": _ratio(at_once[2], at_once[0]),
        "concurrent_ratio_our_client": _ratio(at_once[2], at_once[1]),
    }


def _overhead(bare: Measured, ours: Measured) -> float:
    return round(sum(ours.cpu_ms) / sum(bare.cpu_ms), 3)


def _ratio(ours: Measured, bare: Measured) -> float:
    return round(ours.median_rate / bare.median_rate, 3)


def _interval(bare: Measured, ours: Measured) -> tuple[float, float]:
    rounds, chance = list(zip(bare.cpu_ms, ours.cpu_ms, strict=True)), random.Random(1)
    found = []
    for _ in range(2000):
        drawn = chance.choices(rounds, k=len(rounds))
        found.append(sum(ours for _, ours in drawn) / sum(bare for bare, _ in drawn))
    found.sort()
    return round(found[50], 3), round(found[1949], 3)


def _requests(server: Connection) -> int:
    server.send("counts")
    counts: dict[str, int] = server.recv()
    return sum(count for kind, count in counts.items() if kind != RequestKind.ACCOUNT)


def _print_table(what: str, ways: Sequence[Measured]) -> None:
    lines = [f"{what:<20}{'CPU ms each':>14}{'least':>10}{'a second':>12}"]
    lines += [
        f"{name:<20}{way.median_cpu:>14.3f}{min(way.cpu_ms):>10.3f}{way.median_rate:>12.0f}"
        for name, way in zip(_WAYS, ways, strict=True)
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=60, help="commits a round (default 60)")
    options = parser.parse_args()
    with server_process() as server:
        result = asyncio.run(measure(options.commits, server))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
