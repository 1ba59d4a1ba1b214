"""
Lifecycle: on the first SIGTERM or SIGINT, let a worker or consumer finish its work (drain). On the second, abort it. End the process in
any case.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine

# Two signals within this time count as one, because GNU `timeout` sends its signal twice: to the process and to the process group. The
# second of them must not abort the process.
_SAME_SIGNAL_SECONDS = 0.25
_END_SECONDS = 5.0  # how long the process waits for its cancelled tasks before it ends without them

_logger = logging.getLogger(__name__)


class Aborted(Exception):
    """
    A second signal came while the program finished its work. So the program ends at once, and does not release its leases or locks.
    They expire later.
    """


async def run_until_signalled(
    work: Coroutine[None, None, None], *, drain: Callable[[], None], name: str = "worker"
) -> None:
    """
    Run a worker or consumer until it ends. The first SIGTERM or SIGINT asks it to finish its work (drain), and the second cancels it.

    Args:
        work: the coroutine to run. It returns some time after `drain` was called.
        drain: asks the work to finish what it has begun, and then to end.
        name: the name of the program, for the log. Defaults to worker.

    Raises:
        Aborted: there was a second signal.
        BaseException: the work failed with this error.
    """
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)
    asked_at: float | None = None
    aborting = False

    def on_signal(signal_name: str) -> None:
        nonlocal asked_at, aborting
        if asked_at is None:
            asked_at = loop.time()
            _logger.info("%s.draining on %s; a second signal aborts", name, signal_name)
            drain()
        elif loop.time() - asked_at > _SAME_SIGNAL_SECONDS:
            aborting = True
            _logger.warning("%s.aborted on a second signal; its leases or locks expire by themselves", name)
            working.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await working
        # Keep the signal handlers a little longer: a copy of the first signal may still come, and would kill the process.
        if asked_at is not None:
            await asyncio.sleep(asked_at + _SAME_SIGNAL_SECONDS - loop.time())
    except asyncio.CancelledError:
        if aborting:
            raise Aborted from None
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def end_without_what_stays(logger: logging.Logger, exit_code: Callable[[], int]) -> None:
    """
    Cancel all tasks that are left, and end the process even if one of them swallows its cancellation.

    A handler may catch CancelledError and go on. asyncio would wait for its task for ever, so this function ends the process and logs
    the name of the task. Call it after the program has released its leases or sessions.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
        # Fetch the task's error, so that asyncio does not log that it was never retrieved.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    stays = (await asyncio.wait(tasks, timeout=_END_SECONDS))[1] if tasks else set()
    if stays:
        logger.error("%s.ended although a task swallows its cancellation: %s", logger.name, stays.pop())
        code = exit_code()
        logging.shutdown()
        os._exit(code)
