"""
FallbackSubscription: receives with the lean receiver; once trust in it is lost, with the SDK's until the process ends.
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
    Receives sessions with the lean receiver and, once trust in it is lost, with the SDK's.

    Before the change it closes the lean sessions. The broker keeps locks and order, and delivers unsettled messages again.

    Args:
        client: made by `open_service_bus_client`; stays open.
        entity: the topic; or the queue, where `subscription` is None.
        subscription: the name of the topic's subscription.
        sessions: must be True.
        receivers: how many receivers the SDK opens, as for `ServiceBusSubscription`.
        prefetch, lock_duration: as for `AmqpSubscription` and `ServiceBusSubscription`.
        notify: receives a `SdkFallback` at the change. Defaults to logging it.
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
