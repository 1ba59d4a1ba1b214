"""
Measure the change feed processor: how fast it reads, what idle leases cost, and how fast a fleet takes over and balances leases.

Reading: a bare loop over the SDK's `query_items_change_feed` and a processor whose handler does nothing take turns to read the same
container, in pages of 100. The clock starts with the first page. The figure is the median of the ratios of all rounds. The processor does
more work than the loop: it also saves its position, and reads one page ahead.

Idle leases are measured for one renewal interval, so the cost includes their renewal and the passes in which workers balance leases.
Rounds with a longest poll interval of 1 s and of 5 s alternate. Each figure is the median of its rounds.

Fleets are real processes with shortened intervals. Their figures are times, measured in acquire intervals:

takeover_intervals: from the *expiration* of the last lease of a killed worker until another worker owns all its leases.
takeover_intervals_with_expiry: from the SIGKILL until another worker owns all leases. It includes the time until a lease expires, which is an option.
leases_1000_acquire_intervals: from the start of a worker on a container of 1,000 ranges until it owns and reads all of them.
balance_100x5_intervals: from the start of four more workers, without open connections, until all five own the same number of 100 leases.

`python -m benchmarks.changefeed`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from azure.cosmos.aio import CosmosClient

from benchmarks.emulated import DATABASE, Emulated, emulated
from benchmarks.report import beside, say, spread
from cosmos_outbox.adapters.cosmos.client import account_of, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.ports import ChangeBatch, ChangeHandler
from cosmos_outbox_worker.main import collect_seldom

PAGE = 100
ACQUIRE_SECONDS = 3.0
RENEW_SECONDS = 3.0
EXPIRATION_SECONDS = 8.0
PATIENCE_SECONDS = 300.0  # how long workers may take to own the leases that they should
ACQUIRE_DEFAULT_SECONDS = ProcessorOptions(processor_name="bench").acquire_interval.total_seconds()
IDLE_ROUNDS = 3
IDLE_SECONDS = 17.0  # the default renewal interval, so that each lease is renewed once


class Drain:
    """
    Measures how fast documents are read. The clock starts with the first page, because a bare loop and a processor need different
    times to start.
    """

    def __init__(self, documents: int) -> None:
        self._left, self._after_first = documents, 0
        self._began = self._ended = self._cpu_began = self._cpu_ended = 0.0
        self.done = asyncio.Event()

    def page(self, documents: int) -> None:
        """Count the documents of a page. The first page starts the clock, and the last one stops it."""
        now = time.perf_counter()
        if not self._began:
            self._began, self._cpu_began = now, time.process_time()
        else:
            self._after_first += documents
        self._left -= documents
        if self._left <= 0:
            self._ended, self._cpu_ended = now, time.process_time()
            self.done.set()

    def rates(self) -> tuple[float, float]:
        """Return how many documents were read per second, and per second of CPU time of this process, after the first page."""
        seconds, cpu = self._ended - self._began, self._cpu_ended - self._cpu_began
        return self._after_first / seconds, self._after_first / cpu


def processor_of(
    client: CosmosClient,
    data: str,
    leases: str,
    handler: ChangeHandler,
    **options: Any,
) -> ChangeFeedProcessor:
    """Create a change feed processor for a data container and a lease container of the benchmark."""
    database = client.get_database_client(DATABASE)
    return ChangeFeedProcessor(
        CosmosChangeFeed(
            database.get_container_client(data),
            account_host=account_of(client).host,
            polls=account_of(client).polls(),
        ),
        CosmosLeases(database.get_container_client(leases)),
        handler,
        ProcessorOptions(processor_name="bench", **options),
        hooks=(),
    )


@asynccontextmanager
async def running(processor: ChangeFeedProcessor) -> AsyncIterator[None]:
    """Run a processor for as long as the block lasts."""
    task = asyncio.create_task(processor.run())
    try:
        yield
    finally:
        processor.stop()
        await task


async def bare_loop(system: Emulated, data: str, documents: int) -> tuple[float, float]:
    """Read a container with a plain loop over the SDK's change feed. Return the documents per second and per CPU second."""
    drain = Drain(documents)
    container = system.database.get_container_client(data)
    (feed_range,) = [found async for found in container.read_feed_ranges()]
    pages = container.query_items_change_feed(
        feed_range=feed_range, start_time="Beginning", max_item_count=PAGE
    ).by_page()
    async for page in pages:
        drain.page(len([document async for document in page]))
        if drain.done.is_set():
            break
    return drain.rates()


