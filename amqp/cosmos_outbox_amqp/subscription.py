"""
AmqpSubscription: receive the sessions of a subscription or queue over one AMQP connection. It implements the library's interface
`Subscription`. `session.py` receives and settles the messages of a session.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Self

from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.servicebus.receiving import check_options
from cosmos_outbox.event_loop import Background, retrieve
from cosmos_outbox_amqp.errors import AmqpError, Condition
from cosmos_outbox_amqp.link import Link
from cosmos_outbox_amqp.namespace import Namespace
from cosmos_outbox_amqp.peer_trust import Trust
from cosmos_outbox_amqp.session import AmqpSession
from cosmos_outbox_amqp.signed_in_connection import SignedIn


class AmqpSubscription:
    """
    Receives the sessions of one subscription or queue.

        async with open_service_bus_client(connection_string=...) as client:
            async with AmqpSubscription(client, "events", "billing") as subscription:
                await SessionProcessor(subscription, handler).run()

    Args:
        client: a client that `open_service_bus_client` created. It has the host of the namespace and the credential.
        entity: the name of the topic, or of the queue if `subscription` is None.
        subscription: the name of the topic's subscription.
        prefetch: how many messages of a session the broker may deliver before they are asked for. If the session is released, these
            messages do not count as delivered. Defaults to 20.
        lock_duration: the lock duration of the subscription, or less. This receiver relies on a lock for at most this time. Defaults to
            60 s, as in Service Bus.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        entity: str,
        subscription: str | None = None,
        *,
        prefetch: int = 20,
        lock_duration: timedelta = timedelta(seconds=60),
    ) -> None:
        check_options(sessions=True, prefetch=prefetch, lock_duration=lock_duration)
        self.namespace, self._prefetch = Namespace.of(client), prefetch
        self._path = entity if subscription is None else f"{entity}/Subscriptions/{subscription}"
        self.name = entity if subscription is None else f"{entity}/{subscription}"
        self.trust = Trust(self.name)
        self._lock_seconds = lock_duration.total_seconds()
        self._opening: asyncio.Task[SignedIn] | None = None  # opens the connection, or has opened it
        self._closing = Background()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.wait()
        opening, self._opening = self._opening, None
        if opening is not None:
            await _close(opening)

    async def accept(self, wait_seconds: float) -> AmqpSession | None:
        loop = asyncio.get_running_loop()
        began = inf
        try:
            signed_in = await self._sign_in()
            began = loop.time()
            link = Link(signed_in.connection, self._path, wait_seconds=wait_seconds, ahead=self._prefetch)
            try:
                attached = await link.wait_attached()
            except BaseException:
                link.detach()
                raise
            return AmqpSession(signed_in, link, attached, trust=self.trust, lock_seconds=self._lock_seconds)
        except AmqpError as error:
            # A time-out after about the requested wait means that no session has a message. A time-out that comes sooner means
            # that the broker is busy.
            if error.condition == Condition.TIMEOUT and loop.time() - began >= wait_seconds / 2:
                return None
            raise self.trust.translate(error) from error

    async def _sign_in(self) -> SignedIn:
        # Concurrent calls share one attempt to connect. After a failed attempt or a lost connection, the next call starts a new attempt.
        task = self._opening
        if task is not None and task.done() and (task.exception() or task.result().connection.lost):
            self._opening = None
            self._closing.add(_close(task))
        if self._opening is None:
            self._opening = asyncio.create_task(SignedIn.open(self.namespace, self._path))
            self._opening.add_done_callback(retrieve)
        task = self._opening
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # the closing of this receiver cancelled the attempt, not the caller
                raise AmqpError("", "The connection is closed.") from None
            raise


async def _close(opening: asyncio.Task[SignedIn]) -> None:
    opening.cancel()
    with suppress(AmqpError, asyncio.CancelledError):
        await (await opening).close()
