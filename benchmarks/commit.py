"""
What a commit costs: CPU of this process and requests, against the same batch sent by the bare SDK.

The server runs in a process of its own and the two ways take turns in many short rounds, so both see the same machine;
the overhead compares their median rounds. A commit is an entity with two events, 1 KB in all.
`python -m benchmarks.commit [--commits N]`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy

from cosmos_outbox import DomainEvent, Entity, Outbox
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox_emulators.cosmos.protocol import RequestKind
from cosmos_outbox_emulators.cosmos.server import CosmosServer

ROUNDS = 60
TEXT = "x" * 200


class Renamed(DomainEvent):
    """
    One of the two events of a commit.
    """

    name: str
    previous_name: str


class Item(Entity):
    """
    The entity of a commit.
    """

    name: str
    description: str = TEXT
    counters: tuple[int, ...] = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """
    One way of committing, over all rounds.
    """

    cpu_ms: list[float]  # a commit, one number a round
    per_second: list[float]

    @property
    def median_cpu(self) -> float:
        return statistics.median(self.cpu_ms)


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


def _bare_batch(container: ContainerProxy) -> Callable[[int], Awaitable[None]]:
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


def _outbox_commit(outbox: Outbox) -> Callable[[int], Awaitable[None]]:
    item = Item(name="name")

    async def commit(number: int) -> None:
        async with outbox.unit_of_work() as uow:
            items = uow.repository(Item)
            if item.is_new:
                items.create(item)
            item.name = f"name {number}"
            for _ in range(2):
                item.record(Renamed(name=item.name, previous_name=f"name {number - 1}"))
            if not item.is_new:
                items.update(item)
            await uow.commit()

    return commit


async def _round(commit: Callable[[int], Awaitable[None]], commits: int) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(commits):
        await commit(number)
    spent, seconds = time.process_time() - cpu, time.perf_counter() - began
    return spent * 1000 / commits, commits / seconds


async def measure(commits: int, server: Connection) -> dict[str, float]:
    """
    Run both ways in turn; return the numbers of the last line.
    """
    connection_string = server.recv()
    async with open_cosmos_client(connection_string=connection_string) as client:
        database = await client.create_database("bench")
        container = await database.create_container("data", PartitionKey("/partitionKey"), default_ttl=-1)
        outbox = Outbox(await open_store(client, "bench", "data"))
        ways = {"bare SDK": _bare_batch(container), "cosmos-outbox": _outbox_commit(outbox)}
        measured = {name: Measured(cpu_ms=[], per_second=[]) for name in ways}
        for commit in ways.values():  # connections, caches, first imports
            await _round(commit, 50)
        gc.collect()
        gc.freeze()  # else a collection of all that was imported falls upon one way or the other by chance
        for number in range(ROUNDS):
            turn = list(ways) if number % 2 == 0 else list(reversed(ways))
            for name in turn:
                cpu_ms, per_second = await _round(ways[name], commits)
                measured[name].cpu_ms.append(cpu_ms)
                measured[name].per_second.append(per_second)

        before = _requests(server)
        await _round(ways["cosmos-outbox"], commits)
        requests = (_requests(server) - before) / commits

    bare, ours = measured["bare SDK"], measured["cosmos-outbox"]
    overhead = ours.median_cpu / bare.median_cpu
    _print_table(measured)
    return {
        "commit_overhead": round(overhead, 3),
        "requests_per_commit": round(requests, 3),
        "commits_per_s": round(statistics.median(ours.per_second), 1),
    }


def _requests(server: Connection) -> int:
    server.send("counts")
    counts: dict[str, int] = server.recv()
    return sum(count for kind, count in counts.items() if kind != RequestKind.ACCOUNT)


def _print_table(measured: dict[str, Measured]) -> None:
    lines = [f"{'way':<16}{'CPU ms / commit':>18}{'least':>10}{'commits / s':>14}"]
    lines += [
        f"{name:<16}{way.median_cpu:>18.3f}{min(way.cpu_ms):>10.3f}{statistics.median(way.per_second):>14.0f}"
        for name, way in measured.items()
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """
    Run from the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=60, help="commits a round (default 60)")
    options = parser.parse_args()
    with server_process() as server:
        result = asyncio.run(measure(options.commits, server))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