async def with_processor(system: Emulated, data: str, documents: int) -> tuple[float, float]:
    """Read a container with a processor whose handler does nothing. Return the documents per second and per CPU second."""
    drain = Drain(documents)

    async def handle(batch: ChangeBatch) -> None:
        drain.page(len(batch.documents))

    async with running(processor_of(system.client, data, await system.new_leases(), handle, max_items=PAGE)):
        await drain.done.wait()
    return drain.rates()


async def reading(system: Emulated, documents: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """
    Read the same container with a bare loop and with a processor, in turn. Return the documents per second and per CPU second of each
    round.
    """
    data = await system.new_events(documents, in_commit=20)
    ways = {"bare loop": bare_loop, "processor": with_processor}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in ways if number % 2 else reversed(ways):
            rates = await ways[name](system, data, documents)
            if number:  # leave out round 0, which fills connections and caches
                found[name].append(rates)
    return found


async def idle(
    system: Emulated, leases: int, *, poll_seconds: float = 1.0, data: str | None = None
) -> dict[str, float]:
    """
    Measure a processor that owns `leases` idle leases. Return its CPU time and requests per second, and its memory.
    """
    data = data or await system.new_events(1, partitions=leases)
    processor = processor_of(
        system.client,
        data,
        await system.new_leases(),
        _drop,
        # The longest pause would be reached after a hundred seconds without a change. Here it is reached at once.
        recent_poll_interval=timedelta(seconds=poll_seconds),
        max_poll_interval=timedelta(seconds=poll_seconds),
    )
    async with running(processor):
        await _until_everything_is_read(processor, leases)
        await asyncio.sleep(2 * poll_seconds)  # wait until every range is polled at the longest interval
        requests, cpu, began = await system.requests(), time.process_time(), time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        seconds = time.perf_counter() - began
        cpu_ms = (time.process_time() - cpu) * 1000 / seconds
        return {
            "cpu_ms": cpu_ms,
            "requests": (await system.requests() - requests) / seconds,
            "rss_mb": _resident_mb(),
        }


async def acquire(system: Emulated, leases: int) -> float:
    """Return how many seconds a processor with default options takes to create, acquire and read `leases` leases."""
    data = await system.new_events(1, partitions=leases)
    processor = processor_of(system.client, data, await system.new_leases(), _drop)
    started = time.perf_counter()
    async with running(processor):
        await _until_everything_is_read(processor, leases)
        return time.perf_counter() - started


async def _until_everything_is_read(processor: ChangeFeedProcessor, leases: int) -> None:
    def reads_everything() -> bool:
        status = processor.status()
        return len(status) == leases and all(lease.lag is not None for lease in status)

    while not reads_everything():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.1)


async def _drop(batch: ChangeBatch) -> None:
    del batch


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def _work(connection_string: str, data: str, leases: str, name: str, pipe: Connection) -> None:
    async def run() -> None:
        async with open_cosmos_client(connection_string=connection_string) as client:
            processor = processor_of(
                client, data, leases, _drop,
                instance_name=name,
                acquire_interval=timedelta(seconds=ACQUIRE_SECONDS),
                renew_interval=timedelta(seconds=RENEW_SECONDS),
                expiration=timedelta(seconds=EXPIRATION_SECONDS),
            )  # fmt: skip
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, processor.stop)
            pipe.send("ready")
            await asyncio.to_thread(pipe.recv)
            await processor.run()

    asyncio.run(run())


