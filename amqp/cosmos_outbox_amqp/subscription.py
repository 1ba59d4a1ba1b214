"""
AmqpSubscription: the Subscription port on a topic's subscription or a queue, one connection for all sessions.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from math import inf
from types import TracebackType
from typing import Self

from cosmos_outbox.adapters.servicebus.receiving import check_options
from cosmos_outbox.background import Background, retrieve
from cosmos_outbox_amqp.errors import AmqpError, Condition, receive_error
from cosmos_outbox_amqp.link import Link
from cosmos_outbox_amqp.session import AmqpSession, give_back
from cosmos_outbox_amqp.signed_in import SignedIn
from cosmos_outbox_amqp.tokens import Namespace


class AmqpSubscription:
    """
    Receives from one subscription or queue, with sessions or without.

        namespace = namespace_of(connection_string=...)
        async with AmqpSubscription(namespace, "events", "billing") as subscription:
            await SessionProcessor(subscription, handler).run()

    Args:
        namespace: made by `namespace_of`.
        entity: the topic, or the queue if there is no subscription.
        subscription: its name.
        sessions: whether it requires sessions. Defaults to True.
        prefetch: messages that the broker delivers ahead, for each session; of no use without sessions, where each is locked by
            itself. Defaults to none: a handler that is slow never lets messages wait in this process.
        lock_duration: of the subscription, or less: a lock is trusted for no longer. Defaults to 60 s, as Service Bus does.
    """

    def __init__(
        self,
        namespace: Namespace,
        entity: str,
        subscription: str | None = None,
        *,
        sessions: bool = True,
        prefetch: int = 0,
        lock_duration: timedelta = timedelta(seconds=60),
    ) -> None:
        check_options(sessions=sessions, prefetch=prefetch, lock_duration=lock_duration)
        self._namespace, self._sessions, self._prefetch = namespace, sessions, prefetch
        self._path = entity if subscription is None else f"{entity}/Subscriptions/{subscription}"
        self.name = entity if subscription is None else f"{entity}/{subscription}"
        self._lock_seconds = lock_duration.total_seconds()
        self._opening: asyncio.Task[SignedIn] | None = None  # or open
        self._closing = Background()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._closing.done()
        opening, self._opening = self._opening, None
        if opening is not None:
            await _closed(opening)

    async def accept(self, wait_seconds: float) -> AmqpSession | None:
        loop = asyncio.get_running_loop()
        began = inf
        try:
            signed_in = await self._signed_in()
            began = loop.time()
            return await self._accepted(signed_in, wait_seconds)
        except AmqpError as error:
            # After a search this means that no session has a message. An answer at once, or before the search, means a busy broker.
            if error.condition == Condition.TIMEOUT and loop.time() - began >= wait_seconds / 2:
                return None
            raise receive_error(error, entity=self.name) from error

    async def _accepted(self, signed_in: SignedIn, wait_seconds: float) -> AmqpSession | None:
        link = Link(
            signed_in.connection,
            self._path,
            next_session=self._sessions,
            wait_seconds=wait_seconds if self._sessions else 0.0,
            ahead=self._prefetch,
        )
        try:
            attached = await link.attached()
            session = AmqpSession(
                signed_in, link, attached, entity=self.name, lock_seconds=self._lock_seconds
            )
            if self._sessions or await session.fetched_first(wait_seconds):
                return session
        except BaseException:
            if self._sessions:
                link.detach()
            else:  # a message may have arrived that no call will read
                self._closing.add(give_back(link))
            raise
        await session.close()
        return None

    async def _signed_in(self) -> SignedIn:
        # Calls that wait side by side share one attempt; when it failed, the next call makes another.
        opening = self._opening
        if (
            opening is not None
            and opening.done()
            and (opening.exception() or opening.result().connection.lost)
        ):
            self._opening = None
            self._closing.add(_closed(opening))
        if self._opening is None:
            self._opening = asyncio.create_task(SignedIn.open(self._namespace, self._path))
            self._opening.add_done_callback(retrieve)
        return await asyncio.shield(self._opening)


async def _closed(opening: asyncio.Task[SignedIn]) -> None:
    opening.cancel()
    with suppress(AmqpError, asyncio.CancelledError):
        await (await opening).close()
