"""
Handlers and client libraries that catch CancelledError and go on. The processor ignores what they return after the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from cosmos_outbox.changefeed import CloseReason
from cosmos_outbox.errors import StoreUnavailable
from cosmos_outbox.ports import ChangeBatch, ChangePage
from cosmos_outbox.records import PageFailed, Record
from cosmos_outbox.retries import Backoff
from tests.support.changefeed_world import Faulty, World, ended


async def returns() -> None:
    try:
        await asyncio.sleep(10_000)
    except asyncio.CancelledError:
        return


async def fails() -> None:
    try:
        await asyncio.sleep(10_000)
    except asyncio.CancelledError:
        raise RuntimeError("The client library reports the cancellation as an error.") from None


async def stolen(world: World) -> None:
    """Take the lease by force, as .NET does. The owner notices the loss at its next renewal."""
    (lease,) = await world.all_leases()
    thief = lease.with_changes(now=world.utcnow(), owner="dotnet", properties={})
    await world.leases.replace(thief.raw, etag=lease.etag or "")


@pytest.mark.parametrize("swallow", [returns, fails])
@pytest.mark.parametrize("loss", ["stolen", "cut off", "stopped", "killed"])
async def test_a_handler_that_swallows_its_cancellation_saves_no_page(
    swallow: Callable[[], Awaitable[None]], loss: str
):
    """The worker lost or released the lease, so it begins no further page either."""
    world, records = World(), list[Record]()
    calls = 0

    async def deaf(_: ChangeBatch) -> None:
        nonlocal calls
        calls += 1
        await swallow()

    for _ in range(3):
        await world.write("k")
    store = Faulty(world.leases)
    world.start(
        "a",
        handler=deaf,
        leases=store,
        halt_after_attempts=1,
        max_items=1,
        hooks=[records.append],
    )
    await world.until(lambda: calls == 1)
    match loss:
        case "stolen":
            await stolen(world)
            await asyncio.sleep(40)
        case "cut off":
            store.failing["replace"] = StoreUnavailable
            await asyncio.sleep(60)
        case "stopped":
            await asyncio.wait_for(world.stop("a"), 25)
        case _:
            await world.kill("a")

    (lease,) = await world.all_leases()
    failures = [record for record in records if isinstance(record, PageFailed)]
    assert (1, None, []) == (calls, lease.continuation, failures)
    if loss in ("stolen", "cut off"):
        assert [CloseReason.LOST] == [end.outcome for end in ended(records)]
        await world.kill("a")
    elif loss == "stopped":
        assert {"free": 1} == await world.owners()


@pytest.mark.parametrize("answer", ["a page", "an error"])
async def test_a_page_whose_read_swallowed_a_cancellation_is_not_handled(answer: str):
    world, records, reads = World(), list[Record](), 0

    class Deaf:
        def __getattr__(self, name: str):
            return getattr(world.container, name)

        async def read_page(self, *args, **kwargs) -> ChangePage:
            nonlocal reads
            reads += 1
            await returns()
            if answer == "an error":
                raise StoreUnavailable
            return await world.container.read_page(*args, **kwargs)

    await world.write("k")
    world.start("a", feed=Deaf(), hooks=[records.append], backoff=Backoff(initial_seconds=1000))
    await world.until(lambda: reads == 1)
    await stolen(world)
    await asyncio.sleep(20)

    assert ({}, 1) == (world.handled, reads)
    assert [CloseReason.LOST] == [end.outcome for end in ended(records)]
    assert not any(isinstance(record, PageFailed) for record in records)
    await world.kill("a")


async def test_a_handler_that_does_not_end_is_reported_as_stalled():
    """
    The worker lost the lease, and does not take it again before the handler ends. Another worker takes it and handles the page.
    """
    world = World()
    stubborn, calls = asyncio.Event(), 0

    async def endless(_: ChangeBatch) -> None:
        nonlocal calls
        calls += 1
        while not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue

    await world.write("k")
    store = Faulty(world.leases)
    processor = world.start("a", handler=endless, leases=store)
    await world.until(lambda: calls == 1)
    store.failing["replace"] = StoreUnavailable
    await asyncio.sleep(60)
    world.start("b")
    await world.until(world.all_handled)
    store.failing.clear()
    await world.stop("b")
    await asyncio.sleep(600)

    # The lease is free, but worker "a" may not take it while its old handler still runs.
    assert {"free": 1} == await world.owners()
    assert 1 == calls
    (status,) = processor.status()
    assert status.stalled

    stubborn.set()
    await world.write("k")
    await world.until(lambda: calls == 2)
    await world.stop("a")


async def test_a_library_that_cancels_the_task_for_its_own_timeout_does_not_end_the_lease():
    world = World()
    attempts = 0

    async def leaky(batch: ChangeBatch) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            task = asyncio.current_task()
            assert task
            asyncio.get_running_loop().call_later(1, task.cancel)
            try:
                await asyncio.sleep(100)
            # async_timeout and aiohttp did this in old versions: they cancelled the task and never called `uncancel`.
            except asyncio.CancelledError:
                raise TimeoutError from None
        await world.handle(batch)

    await world.write("k")
    world.start("a", handler=leaky)
    seconds = await world.until(world.all_handled)

    assert seconds < timedelta(seconds=10).total_seconds()
    assert 4 == attempts
    await world.stop_all()
