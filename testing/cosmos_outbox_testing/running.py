"""Running: a processor works until nothing waits, or gets no further, without waiting for time."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from cosmos_outbox.event_loop import end, watch_loop
from cosmos_outbox.retries import Backoff

AT_ONCE = Backoff(initial_seconds=0, maximum_seconds=0)
MOMENT, SHORT_WHILE = timedelta(milliseconds=1), timedelta(milliseconds=50)
# says whether a test asked for the fault that led to this error
Allows = Callable[[BaseException | None], bool]
_PATIENCE_SECONDS = 10.0  # without progress; some loops fail silently, and would go on for a minute


class Stuck(Exception):
    """A worker or a consumer failed again and again, and would go on trying. Its work still waits."""


class MessagesFailed(AssertionError):
    """
    Messages ended parked, held behind a parked one, or dead-lettered, and the test did not ask for that. The cause is the first
    error.
    """


def require_no_failures(failures: Sequence[tuple[str, BaseException | None]], allows: Allows) -> None:
    """
    Refuse failures, each with its text and its error, except those for which the test asked.

    Raises:
        MessagesFailed: there are some.
    """
    if left := [(told, error) for told, error in failures if not allows(error)]:
        said = "\n".join([*(told for told, _ in left), "A test that is about this says allow_failures=True."])
        raise MessagesFailed(said) from next((error for _, error in left if error is not None), None)


class Processor(Protocol):
    async def run(self) -> None: ...
    def stop(self) -> None: ...


class Progress:
    """
    Watches, through a processor's hooks, whether the processor makes progress.

    Args:
        attempts: so many failures in a row are no passing fault.
    """

    def __init__(self, *, attempts: int) -> None:
        self._attempts, self._loop = attempts, asyncio.get_running_loop()
        self._failures: list[BaseException] = []
        self._blocked: list[Any] = []  # the reports of the watchdog
        self._moved_at = self._loop.time()
        # An event, because failures without a pause leave timers no turn
        self._looking = asyncio.Event()

    def note_move(self) -> None:
        self._failures.clear()
        self._moved_at = self._loop.time()
        self._looking.set()

    def note_failure(self, error: BaseException) -> None:
        self._failures.append(error)
        self._looking.set()

    async def run(self, processor: Processor, *, until: Callable[[], Awaitable[bool]]) -> None:
        """
        Run a processor until nothing waits, then stop it.

        Args:
            processor: to run.
            until: says whether nothing waits; asked whenever something moved or failed, and in between.

        Raises:
            Stuck: it failed many times in a row, or did nothing for long.
            OutboxError: what `processor.run` raises.
        """
        running = asyncio.create_task(processor.run())
        seconds, stopped = MOMENT.total_seconds(), False
        try:
            with watch_loop(self._blocked.append, after_seconds=_PATIENCE_SECONDS / 4):
                while not running.done():
                    late = self._loop.time() - self._moved_at > _PATIENCE_SECONDS
                    if late or len(self._failures) >= self._attempts:
                        raise self._stuck()
                    self._looking.clear()
                    if not stopped and await until():
                        stopped = True
                        processor.stop()
                    looking = asyncio.create_task(self._looking.wait())
                    await asyncio.wait({running, looking}, timeout=seconds, return_when=FIRST_COMPLETED)
                    looking.cancel()
                    seconds = min(1.5 * seconds, SHORT_WHILE.total_seconds())
                await running
        finally:
            await end({running})

    def _stuck(self) -> Stuck:
        if not self._failures:
            where = "".join(f": {it.where} blocks the event loop; {it.remedy}" for it in self._blocked[-1:])
            return Stuck(f"There was no progress for {_PATIENCE_SECONDS:g} s{where}.")
        last = self._failures[-1]
        stuck = Stuck(f"There was no progress in {len(self._failures)} attempts: {last}")
        stuck.__cause__ = last
        return stuck
