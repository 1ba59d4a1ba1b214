"""
Measure the relay: compared with a bare loop over the SDKs and with the design of Microsoft's .NET sample, and with a growing backlog.

The emulators run in a process of their own. The relay and the bare loop take turns in several rounds, and a figure is the median of all
rounds. The design of the sample has only one round, because it is slow.

`python -m benchmarks.relay [--quick]`; the last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from benchmarks.emulated import Emulated, emulated
from benchmarks.processes import running_worker
from benchmarks.report import beside, report, show, spread
from benchmarks.ways import PAGE, RELAY_PAGE, bare_loop, relay, sample_design
from cosmos_outbox.adapters.servicebus import encoding
from cosmos_outbox.adapters.servicebus.publisher import open_service_bus_client
from cosmos_outbox_worker.main import collect_seldom

KEYS = 1000
DELAYS_MS = (0, 5, 20)
SLOW_ACK_MS = 200
LARGE_TEXT, MANY_LEASES = "x" * 40_000, 100
EVENTS_IN_COMMIT = 5  # several, so that the committing process needs little CPU for an event
# How many events the design of Microsoft's sample sends, for each network delay in ms. It is slow: with a delay of
# 20 ms, 150 events take seven seconds.
SAMPLE_BATCHES = {0: 1000, 5: 400, 20: 150}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many rounds, events and seconds the measurements have."""

    rounds: int
    events: int
    seconds: float  # for how long a worker sends to a slow broker
    backlog: tuple[int, ...]
    scale_events: int
    large_events: int


FULL = Sizes(
    rounds=10,
    events=6000,
    seconds=10,
    backlog=(1_000, 10_000, 100_000),
    scale_events=20_000,
    large_events=3_000,
)
QUICK = Sizes(rounds=2, events=1500, seconds=3, backlog=(1_000, 5_000), scale_events=4_000, large_events=300)


class Meter:
    """
    Measures messages per second and CPU time, from the first batch that the topic accepted to the last. So the time to start and to
    open links is not counted.
    """

    def __init__(self, wanted: int) -> None:
        self.done = asyncio.Event()
        self._wanted, self._seen, self._first = wanted, 0, 0
        self._started = self._ended = self._cpu_before = self._cpu_after = 0.0

    def accepted(self, messages: int) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        if not self._seen:
            self._started, self._cpu_before, self._first = now, cpu, messages
        self._seen += messages
        self._ended, self._cpu_after = now, cpu
        if self._seen >= self._wanted:
            self.done.set()

    @property
    def per_second(self) -> float:
        return (self._seen - self._first) / (self._ended - self._started)

    @property
    def cpu_ms(self) -> float:
        """Return the CPU time of this process per message, in milliseconds."""
        return (self._cpu_after - self._cpu_before) * 1000 / (self._seen - self._first)


async def relayed(system: Emulated, data: str, events: int, *, page: int = PAGE) -> Meter:
    """
    Run the relay until `events` messages are sent to a new topic, and return the measurements. For long pages, the topic accepts batches
    of 1 MB, as in the Premium tier.
    """
    meter = Meter(events)
    await relay(
        system.cosmos,
        system.servicebus,
        data=data,
        leases=await system.new_leases(),
        topic=system.new_topic(premium=page > PAGE),
        accepted=meter.accepted,
        stop=meter.done,
        page=page,
    )
    return meter


async def loop_speed(batches: AsyncGenerator[int, None], events: int) -> float:
    """
    Return how many messages per second the bare loop or the sample's design sends. `batches` runs it, and yields the size of each batch
    that the topic accepted.
    """
    meter = Meter(events)
    async with aclosing(batches) as sent:
        async for messages in sent:
            meter.accepted(messages)
            if meter.done.is_set():
                break
    return meter.per_second


async def compare_with_ceiling(system: Emulated, bus: ServiceBusClient, data: str, sizes: Sizes) -> float:
    """Run the relay and a loop of plain SDK calls in turn. Return the relay's messages per second divided by the loop's."""
    container = system.database.get_container_client(data)
    bare: list[float] = []
    ours: list[float] = []

    async def run_bare() -> None:
        bare.append(await loop_speed(bare_loop(container, bus, system.new_topic()), sizes.events))

    async def run_ours() -> None:
        ours.append((await relayed(system, data, sizes.events)).per_second)

    for number in range(sizes.rounds):
        first, second = (run_bare, run_ours) if number % 2 else (run_ours, run_bare)
        await first()
        await second()
    spread("(a) bare loop: low | median | high", bare, "messages/s")
    spread("    relay", ours, "messages/s")
    return beside("    relay over bare loop", ours, bare)


