"""
ServiceBusPublisher: the Publisher port on a Service Bus topic, with a sender for each lane (ordered stream). `batch_sender.py` sends the
batches of a lane.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import certifi
from azure.core.credentials_async import AsyncTokenCredential
from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError

from cosmos_outbox.adapters.servicebus import encoding
from cosmos_outbox.adapters.servicebus.batch_sender import Lane
from cosmos_outbox.adapters.servicebus.errors import publish_error
from cosmos_outbox.errors import BrokerUnavailable, ConfigurationError, UsageError
from cosmos_outbox.event_loop import Background, end, within
from cosmos_outbox.message_format import OutboundMessage
from cosmos_outbox.records import Hook, SdkFallback, log_hook

# For how many seconds the SDK's keep-alive (every 30 s) may delay a send. The SDK's default is 0.2 s.
_SOCKET_SECONDS = 0.02
_LINK_SECONDS = 15.0
# How many seconds the closing of one link may take. The SDK needs up to one second. On a broken link the
# SDK's call that closes the link would never end.
CLOSE_SECONDS = 5.0
# Finds the port of an emulator in a connection string. For WebSockets the SDK ignores that port and uses 443,
# unless it gets the address as an argument.
_OWN_PORT = re.compile(r"Endpoint=(sb://[^;/]+:\d+)", re.IGNORECASE)


class BatchScope(StrEnum):
    """Which messages may share a batch."""

    # Messages of any sessions may share a batch. This is for topics that are not partitioned, the default of
    # Service Bus.
    TOPIC = "topic"
    SESSION = "session"  # only messages of the same session share a batch: for partitioned topics
    MESSAGE = "message"  # each batch holds one message: for partitioned topics with duplicate detection


_RUN_OF: dict[BatchScope, Callable[[OutboundMessage], object]] = {
    BatchScope.TOPIC: lambda message: None,
    BatchScope.SESSION: lambda message: message.session_id,
    BatchScope.MESSAGE: lambda message: message.message_id,
}


def open_service_bus_client(
    *,
    connection_string: str | None = None,
    namespace: str | None = None,
    credential: AsyncTokenCredential | None = None,
    websockets: bool = False,
    proxy: str | None = None,
) -> ServiceBusClient:
    """
    Return a client with the settings on which the order of published messages depends. The caller enters it with `async
    with`.

    Args:
        connection_string: the connection string of the namespace. Instead, `namespace` and `credential` may be given.
        namespace: the host of the namespace, like `contoso.servicebus.windows.net`.
        credential: signs in to the namespace.
        websockets: whether AMQP goes over a WebSocket, to port 443. Defaults to TCP, to port 5671.
        proxy: the URL of an HTTP proxy, for WebSockets.

    Raises:
        ConfigurationError: neither a connection string nor a namespace with a credential is given, or the connection
            string cannot be read.
    """
    # The SDK's own retries are switched off, because they could change the order of messages, which `Lane`
    # keeps. All connections share one TLS context. Without it the SDK reads the certificates for each
    # connection, which blocks the event loop for 40 ms.
    options: dict[str, Any] = {"retry_total": 0, "ssl_context": tls_context()}
    if websockets:
        options["transport_type"] = TransportType.AmqpOverWebsocket
        if proxy is not None:
            url = urlsplit(proxy)
            host = f"{url.scheme}://{url.netloc.removesuffix(f':{url.port}')}"
            options["http_proxy"] = {"proxy_hostname": host, "proxy_port": url.port or 80}
    if connection_string is not None:
        try:
            if websockets and (own := _OWN_PORT.search(connection_string)):
                options["custom_endpoint_address"] = own[1]
            return ServiceBusClient.from_connection_string(connection_string, **options)
        except ValueError as error:  # its text is not shown, because it may quote the key
            raise ConfigurationError(
                "The Service Bus connection string cannot be read; copy it again."
            ) from error
    if namespace is None or credential is None:
        raise ConfigurationError("Service Bus needs a connection string, or a namespace and a credential.")
    return ServiceBusClient(namespace, credential, **options)


def tls_context() -> ssl.SSLContext:
    """
    Return the TLS context that verifies the broker's certificate. It uses the certificates of `certifi`, or the files
    that the environment names instead.
    """
    named = any(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    return ssl.create_default_context(cafile=None if named else certifi.where())


class ServiceBusPublisher:
    """
    Publishes messages to one topic through several lanes (ordered streams). Each lane opens its AMQP link at its first
    use, and again after a failure.

        async with open_service_bus_client(connection_string=...) as client:
            async with ServiceBusPublisher(client, "events") as publisher:
                ...

    Args:
        client: made by `open_service_bus_client`; stays open.
        topic: the name of the topic.
        lanes: how many ordered streams there are, each with a connection of its own. Defaults to 8.
        batch_scope: which messages may share a batch. Defaults to `topic`.
        send_timeout: how long the opening of a link, and each send, may take. Defaults to 15 s.
        cancel_grace: how long a cancelled call waits for the outcome of a send. Defaults to 2 s.
        sdk_only: whether the SDK encodes all messages, which takes several times the CPU. Defaults to False.
        notify: a function that gets an `SdkFallback` if only the SDK can encode the messages. Defaults to logging it.
    """

    def __init__(
        self,
        client: ServiceBusClient,
        topic: str,
        *,
        lanes: int = 8,
        batch_scope: BatchScope | str = BatchScope.TOPIC,
        send_timeout: timedelta = timedelta(seconds=15),
        cancel_grace: timedelta = timedelta(seconds=2),
        sdk_only: bool = False,
        notify: Hook = log_hook,
    ) -> None:
        if lanes < 1:
            raise ConfigurationError(f"A publisher needs at least one lane, not {lanes}.")
        self._client, self._topic = client, topic
        self._run_of = _RUN_OF[BatchScope(batch_scope)]
        self._closing = Background()
        self._closed = False
        if not sdk_only and (cause := encoding.fallback_cause()) is not None:
            notify(SdkFallback(part="encoder", entity=topic, reason=cause))
        self._lanes = tuple(
            Lane(
                topic=topic,
                open_sender=partial(client.get_topic_sender, topic, socket_timeout=_SOCKET_SECONDS),
                # Close the old link in the background, so that the lane can open a new link at once.
                discard=lambda sender, sending: self._closing.add(_close(sender, sending)),
                sdk_only=sdk_only,
                timeout_seconds=send_timeout.total_seconds(),
                grace_seconds=cancel_grace.total_seconds(),
            )
            for _ in range(lanes)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        await self._closing.wait()

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    @property
    def batch_bytes(self) -> int | None:
        return max((lane.batch_bytes for lane in self._lanes if lane.batch_bytes), default=None)

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        if self._closed:
            raise UsageError("The publisher is closed; publish inside its `async with`.")
        await self._lanes[lane].publish([list(run) for _, run in itertools.groupby(messages, self._run_of)])

    async def check(self) -> None:
        """
        Open a link to the topic as a lane does, send nothing, and close the link again.

        Raises:
            PublishError: the topic cannot be sent to, or does not answer.
        """
        # Only the creation of a batch opens the link. The batch itself is not used.
        sender = self._client.get_topic_sender(self._topic)
        try:
            await within(_LINK_SECONDS, sender.create_message_batch())
        except TimeoutError:
            raise BrokerUnavailable(
                f"The link to topic {self._topic!r} did not open in {_LINK_SECONDS:g} s."
            ) from None
        except ServiceBusError as error:
            raise publish_error(error, topic=self._topic) from None
        finally:
            with suppress(Exception):
                await within(CLOSE_SECONDS, sender.close())


async def _close(sender: ServiceBusSender, sending: asyncio.Task[None] | None) -> None:
    if sending is not None:
        await end({sending})
    with suppress(Exception):  # a broken link may raise any error here, and no caller waits for the close
        await within(CLOSE_SECONDS, sender.close())
