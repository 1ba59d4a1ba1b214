"""What the tests with the unmodified SDK for Service Bus share: ways around what it leaves open."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.patience import HUNG_SECONDS


@contextmanager
def leaky_sockets() -> Iterator[None]:
    """
    The SDK does not close the transport of a connection that it lost: collect those here, before a test sees the warning.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@contextmanager
def unlogged() -> Iterator[None]:
    """Log nothing: the records that pytest keeps would keep what the SDK does not close."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


async def until(fact: Callable[[], object]) -> None:
    """Wait for something the broker does by itself."""
    async with asyncio.timeout(HUNG_SECONDS):
        while not fact():  # noqa: ASYNC110  # facts of the engine have no event to wait for
            await asyncio.sleep(0.02)
