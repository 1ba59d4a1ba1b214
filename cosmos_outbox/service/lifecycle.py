"""
Lifecycle: the first SIGTERM or SIGINT drains, the second aborts.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine

# One asking may come as two signals: GNU timeout sends its own to the process and to the group it is in.
_ONE_ASKING_SECONDS = 0.25

_logger = logging.getLogger(__name__)


class Aborted(Exception):
    """
    A second signal came while the worker was draining; its leases are left to expire.
    """


async def run_until_signalled(
    work: Coroutine[None, None, None], *, drain: Callable[[], None], beside: Coroutine[None, None, None]
) -> None:
    """
    Run work; return once it drained after a first signal.

    Args:
        work: ends by itself after `drain` was called.
        drain: asks it to.
        beside: runs for as long as the work does; if it fails, the work is cancelled.

    Raises:
        Aborted: there was a second signal.
        BaseException: whatever ended the work, or what ran beside it, by itself.
    """
    loop = asyncio.get_running_loop()
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(beside)
    asked_at: float | None = None
    aborting = False

    def signalled(name: str) -> None:
        nonlocal asked_at, aborting
        if asked_at is None:
            asked_at = loop.time()
            _logger.info("worker.draining on %s; a second signal aborts", name)
            drain()
        elif loop.time() - asked_at > _ONE_ASKING_SECONDS:
            aborting = True
            _logger.warning("worker.aborted on a second signal; its leases expire by themselves")
            working.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number.name)
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
        await working
    except asyncio.CancelledError:
        if aborting:
            raise Aborted from None
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
