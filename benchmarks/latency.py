"""
Measure how long an event takes from its commit until a receiver gets it from the topic. Under load, the relay is compared with a bare loop
over the SDKs of Cosmos DB and Service Bus. The relay is also measured while events come seldom.

The emulators run in a process of their own. The relay, or the bare loop, runs in another. Of two rounds, the one with the lower
99th percentile counts, because other programs may have slowed down the other round.
`python -m benchmarks.latency [--quick]`; the last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from benchmarks.emulated import Emulated, commit_events, emulated
from benchmarks.processes import running_loop, running_worker
from benchmarks.relay import EVENTS_IN_COMMIT, KEYS
from benchmarks.report import percentile, report, show
from cosmos_outbox.adapters.servicebus.publisher import open_service_bus_client
from cosmos_outbox_worker.main import collect_seldom

ROUNDS = 2
RANGES = 4
WARM_COMMITS = 16  # enough commits to reach all four ranges, whose keys are spread by a hash
# With few events, the measurement lasts this many times as long: at 1 event/s, each of the four ranges gets an event only every 4 s.
SELDOM_LONGER = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long each measurement takes."""

    seconds: float  # for how long one measurement commits events


FULL, QUICK = Sizes(seconds=10), Sizes(seconds=3)


async def measure_latencies(system: Emulated, bus: ServiceBusClient, sizes: Sizes) -> dict[str, float]:
    """
    Measure the relay and the bare loop under load. Return the 50th and 99th percentile of the time from just before a commit is sent until
    its events are received.
    """
    found: dict[str, float] = {}
    for rate in (50, 500):
        rounds: dict[str, list[tuple[float, float]]] = {"bare loop": [], "relay": []}
        for _ in range(ROUNDS):
            for way, measured in rounds.items():
                data, topic = await system.new_events(0), system.new_topic()
                async with (_relaying if way == "relay" else running_loop)(system, data, topic):
                    latencies = await _latencies(system, bus, data, topic, rate=rate, seconds=sizes.seconds)
                measured.append((percentile(latencies, 0.99), percentile(latencies, 0.5)))
        for way, measured in rounds.items():
            p99, p50 = min(measured)
            show(f"{rate} events/s, {way}: p50 | p99", f"{p50:.1f} | {p99:.1f} ms")
            prefix = "bare_" if way == "bare loop" else ""
            found |= {f"{prefix}p50_ms_{rate}": p50, f"{prefix}p99_ms_{rate}": p99}
        found[f"p50_ratio_{rate}"] = round(found[f"p50_ms_{rate}"] / found[f"bare_p50_ms_{rate}"], 2)
    return found


async def measure_seldom(system: Emulated, bus: ServiceBusClient, sizes: Sizes) -> dict[str, float]:
    """
    Measure the relay while few events come to four ranges. Return the 50th and 99th percentile of the time from just before a commit is
    sent until its events are received. Return also how often per second the relay reads the change feed of each range.
    """
    found: dict[str, float] = {}
    seconds = sizes.seconds * SELDOM_LONGER
    for rate in (1, 5, 20):
        data, topic = await system.new_events(0, partitions=RANGES), system.new_topic()
        async with _relaying(system, data, topic):
            reads = await system.requests("changefeed")
            latencies = await _latencies(
                system, bus, data, topic, rate=rate, seconds=seconds, warm=WARM_COMMITS
            )
            reads = await system.requests("changefeed") - reads
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        each = round(reads / seconds / RANGES, 1)
        show(f"{rate} events/s, {RANGES} ranges: p50 | p99", f"{p50} | {p99} ms, {each} reads/s of a range")
        found |= {f"seldom_p50_ms_{rate}": p50, f"seldom_p99_ms_{rate}": p99, f"seldom_reads_{rate}": each}
    return found


@asynccontextmanager
async def _relaying(system: Emulated, data: str, topic: str) -> AsyncIterator[None]:
    async with running_worker(system, data=data, leases=await system.new_leases(), topic=topic) as worker:
        worker.go()
        yield


async def _latencies(
    system: Emulated,
    bus: ServiceBusClient,
    data: str,
    topic: str,
    *,
    rate: int,
    seconds: float,
    warm: int = 1,
) -> list[float]:
    container = system.database.get_container_client(data)
    in_commit = EVENTS_IN_COMMIT if rate > 100 else 1  # noqa: PLR2004 - where one event a commit is too much CPU
    wanted = int(rate * seconds)
    latencies: list[float] = []
    flowing = asyncio.Event()

    async def receive() -> None:
        receiver = bus.get_subscription_receiver(
            topic, "all", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=500
        )
        async with receiver:
            # Do not use `receive_messages` here: after the first message it waits 200 ms for more, which
            # would count as latency.
            async for message in receiver:
                latencies.append((time.time_ns() - json.loads(str(message))["createdNs"]) / 1e6)
                if len(latencies) >= warm * in_commit:
                    flowing.set()
                if len(latencies) >= wanted + warm * in_commit:
                    return

    async with asyncio.timeout(seconds * 3 + 60), asyncio.TaskGroup() as group:
        group.create_task(receive())
        # Leave out the latencies of the first commits: these open links and connections, and the relay polls
        # a range slowly until the first event comes.
        for number in range(warm):
            await commit_events(container, f"key-{number}", 0, in_commit, created_ns=time.time_ns())
        await flowing.wait()
        started = time.perf_counter()
        for number in range(wanted // in_commit):
            await asyncio.sleep(max(0.0, started + number * in_commit / rate - time.perf_counter()))
            key = f"key-{number % KEYS}"
            group.create_task(commit_events(container, key, number, in_commit, created_ns=time.time_ns()))
    return latencies[warm * in_commit :]


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Run all measurements, and return the figures for the last line of the output."""
    async with emulated() as system, open_service_bus_client(connection_string=system.servicebus) as bus:
        collect_seldom()  # this process commits and receives, and collects garbage as seldom as a worker
        return await measure_latencies(system, bus, sizes) | await measure_seldom(system, bus, sizes)


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    report(measure, full=FULL, quick=QUICK, about=__doc__, shared_by="the emulators, the relay and the load")


if __name__ == "__main__":
    main()
