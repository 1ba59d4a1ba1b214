"""Shared by tests with the unmodified SDK for Service Bus: closes the sockets that the SDK leaves open."""

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
    Collect the transports of lost connections, which the SDK does not close, before a test sees their warning.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@contextmanager
def unlogged() -> Iterator[None]:
    """Switch logging off: the records that pytest keeps would refer to the sockets that the SDK leaves open."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


async def until(fact: Callable[[], object]) -> None:
    """Wait for a fact that the broker brings about by itself."""
    async with asyncio.timeout(HUNG_SECONDS):
        while not fact():  # noqa: ASYNC110  # facts of the engine have no event to wait for
            await asyncio.sleep(0.02)
