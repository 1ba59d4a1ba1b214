"""
Open event hubs for a worker with `OUTBOX_PUBLISHER=examples.eventhubs.opening:opened`. The worker calls `opened` once for each topic.

One of these environment variables has to name the Event Hubs namespace:

    EVENT_HUBS_CONNECTION_STRING    its connection string, which contains a key
    EVENT_HUBS_NAMESPACE            its host, NAME.servicebus.windows.net; the worker signs in with the default Azure credential
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

from azure.eventhub.aio import EventHubProducerClient
from azure.identity.aio import DefaultAzureCredential

from examples.eventhubs.publisher import EventHubPublisher


async def opened(topic: str, lanes: int) -> AsyncIterator[EventHubPublisher]:
    """Yield a publisher to the event hub that has the name of the topic, with the given number of lanes (senders)."""
    async with AsyncExitStack() as stack:
        if connection_string := os.environ.get("EVENT_HUBS_CONNECTION_STRING"):
            client = partial(
                EventHubProducerClient.from_connection_string,
                connection_string,
                eventhub_name=topic,
                retry_total=0,
            )
        else:
            credential = await stack.enter_async_context(DefaultAzureCredential())
            host = os.environ["EVENT_HUBS_NAMESPACE"]
            client = partial(EventHubProducerClient, host, topic, credential, retry_total=0)
        yield await stack.enter_async_context(EventHubPublisher(client, lanes=lanes))
