"""Lifecycle: the first SIGTERM or SIGINT drains a worker or a consumer, the second aborts it; its process ends whatever stays."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine

# Signals within this time count as one: GNU timeout sends its own to the process and to its group.
_SAME_SIGNAL_SECONDS = 0.25
_END_SECONDS = 5.0  # seconds that cancelled tasks have, at the end of the process

_logger = logging.getLogger(__name__)


class Aborted(Exception):
    """A second signal came while the program was draining. Its leases and locks expire by themselves."""


async def run_until_signalled(
    work: Coroutine[None, None, None], *, drain: Callable[[], None], name: str = "worker"
) -> None:
    """
    Run work. After a first signal, ask it to drain, and return once it has.

    Args:
        work: ends by itself after `drain` was called.
        drain: asks it to.
        name: of the program, for the log. Defaults to worker.

    Raises:
        Aborted: there was a second signal.
        BaseException: what ended the work by itself.
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
            _logger.warning("%s.aborted on a second signal; what it holds expires by itself", name)
            working.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await working
        if asked_at is not None:  # as long as a signal counts as the first, its handler must stay
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
    End the process if a task swallows its cancellation, as a handler may: the loop would wait for that task for ever.

    The program has given back its leases or sessions by now. The log names the task.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
        # the task was cancelled anyway
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    stays = (await asyncio.wait(tasks, timeout=_END_SECONDS))[1] if tasks else set()
    if stays:
        logger.error("%s.ended without %s, which swallows its cancellation", logger.name, stays.pop())
        code = exit_code()
        logging.shutdown()
        os._exit(code)
