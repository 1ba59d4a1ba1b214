"""
FallbackSubscription: receive with the lean receiver, and after repeated faults with the SDK's receiver until the process ends.
`peer_trust.py` decides how many faults are too many.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.servicebus.subscription import ServiceBusSubscription, receivers_for
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Session
from cosmos_outbox.records import Hook, SdkFallback, log_hook
from cosmos_outbox_amqp.subscription import AmqpSubscription


class FallbackSubscription:
    """
    Receives sessions with the lean receiver and, after repeated faults (see `Trust`), with the SDK's receiver.

    The connection of the lean receiver is closed before the SDK's receiver takes over. So the broker delivers unsettled messages
    again, in order.

    Args:
        client: a client that `open_service_bus_client` created. It is not closed here.
        entity: the name of the topic, or of the queue if `subscription` is None.
        subscription: the name of the topic's subscription.
        sessions: has to be True, because the lean receiver can only receive sessions.
        receivers: how many receivers the SDK opens after it has taken over; see `ServiceBusSubscription`.
        prefetch, lock_duration: see `AmqpSubscription` and `ServiceBusSubscription`.
        notify: called with a record `SdkFallback` when the SDK's receiver takes over. By default, the record is logged.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        entity: str,
        subscription: str | None = None,
        *,
        sessions: bool = True,
        receivers: int = receivers_for(32),
        notify: Hook = log_hook,
        **options: Any,
    ) -> None:
        if not sessions:
            raise ConfigurationError("The lean receiver needs sessions; choose the SDK's receiver.")
        self._lean = AmqpSubscription(client, entity, subscription, **options)
        self._sdk = ServiceBusSubscription(client, entity, subscription, receivers=receivers, **options)
        self._receiver: AmqpSubscription | ServiceBusSubscription = self._lean
        self._notify, self._changing = notify, asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._receiver.__aexit__(None, None, None)

    async def accept(self, wait_seconds: float) -> Session | None:
        async with self._changing:
            lost_by = self._lean.trust.lost_by
            if lost_by is not None and self._receiver is self._lean:
                await self._lean.__aexit__()
                self._receiver = self._sdk
                self._notify(SdkFallback(part="receiver", entity=self._lean.name, reason=str(lost_by)))
        return await self._receiver.accept(wait_seconds)
