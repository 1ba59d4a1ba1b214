"""
Bootstrap: the composition root; clients, adapters, relay and processor are put together here and nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta

from azure.identity.aio import DefaultAzureCredential

from cosmos_outbox.adapters.cosmos_client import account_host, open_cosmos_client
from cosmos_outbox.adapters.cosmos_feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos_leases import CosmosLeases
from cosmos_outbox.adapters.service_bus import ServiceBusPublisher, open_service_bus_client
from cosmos_outbox.changefeed import ChangeFeedProcessor, ProcessorOptions
from cosmos_outbox.ports import StartFrom
from cosmos_outbox.relay import Relay
from worker.settings import Settings


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[ChangeFeedProcessor]:
    """
    Open everything the settings name, yield the processor that relays, close everything again.

    Raises:
        ConfigurationError: a container is missing or cannot be used.
    """
    async with AsyncExitStack() as stack:
        credential = None
        if settings.cosmos_connection_string is None or settings.servicebus_connection_string is None:
            credential = await stack.enter_async_context(DefaultAzureCredential())
        cosmos_secret, bus_secret = settings.cosmos_connection_string, settings.servicebus_connection_string
        cosmos = await stack.enter_async_context(
            open_cosmos_client(
                connection_string=cosmos_secret.get_secret_value() if cosmos_secret else None,
                endpoint=settings.cosmos_endpoint,
                credential=credential,
            )
        )
        bus = await stack.enter_async_context(
            open_service_bus_client(
                connection_string=bus_secret.get_secret_value() if bus_secret else None,
                namespace=settings.servicebus_namespace,
                credential=credential,
            )
        )
        database = cosmos.get_database_client(settings.cosmos_database)
        publisher = await stack.enter_async_context(
            ServiceBusPublisher(bus, settings.topic, lanes=settings.lanes)
        )
        yield ChangeFeedProcessor(
            CosmosChangeFeed(
                database.get_container_client(settings.cosmos_container), account_host=account_host(cosmos)
            ),
            CosmosLeases(database.get_container_client(settings.lease_container)),
            Relay(publisher),
            processor_options(settings),
        )


def processor_options(settings: Settings) -> ProcessorOptions:
    """
    Return the processor's options that the settings ask for.
    """
    return ProcessorOptions(
        processor_name=settings.processor_name,
        instance_name=settings.instance_name,
        start=settings.start if isinstance(settings.start, datetime) else StartFrom(settings.start),
        max_items=settings.page_size,
        acquire_interval=timedelta(seconds=settings.lease_acquire_seconds),
        renew_interval=timedelta(seconds=settings.lease_renew_seconds),
        expiration=timedelta(seconds=settings.lease_expiration_seconds),
        max_poll_interval=timedelta(seconds=settings.max_poll_seconds),
        grace_period=timedelta(seconds=settings.grace_seconds),
    )
