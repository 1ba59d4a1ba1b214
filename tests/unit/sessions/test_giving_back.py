"""Giving a session back to a broker that does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

from cosmos_outbox.adapters.memory import MemorySubscription
from cosmos_outbox.errors import SubscriptionUnavailable
from cosmos_outbox.messages import Message
from cosmos_outbox.sessions import SessionOptions, SessionProcessor


async def test_a_session_that_cannot_be_given_back_does_not_end_the_processor():
    subscription = MemorySubscription(lock_seconds=5)
    accept = subscription.accept

    async def unavailable() -> None:
        raise SubscriptionUnavailable

    async def accepting(wait_seconds: float) -> Any:
        session = await accept(wait_seconds)
        if session is not None:
            session.close = unavailable  # type: ignore[method-assign]
        return session

    subscription.accept = accepting  # type: ignore[method-assign]
    handled = []

    async def handler(message: Message, session: object) -> None:
        handled.append(message.session_id)

    processor = SessionProcessor(subscription, handler, SessionOptions(max_concurrent_sessions=1))
    running = asyncio.create_task(processor.run())
    for number in range(3):
        subscription.deliver(Message(message_id=f"m{number}", session_id=f"s{number}"))
        await asyncio.sleep(30)
    processor.stop()
    await running

    assert ["s0", "s1", "s2"] == handled
