"""
Consuming: run a consumer's processor until every message of its subscription is dealt with, without waiting for time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.consumer import Consumer
from cosmos_outbox.errors import LockLost
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
    SessionClosed,
)
from cosmos_outbox.sessions import HeldSession, SessionOptions, SessionProcessor
from cosmos_outbox.testing.calls import Around, surrounded
from cosmos_outbox.testing.running import AT_ONCE, MOMENT, Progress
from cosmos_outbox.write.outbox import Outbox

_ATTEMPTS = 3  # failures in a row; each commit has retried for a while


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
        Stuck: it failed many times in a row, or did nothing for long.
        ConfigurationError: as `Consumer.handling`.
    """
    progress = Progress(attempts=_ATTEMPTS)

    def heard(record: Record) -> None:
        match record:
            case (
                ConsumingDelayed(error=error)
                | ConsumerHalted(error=error)
                | ReceivingFailed(error=error)
                | SessionClosed(error=LockLost() as error)
            ):
                progress.failed(error)
            case MessageSettled(outcome=outcome) if outcome != "retry":
                progress.moved()
        notify(record)

    async def is_done() -> bool:
        return not subscription.waiting

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
    await progress.run(processor, until=is_done)


class _Passing:
    """
    A subscription whose calls, and those of its sessions, pass through functions.
    """

    def __init__(self, subscription: Subscription, around: Sequence[Around]) -> None:
        self._subscription, self._around = surrounded(subscription, "subscription", around), around

    async def accept(self, wait_seconds: float) -> Session | None:
        session = await self._subscription.accept(wait_seconds)
        return session and surrounded(session, "subscription", self._around)
