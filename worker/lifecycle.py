"""
Lifecycle: the first SIGTERM or SIGINT drains, the second aborts.
"""

from __future__ import annotations

import asyncio
import logging
import signal

from cosmos_outbox.changefeed import ChangeFeedProcessor

_logger = logging.getLogger(__name__)


class Aborted(Exception):
    """
    A second signal came while the worker was draining; its leases are left to expire.
    """


async def run_until_signalled(processor: ChangeFeedProcessor) -> None:
    """
    Run a processor; return once it drained after a first signal.

    Raises:
        Aborted: there was a second signal.
        BaseException: whatever ended the processor by itself.
    """
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(processor.run())
    signals = 0

    def signalled(name: str) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            _logger.info("worker.draining on %s; a second signal aborts", name)
            processor.stop()
        else:
            _logger.warning("worker.aborted on a second signal; its leases expire by themselves")
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number.name)
    try:
        await running
    except asyncio.CancelledError:
        if signals > 1:
            raise Aborted from None
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
