"""
Measure how the cost of an event or message grows with the number of partitions, sessions and worker processes.

One worker reads more and more partitions, one consumer handles more and more sessions, and more and more worker processes share
the partitions on a slow network. The emulators run in a process of their own. Each row has the medians of several rounds.

`python -m benchmarks.growth [--quick]`; the last line is one JSON object, from which `benchmarks.charts` draws charts.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from benchmarks.consume import consumer_run
from benchmarks.emulated import Emulated, emulated
from benchmarks.processes import Worker
from benchmarks.relay import EVENTS_IN_COMMIT, relayed
from benchmarks.report import report, show
from benchmarks.ways import RELAY_PAGE
from cosmos_outbox.adapters.servicebus.publisher import open_service_bus_client
from cosmos_outbox_worker.main import collect_seldom

SHARES = (1, 4, 16, 64)  # how many partitions a worker reads, or how many sessions a consumer handles
FLEET = (1, 2, 4, 8)  # how many worker processes there are
FLEET_PARTITIONS = 8
DELAYS_MS = (2, 10, 30)  # the delay of every reply of Cosmos DB and every acknowledgement of a send
_SETTLED_SECONDS = 0.1

Row = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many rounds, events and messages the measurements have."""

    rounds: int
    events: int
    messages: int


FULL = Sizes(rounds=3, events=20_000, messages=1_920)
QUICK = Sizes(rounds=1, events=2_000, messages=128)


async def measure_rows(
    title: str, counts: tuple[int, ...], rounds: int, run: Callable[[int], Awaitable[Row]]
) -> list[Row]:
    """Run a measurement for each of several counts. Return a row for each count, with the medians of all rounds."""
    rows = []
    for count in counts:
        found = [await run(count) for _ in range(rounds)]
        row = {key: round(statistics.median(one[key] for one in found), 3) for key in found[0]}
        show(f"{count} {title}", f"{row['per_second']:.0f} a second, {row['cpu_ms']} ms CPU each")
        rows.append({"count": count} | row)
    return rows


async def measure_partitions(system: Emulated, sizes: Sizes) -> list[Row]:
    """
    Let a worker relay events of 1 to 64 partitions. Return, for each number of partitions, the events per second and the CPU time of
    an event.
    """
    events, in_commit = sizes.events, EVENTS_IN_COMMIT
    data = {n: await system.new_events(events, in_commit=in_commit, partitions=n) for n in SHARES}

    async def run(partitions: int) -> Row:
        meter = await relayed(system, data[partitions], events, page=RELAY_PAGE)
        return {"per_second": meter.per_second, "cpu_ms": meter.cpu_ms}

    return await measure_rows("partitions", SHARES, sizes.rounds, run)


async def measure_sessions(system: Emulated, bus: ServiceBusClient, sizes: Sizes) -> list[Row]:
    """Let a consumer handle 1 to 64 sessions. Return for each number its messages per second and CPU time per message."""

    async def run(sessions: int) -> Row:
        in_session = max(2, sizes.messages // sessions)
        took = await consumer_run(system, bus, sessions=sessions, in_session=in_session, receiver="sdk")
        return {"per_second": took.per_second, "cpu_ms": took.cpu_ms}

    return await measure_rows("sessions", SHARES, sizes.rounds, run)


async def measure_fleet(system: Emulated, sizes: Sizes, delay_ms: float) -> list[Row]:
    """Let 1 to 8 workers share eight partitions. Return for each number their events per second and CPU time per event."""
    data = await system.new_events(sizes.events, in_commit=EVENTS_IN_COMMIT, partitions=FLEET_PARTITIONS)

    async def run(processes: int) -> Row:
        leases, topic = await system.new_leases(), system.new_topic()
        fleet = [
            Worker(system, f"worker-{n}", data=data, leases=leases, topic=topic) for n in range(processes)
        ]
        try:
            await _share(system, leases, processes)
            await system.delay(delay_ms)
            started = time.perf_counter()
            for worker in fleet:
                worker.go()
            await system.until_published(topic, sizes.events)
            per_second = sizes.events / (time.perf_counter() - started)
            await system.delay(0)
            used = [await worker.stop() for worker in fleet]
        finally:
            for worker in fleet:
                worker.kill()
        cpu_ms = sum(one["cpu_s"] for one in used) * 1000 / sizes.events
        return {"per_second": per_second, "cpu_ms": cpu_ms}

    return await measure_rows(f"processes, +{delay_ms} ms", FLEET, sizes.rounds, run)


async def _share(system: Emulated, leases: str, workers: int) -> None:
    """Wait until all workers own the same number of leases."""
    container = system.database.get_container_client(leases)
    owners: list[str | None] = []
    while len(owners) < FLEET_PARTITIONS or {owners.count(owner) for owner in set(owners)} != {
        FLEET_PARTITIONS // workers
    }:
        await asyncio.sleep(_SETTLED_SECONDS)
        owners = [item.get("Owner") async for item in container.read_all_items() if "LeaseToken" in item]


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Run all measurements. Return the rows for the last line of the output, and the ratios that have a goal."""
    async with emulated() as system, open_service_bus_client(connection_string=system.servicebus) as bus:
        collect_seldom()
        rows = {
            "partitions": await measure_partitions(system, sizes),
            "sessions": await measure_sessions(system, bus, sizes),
        } | {f"fleet_{delay}ms": await measure_fleet(system, sizes, delay) for delay in DELAYS_MS}
    fleet = rows[f"fleet_{DELAYS_MS[-1]}ms"]
    return rows | {
        "cpu_ratio_64_partitions": round(
            rows["partitions"][-1]["cpu_ms"] / rows["partitions"][0]["cpu_ms"], 2
        ),
        "cpu_ratio_64_sessions": round(rows["sessions"][-1]["cpu_ms"] / rows["sessions"][0]["cpu_ms"], 2),
        "rate_ratio_two_workers": round(fleet[1]["per_second"] / fleet[0]["per_second"], 2),
    }


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    report(
        measure, full=FULL, quick=QUICK, about=__doc__, shared_by="the emulators, the workers, the consumer"
    )


if __name__ == "__main__":
    main()
