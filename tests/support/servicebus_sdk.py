"""Helpers for tests with azure-servicebus: deal with the sockets that the SDK leaves open, and wait for a condition."""

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
    Ignore warnings about open sockets in this block. At its end, have the garbage collector close the sockets of lost connections, which
    the SDK does not close.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@contextmanager
def unlogged() -> Iterator[None]:
    """
    Switch logging off in this block. Otherwise pytest would keep log records that refer to the sockets that the SDK leaves open.
    """
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


async def until(fact: Callable[[], object]) -> None:
    """Wait until a condition holds that depends on the broker in this process."""
    async with asyncio.timeout(HUNG_SECONDS):
        while not fact():  # noqa: ASYNC110  # facts of the engine have no event to wait for
            await asyncio.sleep(0.02)
