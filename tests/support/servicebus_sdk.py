"""What the tests with the unmodified SDK share: a served broker and a client of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox_emulators.servicebus.broker import Broker
from cosmos_outbox_emulators.servicebus.server import ServiceBusServer
from tests.support.patience import HUNG_SECONDS


@asynccontextmanager
async def serving(
    config=None, *, clock=time.time, **client_options
) -> AsyncIterator[tuple[ServiceBusServer, ServiceBusClient]]:
    """A broker on a free port, and a client that retries quickly."""
    broker = Broker.from_config(config, clock=clock) if config else Broker.default()
    options = {"retry_backoff_factor": 0.05, **client_options}
    async with (
        ServiceBusServer(broker) as server,
        ServiceBusClient.from_connection_string(server.connection_string, **options) as client,
    ):
        yield server, client


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


def topic_config(name="t", *, topic=None, **subscription):
    """One topic with the subscription "s"."""
    return {"topics": [{"name": name, **(topic or {}), "subscriptions": [{"name": "s", **subscription}]}]}


def messages(*ids, session_id=None):
    return [ServiceBusMessage(name, message_id=name, session_id=session_id) for name in ids]


async def receive_all(receiver, count):
    # One call returns what has arrived a moment after the first, which on a busy machine is not all.
    received = []
    while len(received) < count:
        more = await receiver.receive_messages(count - len(received), max_wait_time=60)
        assert more
        received += more
    return received


def texts(received):
    return [str(message) for message in received]


def subscription_stats(server, topic="t", subscription="s"):
    return server.broker.stats()["topics"][topic]["subscriptions"][subscription]


async def until(fact: Callable[[], object]) -> None:
    """Wait for something the broker does by itself."""
    async with asyncio.timeout(HUNG_SECONDS):
        while not fact():  # noqa: ASYNC110  # facts of the engine have no event to wait for
            await asyncio.sleep(0.02)
