"""
Retries: how long to wait between attempts, for how long to try, and loops that repeat reads and conditional writes. `write/commit.py`
repeats commits, and `consumer/attempts.py` decides about failed messages.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from cosmos_outbox.errors import BUSY, REFUSALS, ConfigurationError, StoreUnavailable, require

ResultT = TypeVar("ResultT")
ArgumentsT = ParamSpec("ArgumentsT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """
    Exponential back-off with full jitter: after attempt n, wait a random part of `initial_seconds * 2^(n-1)`, but at most
    `maximum_seconds`.
    """

    initial_seconds: float = 0.1  # the longest wait after the first attempt. Defaults to 100 ms.
    maximum_seconds: float = 30.0  # the longest wait after any attempt. Defaults to 30 s.

    def delay(self, attempt: int, *, at_least: float | None = None) -> float:
        """Return how many seconds to wait after a failed attempt, at least `at_least`. The first attempt has the number 1."""
        ceiling = min(self.maximum_seconds, self.initial_seconds * 2.0 ** min(attempt - 1, 60))
        return max(at_least or 0.0, ceiling * random.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """For how long a read or a commit is tried, and how long to wait between attempts."""

    deadline_seconds: float = 10.0  # the time limit for all attempts together. Defaults to 10 s.
    attempt_seconds: float = 4.0  # the time limit for one attempt. Defaults to 4 s.
    # The longest pause between two attempts. Defaults to 50 ms after the first attempt. It doubles up to 2 s.
    backoff: Backoff = Backoff(initial_seconds=0.05, maximum_seconds=2.0)

    def __post_init__(self) -> None:
        of, most = self.attempt_seconds, self.deadline_seconds
        said = f"attempt_seconds ({of:g}) must be more than 0 and at most deadline_seconds ({most:g})."
        require(0 < of <= most, said, ConfigurationError)


class Deadline:
    """The time left for the attempts of one call, on the clock of the running loop."""

    __slots__ = ("_ends_at", "_loop", "_options")

    def __init__(self, options: RetryOptions) -> None:
        self._options, self._loop = options, asyncio.get_running_loop()
        self._ends_at = self._loop.time() + options.deadline_seconds

    async def attempt(
        self,
        call: Callable[ArgumentsT, Awaitable[ResultT]],
        *args: ArgumentsT.args,
        **kwargs: ArgumentsT.kwargs,
    ) -> ResultT:
        """
        Make one attempt at a call and return its result. Give up after `attempt_seconds`, or at the deadline.

        Raises:
            StoreUnavailable: no answer came in time; the outcome is unknown.
        """
        ends_at = min(self._loop.time() + self._options.attempt_seconds, self._ends_at)
        try:
            async with asyncio.timeout_at(ends_at):
                return await call(*args, **kwargs)
        except TimeoutError as error:
            raise StoreUnavailable("Cosmos DB did not answer in time; try again.") from error

    async def pause(self, attempt: int, retry_after: float | None = None) -> bool:
        """Wait before the next attempt, and return True. If that attempt would begin after the deadline, return False at once."""
        seconds = self._options.backoff.delay(attempt, at_least=retry_after)
        if self._loop.time() + seconds >= self._ends_at:
            return False
        await asyncio.sleep(seconds)
        return True


async def retry_reads(call: Callable[[], Awaitable[ResultT]], options: RetryOptions) -> ResultT:
    """Make a request that changes nothing, and return its result. Repeat it while Cosmos DB is busy or does not answer."""
    deadline, attempt = Deadline(options), 0
    while True:
        attempt += 1
        try:
            return await deadline.attempt(call)
        except BUSY as failure:
            if not await deadline.pause(attempt, failure.retry_after):
                raise


async def retry_on_conflict(step: Callable[[], Awaitable[ResultT]], options: RetryOptions) -> ResultT:
    """
    Run a step that reads, decides and writes under an etag. Repeat the step if another program wrote in between, or Cosmos DB is busy.

    Raises:
        StoreUnavailable: no attempt succeeded before the deadline.
    """
    deadline, attempt = Deadline(options), 0
    while True:
        attempt += 1
        try:
            return await deadline.attempt(step)
        except (*REFUSALS, *BUSY) as error:
            if not await deadline.pause(attempt, error.retry_after):
                raise StoreUnavailable(f"No attempt succeeded in time: {error}") from error


def suspended_seconds() -> float:
    """
    Return how many seconds the machine has been asleep since it was started; 0 if the platform does not report it.

    The clock of the event loop stops while the machine sleeps, but the service's clock, by which leases expire, does not. Two results may
    differ by a moment although the machine did not sleep, because two clocks are read one after another.
    """
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    except (AttributeError, OSError):  # the platform, the kernel or a sandbox has no such clock
        return 0.0
