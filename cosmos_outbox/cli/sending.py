"""
Sending: the publisher that sends as the workers do, to the same topics and in the same form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from cosmos_outbox.adapters.servicebus.publisher import ServiceBusPublisher
from cosmos_outbox.cli.target import MESSAGE_FORMATS, Target, opened_bus
from cosmos_outbox.ports import Publisher
from cosmos_outbox.relay.cloudevents import CloudEventsPublisher
from cosmos_outbox.relay.routing import RoutedPublisher, parse_routes


@asynccontextmanager
async def opened_publisher(target: Target) -> AsyncIterator[Publisher]:
    """
    Open one ordered stream to every topic that the routes name.

    Raises:
        ConfigurationError: the environment names no topic.
    """
    async with AsyncExitStack() as stack:
        bus, topic = await stack.enter_async_context(opened_bus(target))
        routes = parse_routes(target.routes, default=topic)
        publishers: dict[str, Publisher] = {
            name: await stack.enter_async_context(
                ServiceBusPublisher(bus, name, lanes=1, batch_scope=target.batch_scope)
            )
            for name in routes.topics
        }
        publisher = RoutedPublisher(routes, publishers) if len(publishers) > 1 else publishers[topic]
        mode = MESSAGE_FORMATS[target.message_format]
        yield (
            publisher
            if mode is None
            else CloudEventsPublisher(publisher, source=target.cloudevents_source, mode=mode)
        )
