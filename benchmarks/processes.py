"""Run the relay or the bare loop in a process of its own, for benchmarks that measure its CPU time, memory or latency."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from benchmarks.emulated import DATABASE, Emulated
from benchmarks.ways import bare_loop, relay
from cosmos_outbox.adapters.cosmos.client import open_cosmos_client
from cosmos_outbox.adapters.servicebus.publisher import open_service_bus_client

_JOIN_SECONDS = 10


class Worker:
    """A worker process with a relay. It acquires leases and reads, but sends nothing until `go` is called."""

    def __init__(self, system: Emulated, name: str, *, data: str, leases: str, topic: str) -> None:
        self._system, self._leases = system, leases
        self._process, self._pipe = spawn(
            _run_relay, system.cosmos, system.servicebus, data, leases, topic, name
        )

    async def owns_everything(self) -> None:
        """Wait until the worker owns every lease."""
        container = self._system.database.get_container_client(self._leases)
        while True:
            owners = [item.get("Owner") async for item in container.read_all_items() if "LeaseToken" in item]
            if owners and None not in owners:
                return
            await asyncio.sleep(0.05)

    def go(self) -> None:
        """Let the relay begin to send."""
        self._pipe.send("go")

    async def stop(self) -> dict[str, float]:
        """End the process. Return the CPU seconds that it used since `go`, its peak memory, and its peak memory before `go`."""
        self._pipe.send("stop")
        used: dict[str, float] = await asyncio.to_thread(self._pipe.recv)
        await asyncio.to_thread(self._process.join, _JOIN_SECONDS)
        return used

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        self._process.kill()
        self._process.join()


@asynccontextmanager
async def running_worker(system: Emulated, *, data: str, leases: str, topic: str) -> AsyncIterator[Worker]:
    """Start a worker process, wait until it owns all leases, and yield it. Kill it at the end of the block."""
    worker = Worker(system, "worker", data=data, leases=leases, topic=topic)
    try:
        await worker.owns_everything()
        yield worker
    finally:
        worker.kill()


@asynccontextmanager
async def running_loop(system: Emulated, data: str, topic: str) -> AsyncIterator[None]:
    """Run a loop of plain SDK calls in its own process while the block lasts. The loop does not wait for full batches."""
    process, _ = spawn(_run_loop, system.cosmos, system.servicebus, data, topic)
    try:
        yield
    finally:
        process.kill()
        process.join()


def spawn(target: Callable[..., None], *arguments: str) -> tuple[SpawnProcess, Connection]:
    """
    Start a process, and return it with one end of a pipe. In the process, `target` is called with the other end and the arguments.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, ours


def _run_relay(pipe: Connection, *where: str) -> None:
    asyncio.run(_relay(pipe, *where))


async def _relay(pipe: Connection, *where: str) -> None:
    cosmos, servicebus, data, leases, topic, name = where
    gate, stop = asyncio.Event(), asyncio.Event()
    at_start: dict[str, float] = {}

    def told() -> None:
        try:
            word = pipe.recv()
        except EOFError:  # the benchmark was killed
            word = "stop"
        if word == "go":
            at_start.update(cpu_s=time.process_time(), idle_mb=peak_mb())
            gate.set()
        else:
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            stop.set()

    asyncio.get_running_loop().add_reader(pipe.fileno(), told)
    await relay(
        cosmos,
        servicebus,
        data=data,
        leases=leases,
        topic=topic,
        accepted=lambda messages: None,
        stop=stop,
        gate=gate,
        name=name,
    )
    used = time.process_time() - at_start.get("cpu_s", 0.0)
    pipe.send({"cpu_s": used, "peak_mb": peak_mb(), "idle_mb": at_start.get("idle_mb", 0.0)})


def peak_mb() -> float:
    """Return the largest amount of memory that this process has used so far, in MB."""
    # On Linux, read /proc. The peak of `getrusage` would be wrong, because a child process inherits its
    # parent's peak there.
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # only Linux has /proc
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 1024)
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _run_loop(pipe: Connection, cosmos: str, servicebus: str, data: str, topic: str) -> None:
    asyncio.run(_loop(cosmos, servicebus, data, topic))


async def _loop(cosmos: str, servicebus: str, data: str, topic: str) -> None:
    async with (
        open_cosmos_client(connection_string=cosmos) as client,
        open_service_bus_client(connection_string=servicebus) as bus,
    ):
        container = client.get_database_client(DATABASE).get_container_client(data)
        async with aclosing(bare_loop(container, bus, topic, wait_for_full=False)) as batches:
            async for _ in batches:
                pass
