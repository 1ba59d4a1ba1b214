"""
Measure how much a worker delays the commits of a service if the worker has a backlog and the request units of the container are scarce.
Compare a worker with low read priority, a worker with the default priority, and an idle worker.

A service commits an entity with an event at a fixed rate, and the container has only a few more request units than these commits need. If a
commit is refused, the service tries again as the library does. The delay of a commit counts from the time at which it was due. Meanwhile a
worker runs in a process of its own. It is idle, or it has a backlog of small entities, of which every tenth has an event.

The request units are limited before the worker starts. The backlog has to last for the whole round: if the worker finishes it earlier, the
round fails. The kinds of worker take turns with the same number of rounds, and each round has a container, leases and a topic of its own.
The ratios compare the 99th percentiles of the delays over all rounds.

Each reply takes 20 ms longer than the emulator needs, as on a network. The worker process runs with a lower CPU priority, because it would
run on another machine, and sends to an emulator of its own. The emulator of Cosmos DB is a single process, so its work for the worker is
still part of the delays. This part is small: a page of many small documents takes many request units, but little CPU time. Refused commits
are counted as well. Their number depends only on the request units, and not on what else the machine does.

`python -m benchmarks.priority [--quick]`; the last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from azure.cosmos.aio import ContainerProxy

from benchmarks.commit import Item, Renamed
from benchmarks.emulated import DATABASE, PARKED, Emulated, commit_events, emulated
from benchmarks.report import percentile, report, show
from cosmos_outbox import Outbox
from cosmos_outbox.adapters.cosmos.store import open_store
from cosmos_outbox.errors import OutboxError

COMMITS_PER_SECOND = 20
REQUEST_UNITS = 300  # per second; 20 commits of 12 to 14 request units each leave little for the worker
REPLY_MS = 20
# How many entities and events are in each batch of the backlog, which is written before the request units are
# limited.
ENTITIES, EVENTS = 100, 10
WAYS: Mapping[str, tuple[bool, Mapping[str, str]]] = {
    "idle": (False, {}),
    "low": (True, {"OUTBOX_PRIORITY": "low"}),
    "none": (True, {}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many rounds the measurement has, for how many seconds each commits, and how large the backlog of the worker is."""

    rounds: int
    seconds: int
    backlog: int  # batches


FULL = Sizes(rounds=4, seconds=12, backlog=600)
QUICK = Sizes(rounds=1, seconds=4, backlog=400)


@asynccontextmanager
async def worker(
    system: Emulated, bus: Emulated, data: str, topic: str, variables: Mapping[str, str]
) -> AsyncIterator[None]:
    """Run a worker in a process of its own for as long as the block lasts, and kill it at the end."""
    environment = {
        "OUTBOX_COSMOS_CONNECTION_STRING": system.cosmos,
        "OUTBOX_COSMOS_DATABASE": DATABASE,
        "OUTBOX_COSMOS_CONTAINER": data,
        "OUTBOX_LEASE_CONTAINER": await system.new_leases(),
        "OUTBOX_PARKED_CONTAINER": PARKED,
        "OUTBOX_SERVICEBUS_CONNECTION_STRING": bus.servicebus,
        "OUTBOX_TOPIC": topic,
        "OUTBOX_HEALTH_PORT": "0",
    }
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "19", sys.executable, "-m", "cosmos_outbox_worker", "worker"),
        env={**os.environ, **environment, **variables},
        stderr=DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def commit_delays(outbox: Outbox, seconds: int) -> list[float]:
    """Commit at a fixed rate. Return for each commit the milliseconds from the time at which it was due until it was done."""
    loop, delays, given_up = asyncio.get_running_loop(), list[float](), 0
    first = loop.time() + 0.1

    async def commit(due: float) -> None:
        nonlocal given_up
        try:
            async with outbox.unit_of_work() as uow:
                item = Item(name="name")
                uow.repository(Item).create(item)
                item.record(Renamed(name=item.name, previous_name=""))
                await uow.commit()
        except OutboxError:  # the commit was refused again and again, up to its deadline
            given_up += 1
        delays.append((loop.time() - due) * 1000)

    async with asyncio.TaskGroup() as group:
        for number in range(seconds * COMMITS_PER_SECOND):
            due = first + number / COMMITS_PER_SECOND
            await asyncio.sleep(due - loop.time())
            group.create_task(commit(due))
    if given_up:
        show("commits that were given up", f"{given_up} of {len(delays)}")
    return delays


