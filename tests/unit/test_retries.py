from __future__ import annotations

import asyncio

import pytest

from cosmos_outbox import ConfigurationError, NotFound, RetryOptions, StoreUnavailable, TooManyRequests
from cosmos_outbox.retries import Deadline, retry_reads


@pytest.mark.parametrize(("deadline", "attempt"), [(0, 0), (1, 0), (1, 2), (-1, -2)])
def test_invalid_retry_times_are_refused(deadline: float, attempt: float):
    with pytest.raises(ConfigurationError):
        RetryOptions(deadline_seconds=deadline, attempt_seconds=attempt)


async def test_a_request_is_repeated_until_the_service_is_no_longer_busy():
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


async def test_a_retry_that_would_begin_after_the_deadline_is_not_made():
    async def call() -> None:
        raise TooManyRequests(retry_after=60)

    began = asyncio.get_running_loop().time()
    with pytest.raises(TooManyRequests):
        await retry_reads(call, RetryOptions())
    assert began == asyncio.get_running_loop().time()


async def test_an_attempt_ends_at_its_own_timeout_or_at_the_deadline():
    deadline = Deadline(RetryOptions(deadline_seconds=5, attempt_seconds=3))
    began = asyncio.get_running_loop().time()
    for ends in (3, 5, 5):
        with pytest.raises(StoreUnavailable):
            await deadline.attempt(asyncio.Event().wait)
        assert ends == pytest.approx(asyncio.get_running_loop().time() - began)


async def test_a_cancellation_is_not_treated_as_a_timeout():
    deadline = Deadline(RetryOptions())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await deadline.attempt(asyncio.Event().wait)
