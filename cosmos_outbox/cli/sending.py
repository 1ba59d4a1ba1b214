"""
Sending: the publisher that sends as the workers do, to the same topics and in the same form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from cosmos_outbox.adapters.service_bus import BatchScope, ServiceBusPublisher
from cosmos_outbox.cli.target import Target, opened_bus
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Publisher
from cosmos_outbox.relay.cloudevents import CloudEventsPublisher
from cosmos_outbox.relay.routing import RoutedPublisher, parse_routes

_FORMATS = {"plain": None, "cloudevents-structured": "structured", "cloudevents-binary": "binary"}


@asynccontextmanager
async def opened_publisher(target: Target) -> AsyncIterator[Publisher]:
    """
    Open one ordered stream to every topic that the routes name.

    Raises:
        ConfigurationError: a variable has a value that the worker would refuse too.
    """
    if target.message_format not in _FORMATS:
        raise ConfigurationError(f"OUTBOX_MESSAGE_FORMAT: must be one of {', '.join(_FORMATS)}")
    if target.batch_scope not in list(BatchScope):
        raise ConfigurationError(f"OUTBOX_BATCH_SCOPE: must be one of {', '.join(BatchScope)}")
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
        mode = _FORMATS[target.message_format]
        yield (
            publisher
            if mode is None
            else CloudEventsPublisher(publisher, source=target.cloudevents_source, mode=mode)
        )
