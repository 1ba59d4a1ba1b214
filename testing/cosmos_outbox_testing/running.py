"""Run a processor in a test until no work waits, or raise an error if it makes no progress."""

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
# The type of a function that returns whether a test caused an error on purpose. For an event that is held behind a parked event of its
# key, the error is None.
Allows = Callable[[BaseException | None], bool]
# A processor that makes no progress for this long counts as stuck. To wait for a reported failure is not enough: some of its loops retry
# for a minute before they report one.
_PATIENCE_SECONDS = 10.0


class Stuck(Exception):
    """
    A worker or a consumer of a test failed again and again, so the test stopped it. A real one would go on trying. Its events or messages
    still wait.
    """


class MessagesFailed(AssertionError):
    """
    Events or messages were parked, held behind a parked one, or dead-lettered, and the test did not ask for that.

    The `__cause__` of this error is the error because of which the first of them failed.
    """


def require_no_failures(failures: Sequence[tuple[str, BaseException | None]], allows: Allows) -> None:
    """
    Require that there are no failures except those that the test asked for.

    Args:
        failures: a description and the error of each event or message that ended parked, held or dead-lettered.
        allows: returns whether the test caused an error on purpose.

    Raises:
        MessagesFailed: there are other failures.
    """
    if left := [(told, error) for told, error in failures if not allows(error)]:
        said = "\n".join([*(told for told, _ in left), "If the test expects this, pass allow_failures=True."])
        raise MessagesFailed(said) from next((error for _, error in left if error is not None), None)


class Processor(Protocol):
    async def run(self) -> None: ...
    def stop(self) -> None: ...


class Progress:
    """
    Runs a processor and watches whether it makes progress. Hooks of the processor report progress and failures to this object.

    Args:
        attempts: after how many failures in a row the processor counts as stuck.
    """

    def __init__(self, *, attempts: int) -> None:
        self._attempts, self._loop = attempts, asyncio.get_running_loop()
        self._failures: list[BaseException] = []
        self._blocked: list[Any] = []  # records which say that code of the test blocks the event loop
        self._moved_at = self._loop.time()
        # Progress and failures set this event, so that `run` checks them at once. A timer would be late if failures follow without a pause.
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
        Run a processor until no work waits, then stop it.

        Args:
            processor: the processor.
            until: returns whether no work waits. It is called after each progress or failure, and at intervals.

        Raises:
            Stuck: the processor failed many times in a row, or made no progress for a long time.
            OutboxError: `processor.run` raised it.
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