async def write_batch(container: ContainerProxy, number: int) -> None:
    """Write entities of one partition key and some events in one transactional batch."""
    await commit_events(container, key := f"key-{number}", number * EVENTS, EVENTS)
    entities = [{"id": f"entity-{one}", "partitionKey": key, "type": "item"} for one in range(ENTITIES)]
    await container.execute_item_batch([("create", (entity,), {}) for entity in entities], key)


async def one_round(system: Emulated, bus: Emulated, way: str, sizes: Sizes) -> tuple[list[float], int, int]:
    """
    Commit at a fixed rate while a worker runs. Return the delays of the commits, how often a commit was refused, and how many messages
    the worker sent meanwhile.

    Raises:
        SystemExit: the backlog was finished too early, or the worker sent no more messages than there were commits.
    """
    behind, variables = WAYS[way]
    data = await system.new_events(0)
    container = system.database.get_container_client(data)
    batches = sizes.backlog if behind else 1
    for number in range(batches):
        await write_batch(container, number)
    outbox = Outbox(await open_store(system.client, DATABASE, data))
    topic = bus.new_topic()
    await system.delay(REPLY_MS)
    await system.throttle(data, REQUEST_UNITS)
    async with worker(system, bus, data, topic, variables):
        await bus.until_published(topic, EVENTS)
        await commit_delays(outbox, 1)  # this warms up connections, caches and imports
        before, refused = await bus.published(topic), await system.throttled()
        delays = await commit_delays(outbox, sizes.seconds)
        after, refused = await bus.published(topic), await system.throttled() - refused
        await system.delay(0)
    await system.database.delete_container(data)
    # The worker reads the backlog before the commits that were made during the measurement. So while a backlog is left, all
    # messages that it sends are from the backlog.
    sent, left = after - before, batches * EVENTS - after
    if behind and (sent <= len(delays) or left <= 0):
        raise SystemExit(
            f"priority {way}: the backlog ended, or the worker hardly sent ({sent} sent, {len(delays)} commits, {left} events left)"
        )
    return delays, refused, sent


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Measure each kind of worker in turn, and return the figures for the last line of the output."""
    delays: dict[str, list[float]] = {way: [] for way in WAYS}
    sent, refused = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
    load = [f"{one:.1f}" for one in os.getloadavg()]
    show("load of the last 1, 5 and 15 minutes", ", ".join(load))
    async with emulated() as system, emulated() as bus:
        for _ in range(sizes.rounds):
            for way in WAYS:
                found, refusals, messages = await one_round(system, bus, way, sizes)
                delays[way] += found
                sent[way] += messages
                refused[way] += refusals
                show(
                    f"  {way}",
                    f"p50 {percentile(found, 0.5)}  p99 {percentile(found, 0.99)} ms, {messages} sent",
                )
    p99 = {way: percentile(found, 0.99) for way, found in delays.items()}
    seconds = sizes.rounds * sizes.seconds
    for way, found in delays.items():
        show(
            f"commits beside a worker: {way}",
            f"p50 {percentile(found, 0.5)}  p99 {p99[way]} ms; {refused[way]} refusals; {sent[way] / seconds:.0f} messages a second",
        )
    return {
        **{f"commit_p99_ms_{way}": value for way, value in p99.items()},
        "commit_p99_ratio": round(p99["low"] / p99["idle"], 3),
        "commit_p99_ratio_without": round(p99["none"] / p99["idle"], 3),
        "refusals_low": refused["low"],
        "refusals_without": refused["none"],
        "messages_per_s_low": round(sent["low"] / seconds, 1),
        "messages_per_s_without": round(sent["none"] / seconds, 1),
    }


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    report(measure, full=FULL, quick=QUICK, about=__doc__, shared_by="emulators, worker and the commits")


if __name__ == "__main__":
    main()
