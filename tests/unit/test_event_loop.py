"""
Calls that swallow a cancellation, as those of the SDK may before Python 3.12: `within` still ends in time, and the caller is still
cancelled.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from cosmos_outbox.event_loop import end, within


async def lose(cancellations: int) -> str:
    """Swallow this number of cancellations, and return after the last one."""
    for _ in range(cancellations):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    return "went on"


async def wait_through(cancellations: int) -> None:
    await lose(cancellations)
    await asyncio.Event().wait()


async def test_a_call_with_a_time_limit_returns_its_answer() -> None:
    assert "went on" == await within(1, lose(0))


async def test_a_call_with_a_time_limit_raises_its_error() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await within(1, fail())


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_time_limit_ends_a_call_that_swallows_cancellations(lost: int) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        await within(5, wait_through(lost))
    assert before == asyncio.all_tasks()


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_a_task_is_cancelled_although_the_call_that_it_awaits_swallows_cancellations(lost: int) -> None:
    for call in (lose(lost or 1), wait_through(lost)):
        caller = asyncio.create_task(within(60, call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        assert caller.cancelled()


async def test_ending_tasks_ignores_the_errors_that_they_raise_when_cancelled() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("broken")

    tasks = {asyncio.create_task(fail()), asyncio.create_task(wait_through(2))}
    await asyncio.sleep(0)
    await end(tasks)
    assert all(task.done() for task in tasks)
