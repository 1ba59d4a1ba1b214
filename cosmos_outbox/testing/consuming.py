"""
Consuming: run a consumer's processor until every message of its subscription is dealt with, without waiting for time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.messages import Message
from cosmos_outbox.parking import Parking
from cosmos_outbox.ports import Retry, Session, Settlement, Subscription
from cosmos_outbox.records import (
    ConsumerHalted,
    ConsumingDelayed,
    Hook,
    MessageSettled,
    ReceivingFailed,
    Record,
)
from cosmos_outbox.sessions import HeldSession, SessionOptions, SessionProcessor
from cosmos_outbox.testing.calls import Around, surrounded
from cosmos_outbox.testing.relaying import AT_ONCE, MOMENT
from cosmos_outbox.write.unit_of_work import Outbox

_ATTEMPTS = 3  # in a row that fail; each has tried for a while


class ConsumerStuck(Exception):
    """
    The consumer could not work again and again, and would go on trying; what it could not handle still waits.
    """


@dataclass(slots=True)
class Subscribed:
    """
    The subscription of a consumer, and how many messages of the topic have come to it.
    """

    subscription: MemorySubscription = field(default_factory=MemorySubscription)
    messages: int = 0


async def consume_everything(
    consumer: Consumer,
    outbox: Outbox,
    subscription: MemorySubscription,
    *,
    around: Sequence[Around],
    adapted: Callable[[Subscription], Subscription],
    parking: Parking,
    notify: Hook,
) -> None:
    """
    Run one process of a consumer until no message waits; locks that a process before it had are over.

    Raises:
        ConsumerStuck: it failed many times in a row.
        ConfigurationError: as `Consumer.handling`.
    """
    failures: list[BaseException] = []

    def heard(record: Record) -> None:
        if isinstance(record, ConsumingDelayed | ConsumerHalted | ReceivingFailed):
            failures.append(record.error)
            if len(failures) >= _ATTEMPTS:
                running.cancel()
        elif isinstance(record, MessageSettled) and record.outcome != "retry":
            failures.clear()
        notify(record)

    quick = copy(consumer)
    quick.policy = replace(consumer.policy, backoff=AT_ONCE)
    quick.bind(outbox)
    handling = quick.handling(source=f"topic/{consumer.name}", parking=parking, notify=heard)
    options = SessionOptions(session_idle_timeout=MOMENT, backoff=AT_ONCE)

    async def handled(message: Message, session: HeldSession) -> Settlement:
        settlement = await handling(message, session)
        return replace(settlement, after_seconds=0.0) if isinstance(settlement, Retry) else settlement

    for session_id in {message.session_id or "" for message in subscription.waiting}:
        subscription.lose_lock(session_id)
    passing = adapted(_Passing(subscription, around))
    processor = SessionProcessor(passing, handled, options, hooks=(heard,))
    running = asyncio.create_task(processor.run())
    try:
        while not running.done():
            if not subscription.waiting:
                processor.stop()
                await asyncio.wait({running})
            else:
                await asyncio.wait({running}, timeout=MOMENT.total_seconds())
        if len(failures) >= _ATTEMPTS:
            raise ConsumerStuck(
                f"The consumer failed {_ATTEMPTS} times in a row: {failures[-1]}"
            ) from failures[-1]
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Passing:
    """
    A subscription whose calls, and those of its sessions, pass through functions.
    """

    def __init__(self, subscription: Subscription, around: Sequence[Around]) -> None:
        self._subscription, self._around = surrounded(subscription, "subscription", around), around

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self._subscription.accept(wait_seconds)
        return session and surrounded(session, "subscription", self._around)
