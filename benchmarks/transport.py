"""
What receiving costs without a consumer: both transports, whose sessions are drained by handlers that do nothing, and idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.servicebus import ServiceBusSubscription
from cosmos_outbox.ports import Complete, Subscription
from cosmos_outbox_amqp import AmqpSubscription

SLOTS = 32
AHEAD = 50
_ACCEPT_SECONDS = 5.0
_SETTLE_SECONDS = 2.0  # until all links wait

Opened = Callable[[str, int], AbstractAsyncContextManager[Subscription]]  # of a topic, fetching so many ahead


def opening(bus: ServiceBusClient) -> dict[str, Opened]:
    """
    Return what opens the subscription of a topic, by the name of the transport.
    """
    return {
        "sdk": lambda topic, ahead: ServiceBusSubscription(bus, topic, "all", prefetch=ahead),
        "amqp": lambda topic, ahead: AmqpSubscription(bus, topic, "all", prefetch=ahead),
    }


async def drained(subscription: Subscription, messages: int, *, wait_seconds: float) -> tuple[float, float]:
    """
    Return how many messages a second were received and completed, in their sessions' order, and microseconds of CPU for each.
    """
    left, done = messages, asyncio.Event()

    async def slot() -> None:
        nonlocal left
        while not done.is_set():
            session = await subscription.accept(_ACCEPT_SECONDS)
            if session is None:
                continue
            while (message := await session.receive(wait_seconds)) is not None:
                await session.settle(message, Complete())
                left -= 1
                if not left:
                    done.set()
            await session.close()

    started, cpu = time.perf_counter(), time.process_time()
    slots = [asyncio.create_task(slot()) for _ in range(SLOTS)]
    await done.wait()
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    for one in slots:
        one.cancel()
    await asyncio.gather(*slots, return_exceptions=True)
    return messages / seconds, used / messages * 1e6


async def idle(subscription: Subscription, seconds: float) -> float:
    """
    Return the milliseconds of CPU that so many waiting slots take in a second.
    """
    calls = [asyncio.create_task(subscription.accept(seconds + _SETTLE_SECONDS)) for _ in range(SLOTS)]
    await asyncio.sleep(_SETTLE_SECONDS)
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (time.process_time() - cpu) / (time.perf_counter() - began)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    return share * 1000
