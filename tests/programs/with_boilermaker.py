"""
Run boilermaker-servicebus against the Service Bus emulator.

The program runs ten tasks from the queue `jobs`, and a chain of two tasks. One of the ten tasks fails twice and is
scheduled again each time.
"""

from __future__ import annotations

import asyncio
import os

from aio_azure_clients_toolbox import ManagedAzureServiceBusSender
from boilermaker import Boilermaker, retries


class State:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.attempts = 0


async def add(state: State, number: int) -> None:
    state.done.append(f"add {number}")


async def flaky(state: State) -> None:
    state.attempts += 1
    if state.attempts < 3:
        raise retries.RetryException("not yet")
    state.done.append(f"flaky at attempt {state.attempts}")


async def first(state: State) -> str:
    state.done.append("first of a chain")
    return "on"


async def second(state: State) -> None:
    state.done.append("second of a chain")


async def main() -> None:
    state = State()
    sender = ManagedAzureServiceBusSender("unused", "jobs", connection_string=os.environ["SERVICEBUS"])
    app = Boilermaker(state, sender)
    at_once = retries.RetryPolicy(max_tries=5, delay=1, delay_max=1, retry_mode=retries.RetryMode.Fixed)
    app.register_many_async([add, first, second])
    app.register_async(flaky, policy=at_once)
    for number in range(9):
        await app.apply_async(add, number)
    await app.apply_async(flaky)
    await app.publish_task(app.chain(app.create_task(first), app.create_task(second)))

    worker = asyncio.create_task(app.run())
    while len(state.done) < 12:
        assert not worker.done(), worker
        await asyncio.sleep(0.1)
    worker.cancel()
    await asyncio.wait([worker])
    await app.close()
    expected = [f"add {number}" for number in range(9)]
    expected += ["first of a chain", "flaky at attempt 3", "second of a chain"]
    assert sorted(state.done) == expected, state.done
    print("boilermaker: 9 tasks, one that was scheduled again twice, a chain of two")


asyncio.run(main())
