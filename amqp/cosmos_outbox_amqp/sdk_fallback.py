"""
FallbackSubscription: the lean receiver, and the SDK's for the rest of the process once trust in the lean one is lost.
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
    Receives sessions over the lean receiver; then, once trust in it is lost, over the SDK's.

    The lean sessions are closed before: the locks are the broker's, and so is the order. A message that was not settled comes again.

    Args:
        client: made by `open_service_bus_client`; stays open.
        entity: the topic, or the queue if there is no subscription.
        subscription: its name.
        sessions: must be True.
        receivers: of the SDK, as for `ServiceBusSubscription`.
        prefetch, lock_duration: as for either.
        notify: receives a `SdkFallback`. Defaults to logging it.
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
            raise ConfigurationError("The lean receiver receives sessions only; choose the SDK's.")
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
