"""
Outbound: which topics the worker's messages go to and in which form, as the settings ask for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.servicebus.preflight import preflight
from cosmos_outbox.adapters.servicebus.publisher import ServiceBusPublisher
from cosmos_outbox.ports import Publisher
from cosmos_outbox.relay.cloudevents import CloudEventsPublisher
from cosmos_outbox.relay.routing import RoutedPublisher, Routes, parse_routes
from cosmos_outbox.service.settings import MessageFormat, Settings

_logger = logging.getLogger("worker")


def routes_of(settings: Settings) -> Routes:
    """
    Return where events go.
    """
    return parse_routes(settings.routes or "", default=settings.topic)


@asynccontextmanager
async def opened_publisher(
    settings: Settings, bus: ServiceBusClient, *, traced: Callable[[Publisher, str], Publisher]
) -> AsyncIterator[Publisher]:
    """
    Open one publisher for every topic; what they are given together goes out in the form asked for.

    Args:
        traced: wraps the publisher of a topic.
    """
    routes = routes_of(settings)
    async with AsyncExitStack() as stack:
        publishers: dict[str, Publisher] = {}
        for topic in routes.topics:
            opened = ServiceBusPublisher(bus, topic, lanes=settings.lanes, batch_scope=settings.batch_scope)
            publishers[topic] = traced(await stack.enter_async_context(opened), topic)
        single = len(publishers) == 1
        publisher = publishers[settings.topic] if single else RoutedPublisher(routes, publishers)
        if settings.message_format is not MessageFormat.PLAIN:
            publisher = CloudEventsPublisher(
                publisher,
                source=settings.cloudevents_source
                or f"/{settings.cosmos_database}/{settings.cosmos_container}",
                mode=settings.message_format.removeprefix("cloudevents-"),
            )
        yield publisher


async def warn_of_misses(settings: Settings, credential: AsyncTokenCredential | None) -> None:
    """
    Log what about the topics would cost order or bring duplicates.
    """
    if not settings.preflight:
        return
    secret = settings.servicebus_connection_string
    inspected = await preflight(
        routes_of(settings).topics,
        batch_scope=settings.batch_scope,
        connection_string=secret.get_secret_value() if secret else None,
        namespace=settings.servicebus_namespace,
        credential=credential,
    )
    for miss in inspected.misses:
        _logger.warning("topic.miss %s", miss)
    if inspected.unknown is not None:
        _logger.warning("topic.unknown %s", inspected.unknown)