class Fleet:
    """Worker processes that share one lease container. The caller has to end them with `kill_all`."""

    def __init__(self, system: Emulated, data: str, leases: str) -> None:
        self._system, self._data, self._leases = system, data, leases
        self._workers: dict[str, tuple[SpawnProcess, Connection]] = {}

    async def start(self, *names: str) -> None:
        """Start worker processes, wait until their Python code is loaded, and then let all of them begin at the same moment."""
        for name in names:
            pipe, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_work, args=(self._system.cosmos, self._data, self._leases, name, theirs), daemon=True
            )
            process.start()
            self._workers[name] = process, pipe
        for name in names:
            await asyncio.to_thread(self._workers[name][1].recv)
        for name in names:
            self._workers[name][1].send("go")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal that ends a worker, and wait for the end of the process if the signal is SIGKILL."""
        process, _ = self._workers.pop(name)
        if process.pid is not None:
            os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process.join()

    def kill_all(self) -> None:
        """Kill all worker processes."""
        for name in list(self._workers):
            self.kill(name)

    async def leases(self) -> list[dict[str, Any]]:
        """Read the lease documents from the lease container."""
        container = self._system.database.get_container_client(self._leases)
        return [item async for item in container.query_items("SELECT * FROM c") if "LeaseToken" in item]

    async def until_owned(self, expected: dict[str, int]) -> float:
        """Wait until each worker owns the expected number of leases, and return how many seconds this took."""
        began = time.perf_counter()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if Counter(item["Owner"] for item in await self.leases()) == expected:
                    return time.perf_counter() - began
                await asyncio.sleep(0.1)


async def takeover(
    system: Emulated,
    leases: int,
    fleet_of: type[Fleet] = Fleet,
    *,
    after: float = 0.0,
    number: signal.Signals = signal.SIGKILL,
) -> tuple[float, float]:
    """
    Send a signal to one of two workers, and wait until the other owns all leases.

    Return the seconds from the signal until then, and from the expiration of the ended worker's last lease until then.

    Args:
        system: the emulators.
        leases: how many leases the two workers share.
        fleet_of: starts the workers.
        after: how many seconds to wait before the signal once the workers share the leases.
        number: the signal.
    """
    data = await system.new_events(1, partitions=leases)
    fleet = fleet_of(system, data, await system.new_leases())
    try:
        await fleet.start("a", "b")
        await fleet.until_owned({"a": leases // 2, "b": leases // 2})
        await asyncio.sleep(after)
        written = max(item["_ts"] for item in await fleet.leases() if item["Owner"] == "a")
        killed = time.time()
        fleet.kill("a", number)
        await fleet.until_owned({"b": leases})
        owned = time.time()
    finally:
        fleet.kill_all()
    # Add a second to the time of the last write: Cosmos DB stores whole seconds, so the lease may have been written up to a second later.
    return owned - killed, owned - (written + 1 + EXPIRATION_SECONDS)


async def balance(system: Emulated, leases: int, workers: int, fleet_of: type[Fleet] = Fleet) -> float:
    """
    Start one worker, which acquires all leases, and then the other workers. Return the seconds from their start until all workers own
    the same number of leases.
    """
    data = await system.new_events(1, partitions=leases)
    fleet = fleet_of(system, data, await system.new_leases())
    names = [f"w{number}" for number in range(workers)]
    try:
        await fleet.start(names[0])
        await fleet.until_owned({names[0]: leases})
        await fleet.start(*names[1:])
        return await fleet.until_owned(dict.fromkeys(names, leases // workers))
    finally:
        fleet.kill_all()


async def idle_by_poll(system: Emulated, leases: int) -> dict[int, list[dict[str, float]]]:
    """
    Run `idle` several times with a longest poll interval of 1 s and of 5 s, and return the results by this interval. Runs with the two
    intervals alternate, so that other programs disturb both alike.
    """
    data = await system.new_events(1, partitions=leases)
    rounds: dict[int, list[dict[str, float]]] = {1: [], 5: []}
    for _ in range(IDLE_ROUNDS):
        for poll, found in rounds.items():
            found.append(await idle(system, leases, poll_seconds=poll, data=data))
    for poll, found in rounds.items():
        per_lease = sorted(one["cpu_ms"] / leases for one in found)
        say(
            f"{leases} leases, longest poll {poll} s, ms CPU per lease and second, low / median / high: ",
            end="",
        )
        say(f"{per_lease[0]:.3f} / {statistics.median(per_lease):.3f} / {per_lease[-1]:.3f}")
    return rounds


def _middle(rounds: list[dict[str, float]], leases: int) -> float:
    return round(statistics.median(one["cpu_ms"] for one in rounds) / leases, 3)


async def measure(documents: int, rounds: int) -> dict[str, Any]:
    """Run all measurements, and return the figures for the last line of the output."""
    async with emulated() as system:
        collect_seldom()  # collect garbage as seldom as a worker process does
        read = await reading(system, documents, rounds)
        rates = {name: [rate for rate, _ in some] for name, some in read.items()}
        costs_of_page = {name: [PAGE * 1000 / rate for _, rate in some] for name, some in read.items()}
        for name in read:
            spread(f"{name}: low | median | high", rates[name], "documents/s")
            spread("    CPU of a page", costs_of_page[name], "ms")
        feed_ratio = beside("processor over bare loop", rates["processor"], rates["bare loop"])
        feed_cpu_ratio = beside("    a CPU second", costs_of_page["bare loop"], costs_of_page["processor"])
        say(f"\n{'idle leases':>12}{'CPU ms / s':>12}{'requests / s':>14}")
        costs = {}
        for leases in (1, 10):
            costs[leases] = await idle(system, leases)
            say(f"{leases:>12}{costs[leases]['cpu_ms']:>12.1f}{costs[leases]['requests']:>14.1f}")
        most, per_poll = 100, await idle_by_poll(system, 100)
        costs[most] = {name: statistics.median(one[name] for one in per_poll[1]) for name in per_poll[1][0]}
        acquired = await acquire(system, 1000)
        thousand = await idle(system, 1000, poll_seconds=5)
        say(
            f"1000 leases on one worker: read after {acquired:.1f} s, then with a longest poll of 5 s ",
            end="",
        )
        say(f"{thousand['cpu_ms']:.0f} ms CPU / s, {thousand['rss_mb']:.0f} MB resident")
        taken, after_expiry = await takeover(system, 10)
        balanced = await balance(system, 100, 5)
        say(f"\nSIGKILL of one of two workers, 10 leases: taken over after {taken:.1f} s, ", end="")
        say(f"{after_expiry:.1f} s after the last had expired (not written for {EXPIRATION_SECONDS:.0f} s)")
        say(f"four workers join one with 100 leases: balanced after {balanced:.1f} s")
        say(f"acquire interval {ACQUIRE_SECONDS:.0f} s; takeover_intervals leaves the expiration out")
    return {
        "feed_ratio": feed_ratio,
        "feed_cpu_ratio": feed_cpu_ratio,
        "idle_cpu_ms_per_lease_s": _middle(per_poll[1], most),
        "idle_cpu_ms_per_lease_s_5s": _middle(per_poll[5], most),
        "idle_requests_per_lease_s": round(costs[most]["requests"] / most, 3),
        "leases_1000_acquire_intervals": round(acquired / ACQUIRE_DEFAULT_SECONDS, 2),
        "leases_1000_idle_cpu_ms_per_s_5s": round(thousand["cpu_ms"], 1),
        "leases_1000_rss_mb": round(thousand["rss_mb"]),
        "takeover_intervals": round(after_expiry / ACQUIRE_SECONDS, 2),
        "takeover_intervals_with_expiry": round(taken / ACQUIRE_SECONDS, 2),
        "balance_100x5_intervals": round(balanced / ACQUIRE_SECONDS, 2),
        "leases": [
            {"leases": leases, "cpu_ms_per_s": round(cost["cpu_ms"], 2)} for leases, cost in costs.items()
        ],
    }


def main() -> None:
    """Parse the arguments, run the benchmark, and print its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000, help="to read in a round (default 20000)")
    parser.add_argument("--rounds", type=int, default=12, help="of each way (default 12)")
    options = parser.parse_args()
    say(json.dumps(asyncio.run(measure(options.documents, options.rounds))))


if __name__ == "__main__":
    main()