async def measure_cpu(system: Emulated, sizes: Sizes) -> dict[str, float]:
    """
    Return the CPU time per event with our encoder of messages and with the SDK's encoder.

    Both are measured for pages of 1000 events with batches of 1 MB, and for pages of 100 events with batches of 256 KB.
    """
    data = await system.new_events(sizes.scale_events, keys=KEYS, in_commit=EVENTS_IN_COMMIT)
    ways = [(page, own) for page in (RELAY_PAGE, PAGE) for own in (True, False)]
    costs: dict[tuple[int, bool], list[float]] = {way: [] for way in ways}
    known = encoding.fallback_cause
    for number in range(sizes.rounds):
        for page, own in ways[number % len(ways) :] + ways[: number % len(ways)]:
            encoding.fallback_cause = known if own else lambda: "the SDK's encoder is measured"
            meter = await relayed(system, data, sizes.scale_events, page=page)
            costs[page, own].append(meter.cpu_ms)
    encoding.fallback_cause = known
    found = {}
    for (page, own), rounds in costs.items():
        median = spread(f"(g) pages of {page}, {'our' if own else 'SDK'} encoder", rounds, "ms CPU/event")
        name = "cpu_ms_per_event" + ("_page100" if page == PAGE else "")
        found[name if own else f"{name}_sdk_encoder"] = round(median, 3)
    ours, theirs = costs[RELAY_PAGE, True], costs[RELAY_PAGE, False]
    return found | {"encoder_ratio": beside("    our encoder over the SDK's", ours, theirs)}


async def compare_with_sample(
    system: Emulated, bus: ServiceBusClient, data: str, sizes: Sizes
) -> dict[str, float]:
    """Return the ratio of the relay's messages per second to those of the sample's design, for several network delays."""
    container = system.database.get_container_client(data)
    ratios = {}
    for delay in DELAYS_MS:
        leases = system.database.get_container_client(await system.new_leases())
        await system.delay(delay)
        batches = min(SAMPLE_BATCHES[delay], sizes.events)
        sample = await loop_speed(sample_design(container, leases, bus, system.new_topic()), batches)
        ours = max([(await relayed(system, data, sizes.events)).per_second for _ in range(2)])
        await system.delay(0)
        show(f"(b) +{delay} ms: sample's design | relay", f"{sample:.0f} | {ours:.0f} messages/s")
        ratios[f"sample_ratio_{delay}ms"] = round(ours / sample, 2)
    return ratios


async def measure_slow_broker(system: Emulated, sizes: Sizes) -> dict[str, float]:
    """Return the peak memory of a worker whose topic acknowledges slowly while a large number of events waits."""
    events = sizes.backlog[-1]
    data = await system.new_events(events, in_commit=20)
    leases, topic = await system.new_leases(), system.new_topic()
    async with running_worker(system, data=data, leases=leases, topic=topic) as worker:
        await system.delay(SLOW_ACK_MS, cosmos=False)
        worker.go()
        await asyncio.sleep(sizes.seconds)
        published = await system.published(topic)
        used = await worker.stop()
        await system.delay(0)
    show(
        f"(f) {SLOW_ACK_MS} ms an ack, {events} wait",
        f"peak {used['peak_mb']:.1f} MB after {published} events ({used['idle_mb']:.1f} MB before)",
    )
    return {"events": events, "published": published, "peak_mb": round(used["peak_mb"], 1)}


async def measure_large(system: Emulated, sizes: Sizes) -> float:
    """Return the peak memory of a worker that owns many leases and sends events of 40 KB."""
    data = await system.new_events(sizes.large_events, partitions=MANY_LEASES, text=LARGE_TEXT)
    topic = system.new_topic(premium=True)
    async with running_worker(system, data=data, leases=await system.new_leases(), topic=topic) as worker:
        worker.go()
        await system.until_published(topic, sizes.large_events)
        used = await worker.stop()
    show(f"(i) {sizes.large_events} events of 40 KB, {MANY_LEASES} leases", f"peak {used['peak_mb']:.1f} MB")
    return round(used["peak_mb"], 1)


async def measure_backlog(system: Emulated, sizes: Sizes) -> list[dict[str, float]]:
    """Return the CPU time, memory and requests per event of a worker for several numbers of waiting events."""
    rows = []
    for events in sizes.backlog:
        data = await system.new_events(events, in_commit=20)
        leases, topic = await system.new_leases(), system.new_topic()
        async with running_worker(system, data=data, leases=leases, topic=topic) as worker:
            requests = await system.requests()
            worker.go()
            await system.until_published(topic, events)
            requests = await system.requests() - requests
            used = await worker.stop()
        row = {
            "events": events,
            "cpu_ms_per_event": round(used["cpu_s"] * 1000 / events, 3),
            "peak_mb": round(used["peak_mb"], 1),
            "requests_per_event": round(requests / events, 4),
        }
        show(
            f"(e) backlog of {events}",
            f"{row['cpu_ms_per_event']} ms CPU/event, peak {row['peak_mb']} MB "
            f"({used['idle_mb']:.1f} MB before), {row['requests_per_event']} requests/event",
        )
        rows.append(row)
    return rows


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Run all measurements, and return the figures for the last line of the output."""
    async with emulated() as system, open_service_bus_client(connection_string=system.servicebus) as bus:
        collect_seldom()  # all measured programs collect garbage as seldom as a worker
        data = await system.new_events(sizes.events, keys=KEYS)
        result: dict[str, Any] = {"ceiling_ratio": await compare_with_ceiling(system, bus, data, sizes)}
        result |= await measure_cpu(system, sizes)
        result |= await compare_with_sample(system, bus, data, sizes)
        result["backlog"] = await measure_backlog(system, sizes)
        result["slow_broker"] = await measure_slow_broker(system, sizes)
        result["peak_mb_large"] = await measure_large(system, sizes)
        return result


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    report(measure, full=FULL, quick=QUICK, about=__doc__, shared_by="the emulators, the relay and the load")


if __name__ == "__main__":
    main()
