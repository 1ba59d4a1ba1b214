from __future__ import annotations

import asyncio

import pytest

from cosmos_outbox import ConfigurationError, NotFound, RetryOptions, StoreUnavailable, TooManyRequests
from cosmos_outbox.retries import Deadline, retry_reads


@pytest.mark.parametrize(("deadline", "attempt"), [(0, 0), (1, 0), (1, 2), (-1, -2)])
def test_times_that_cannot_work_are_refused(deadline: float, attempt: float):
    with pytest.raises(ConfigurationError):
        RetryOptions(deadline_seconds=deadline, attempt_seconds=attempt)


async def test_a_request_is_repeated_while_the_service_is_busy_and_no_longer():
    answers: list[Exception | str] = [TooManyRequests(retry_after=1), StoreUnavailable(retry_after=2), "done"]

    async def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    began = asyncio.get_running_loop().time()
    assert "done" == await retry_reads(call, RetryOptions())
    assert 3 <= asyncio.get_running_loop().time() - began < 4

    answers.extend([NotFound(), "never asked for"])
    with pytest.raises(NotFound):
        await retry_reads(call, RetryOptions())
    assert ["never asked for"] == answers


async def test_a_wait_that_would_end_too_late_is_not_begun():
    async def call() -> None:
        raise TooManyRequests(retry_after=60)

    began = asyncio.get_running_loop().time()
    with pytest.raises(TooManyRequests):
        await retry_reads(call, RetryOptions())
    assert began == asyncio.get_running_loop().time()


async def test_an_attempt_ends_with_its_own_time_or_with_all_time():
    deadline = Deadline(RetryOptions(deadline_seconds=5, attempt_seconds=3))
    began = asyncio.get_running_loop().time()
    for ends in (3, 5, 5):
        with pytest.raises(StoreUnavailable):
            await deadline.attempt(asyncio.Event().wait)
        assert ends == pytest.approx(asyncio.get_running_loop().time() - began)


async def test_cancelling_is_not_mistaken_for_a_slow_service():
    deadline = Deadline(RetryOptions())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await deadline.attempt(asyncio.Event().wait)
