"""
Run taskiq-service-bus against the Service Bus emulator.

A worker process of taskiq receives twenty tasks from the queue `tasks`, one task that fails, and one task with a delay. The tasks write
what they did to the file that the variable DONE names.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

from taskiq_service_bus import ServiceBusBroker

DONE = Path(os.environ["DONE"])
LATE_SECONDS = 3

broker = ServiceBusBroker(os.environ["SERVICEBUS"], "tasks")


def note(line: str) -> None:
    with DONE.open("a") as done:
        done.write(line + "\n")


@broker.task(task_name="add")
async def add(one: int, other: int) -> None:
    note(str(one + other))


@broker.task(task_name="late")
async def late(sent_at: float) -> None:
    note("in time" if time.time() >= sent_at + LATE_SECONDS else "too early")


@broker.task(task_name="fail")
async def fail() -> None:
    note("failed")
    raise RuntimeError("as it should")


async def send(*tasks: Awaitable[object]) -> None:
    await broker.startup()
    for task in tasks:
        await task
    await broker.shutdown()


def wait_for(count: int, worker: subprocess.Popen[bytes]) -> None:
    while not DONE.exists() or len(lines()) < count:
        assert worker.poll() is None, "the worker ended"
        time.sleep(0.1)


def lines() -> list[str]:
    return DONE.read_text().splitlines()


if __name__ == "__main__":
    asyncio.run(send(fail.kiq(), *(add.kiq(number, 0) for number in range(20))))
    command = [sys.executable, "-m", "taskiq", "worker", "--workers", "1", "with_taskiq:broker"]
    with subprocess.Popen(command, cwd=Path(__file__).parent) as worker:  # noqa: S603 - taskiq, and this file
        try:
            wait_for(21, worker)
            # The worker is idle now. So if the broker delivered the delayed task too early, the task would also run too early.
            asyncio.run(send(late.kicker().with_labels(delay=LATE_SECONDS).kiq(time.time())))
            wait_for(22, worker)
        finally:
            worker.terminate()
    assert sorted(lines()) == sorted(["failed", "in time", *map(str, range(20))]), lines()
    print("taskiq: 20 tasks, one that failed, and one that was not early")
