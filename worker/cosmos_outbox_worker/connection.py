"""
Connection: open the clients, containers, publisher and parked store that the settings name, for workers, consumers and commands.
`settings.py` reads the settings.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any

from azure.core.credentials_async import AsyncTokenCredential
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.servicebus.aio import ServiceBusClient
from pydantic import SecretStr

from cosmos_outbox.adapters.cosmos.client import account_of, is_url, open_cosmos_client
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.lean_poll_requests import Answered
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.parked import CosmosParked, open_parked
from cosmos_outbox.adapters.cosmos.store import CosmosStore, open_store
from cosmos_outbox.adapters.servicebus.publisher import ServiceBusPublisher, open_service_bus_client
from cosmos_outbox.adapters.servicebus.subscription import ServiceBusSubscription, receivers_for
from cosmos_outbox.changefeed import Lag, estimate_lag
from cosmos_outbox.changefeed.bootstrap import others_on, own_prefix
from cosmos_outbox.errors import ConfigurationError, UsageError
from cosmos_outbox.http_proxies import proxy_for
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import Publisher, StartFrom, Subscription
from cosmos_outbox.records import Hook, log_hook
from cosmos_outbox.relay.ceiling import Ceiling
from cosmos_outbox.relay.cloudevents import ContentMode, as_cloud_event
from cosmos_outbox.relay.released_events import resending
from cosmos_outbox.relay.spans import Around
from cosmos_outbox.relay.topics_and_refusals import Topics
from cosmos_outbox_worker.consumer_settings import ConsumerSettings
from cosmos_outbox_worker.heartbeats import Fleet
from cosmos_outbox_worker.named_publisher import open_publisher
from cosmos_outbox_worker.settings import Settings, require_service_bus, require_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The open Cosmos DB client of an outbox, with its containers. Its methods open Service Bus and the stores when they are needed."""

    settings: Settings
    client: CosmosClient
    data: ContainerProxy
    lease_container: ContainerProxy
    parked: ContainerProxy | None
    feed: CosmosChangeFeed
    leases: CosmosLeases
    credential: AsyncTokenCredential | None
    ceiling: Ceiling | None

    def to(self, settings: Settings) -> Connection:
        """
        Return a connection with other settings, such as another container. It shares the client, the credential and the limit on
        messages a second (`ceiling`) with this connection.
        """
        return _connection(settings, self.client, self.credential, self.ceiling)

    async def prefix(self) -> str:
        """
        Return the prefix with which the ids of the processor's lease documents begin.

        Raises:
            ConfigurationError: a container is missing, or leases exist under another host name of the account.
        """
        # Read the lease container first. If the whole database is missing, the error then names the lease container.
        await self.leases.partitioned_by_id()
        processor = self.settings.processor_name
        return await own_prefix(await self.feed.describe(), processor_name=processor, leases=self.leases)

    @property
    def fleet(self) -> Fleet:
        """Return the object that reads and writes the heartbeats of the processor's workers."""
        return Fleet(self.leases, processor=self.settings.processor_name, container=self.settings.container)

    async def key_of(self, text: str) -> PartitionKey:
        """
        Parse a partition key that an operator typed.

        Raises:
            UsageError: the text does not fit the partition key paths of the container.
            ConfigurationError: the container is missing, or cannot hold an outbox.
        """
        try:
            return (await self.feed.describe()).key_paths.parse(text)
        except ValueError as error:
            raise UsageError(str(error)) from None

    async def others(self) -> tuple[str, ...]:
        """Return the names of other processors that have leases for the same container."""
        name = self.settings.processor_name
        return await others_on(await self.feed.describe(), processor_name=name, leases=self.leases)

    async def others_alone(self) -> tuple[str, ...]:
        """
        Return the names of the other processors that have leases, but only if this processor has no lease. If it has none,
        OUTBOX_PROCESSOR_NAME may be misspelled, or the workers of this processor never started.
        """
        return () if (await self.leases.list(f"{await self.prefix()}..")).documents else await self.others()

    async def lag(self, expiration: timedelta, processor: str | None = None) -> Lag:
        """
        Estimate how many transactions wait in each range of this processor, or of the processor that `processor` names.

        A lease that was not written for longer than `expiration` counts as free.
        """
        name = processor or self.settings.processor_name
        return await estimate_lag(name, feed=self.feed, leases=self.leases, expiration=expiration)

    async def find_unserved_processors(self, expiration: timedelta) -> Mapping[str, int]:
        """
        Return the name of each other processor that has waiting changes and no worker, with the number of these changes.

        Return nothing unless OUTBOX_START is `now`. With `now`, a processor skips all earlier changes. So if its name is new because
        OUTBOX_PROCESSOR_NAME was changed, the changes that wait for the old name are never sent.
        """
        left = dict[str, int]()
        for other in await self.others() if self.settings.start is StartFrom.NOW else ():
            lag = await self.lag(expiration, other)
            if lag.transactions and not any(one.owner for one in lag.leases):
                left[other] = lag.transactions
        return left

    async def store(self) -> CosmosStore:
        """
        Open the store of the entities and events.

        Raises:
            ConfigurationError: the container is missing, or cannot hold an outbox.
        """
        return await open_store(self.client, self.settings.cosmos_database, self.settings.cosmos_container)

    async def parked_store(self) -> CosmosParked:
        """
        Open the parked store.

        Raises:
            ConfigurationError: OUTBOX_PARKED_CONTAINER is not set, or its container is missing or cannot be used.
        """
        if self.settings.parked_container is None:
            raise ConfigurationError("OUTBOX_PARKED_CONTAINER: is required")
        return await open_parked(self.client, self.settings.cosmos_database, self.settings.parked_container)

    async def parked_keys(self, publisher: Publisher | None = None) -> ParkedKeys:
        """
        Return the object that lists, releases and drops the parked keys of the processor. Only a release needs the publisher.

        Raises:
            ConfigurationError: OUTBOX_PARKED_CONTAINER is not set, or its container is missing or cannot be used.
        """
        events = CosmosStore(self.data, (await self.feed.describe()).key_paths)
        send = None if publisher is None else resending(publisher, events=events)
        return ParkedKeys(await self.parked_store(), send, scope=await self.scope())

    async def scope(self) -> Scope:
        """Return the scope under which the processor's keys are parked: the processor's name and the container's resource id."""
        # Read the resource id each time, because a container that was deleted and created again has a new id.
        container = await self.feed.describe()
        return Scope(processor=self.settings.processor_name, container=container.container_rid)

    @asynccontextmanager
    async def service_bus(self) -> AsyncIterator[ServiceBusClient]:
        """
        Open the Service Bus client for as long as the block lasts.

        Raises:
            ConfigurationError: the settings do not name a topic and its namespace.
        """
        require_service_bus(self.settings)
        to = self.namespace
        if self.settings.servicebus_transport == "websockets":
            to |= {"websockets": True, "proxy": https_proxy(self.settings.namespace or "")}
        async with open_service_bus_client(**to) as opened:
            yield opened

    @asynccontextmanager
    async def subscription(
        self, settings: ConsumerSettings, *, notify: Hook = log_hook
    ) -> AsyncIterator[Subscription]:
        """
        Open the subscription or queue of a consumer for as long as the block lasts.

        Args:
            settings: the settings that name the subscription or queue, and the receiver.
            notify: receives a record if the lean receiver (this library's own AMQP client) fails and the SDK's receiver replaces it.

        Raises:
            ConfigurationError: the settings do not name the Service Bus namespace, or the lean receiver is not installed.
        """
        receiver: Callable[..., Any] = ServiceBusSubscription
        if settings.receiver == "amqp":
            receiver = functools.partial(lean_receiver().FallbackSubscription, notify=notify)
        options = {"sessions": settings.sessions, "receivers": receivers_for(settings.concurrent_sessions)}
        source = settings.topic, settings.subscription
        async with self.service_bus() as bus, receiver(bus, *source, **options) as opened:
            yield opened

    @asynccontextmanager
    async def publisher(
        self,
        *,
        lanes: int,
        ceiling: Ceiling | None = None,
        around: Callable[[str, str | None, Iterable[str]], Around] | None = None,
        notify: Hook = log_hook,
    ) -> AsyncIterator[Topics]:
        """
        Open a publisher to each topic of the routes for as long as the block lasts.

        The publishers are those of Service Bus, or those of OUTBOX_PUBLISHER. Messages have the format of OUTBOX_MESSAGE_FORMAT.

        Args:
            lanes: how many ordered streams each topic gets.
            ceiling: limits the messages a second. Defaults to the limit of the process, OUTBOX_SEND_RATE.
            around: returns a context manager that encloses each send, such as one that makes a span. It is called with the kind of
                broker, the host of the namespace and the topics. Defaults to none.
            notify: receives the records of publishers. Defaults to logging them.

        Raises:
            ConfigurationError: the settings do not name a topic and its namespace, or OUTBOX_PUBLISHER cannot be opened.
        """
        settings, routes = self.settings, self.settings.topics
        options: Any = {"batch_scope": settings.batch_scope, "sdk_only": settings.sdk_only, "notify": notify}
        async with AsyncExitStack() as stack:
            if settings.publisher is None:
                bus = await stack.enter_async_context(self.service_bus())
                opening: Callable[[str], AbstractAsyncContextManager[Publisher]] = functools.partial(
                    ServiceBusPublisher, bus, lanes=lanes, **options
                )
            else:
                require_topic(settings)
                opening = functools.partial(open_publisher, settings.publisher, lanes=lanes)
            opened = {topic: await stack.enter_async_context(opening(topic)) for topic in routes.topics}
            shape = None
            if settings.message_format != "plain":
                mode = ContentMode(settings.message_format.removeprefix("cloudevents-"))
                shape = functools.partial(as_cloud_event, source=f"/{settings.container}", mode=mode)
            surrounding: dict[str, Around] = {}
            if around is not None:
                host = settings.server_address if settings.publisher is None else None
                surrounding["around"] = around(Topics(opened).system, host, routes.topics)
            yield Topics(opened, routes, shape=shape, ceiling=ceiling or self.ceiling, **surrounding)

    @property
    def namespace(self) -> dict[str, Any]:
        """Return the keyword arguments with which each Service Bus adapter reaches and signs in to the namespace."""
        return {
            "connection_string": _text(self.settings.servicebus_connection_string),
            "namespace": self.settings.servicebus_namespace,
            "credential": self.credential,
        }


@asynccontextmanager
async def open_connection(
    settings: Settings, *, answered: Answered | None = None, opening_seconds: float | None = None
) -> AsyncIterator[Connection]:
    """
    Open the Cosmos DB client and the containers that the settings name, for as long as the block lasts.

    Args:
        settings: the settings that name the account and the containers.
        answered: called with each answer of Cosmos DB.
        opening_seconds: how long to try to reach the account. Defaults to the time that the SDK tries.

    Raises:
        ConfigurationError: the account cannot be used.
        AccessDenied: the account refuses this program.
        StoreUnavailable: the account does not answer.
    """
    async with AsyncExitStack() as stack:
        credential = None
        if settings.signs_in:
            from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415 - a tenth of a second

            credential = await stack.enter_async_context(DefaultAzureCredential())
        client = await stack.enter_async_context(
            open_cosmos_client(
                connection_string=_text(settings.cosmos_connection_string),
                endpoint=settings.cosmos_endpoint,
                credential=None if settings.cosmos_endpoint is None else credential,
                answered=answered,
                opening_seconds=opening_seconds,
            )
        )
        yield _connection(settings, client, credential, Ceiling.of(settings.send_rate))


def _connection(
    settings: Settings,
    client: CosmosClient,
    credential: AsyncTokenCredential | None,
    ceiling: Ceiling | None,
) -> Connection:
    database = client.get_database_client(settings.cosmos_database)
    data = database.get_container_client(settings.cosmos_container)
    leases = database.get_container_client(settings.lease_container)
    parked = settings.parked_container
    account = account_of(client)
    feed = CosmosChangeFeed(
        data,
        account_host=account.host,
        polls=None if settings.sdk_only else account.polls(),
        priority=None if settings.priority is None else ("Low" if settings.priority == "low" else "High"),
        throughput_bucket=settings.throughput_bucket,
    )
    return Connection(
        settings=settings,
        client=client,
        data=data,
        lease_container=leases,
        parked=database.get_container_client(parked) if parked else None,
        feed=feed,
        leases=CosmosLeases(leases),
        credential=credential,
        ceiling=ceiling,
    )


def lean_receiver() -> ModuleType:
    """
    Import the package of the lean receiver, which receives messages without the Service Bus SDK. Not every installation has it.

    Raises:
        ConfigurationError: the package is not installed.
    """
    try:
        return import_module("cosmos_outbox_amqp")
    except ModuleNotFoundError as error:
        if error.name != "cosmos_outbox_amqp":
            raise
        raise ConfigurationError(
            "OUTBOX_RECEIVER: the receiver `amqp` is not installed: pip install 'cosmos-outbox[amqp]'"
        ) from None


def https_proxy(host: str) -> str | None:
    """
    Return the URL of the proxy that environment variables such as HTTPS_PROXY name for a Service Bus host; None if they name none. The
    Service Bus SDK does not read these variables.

    Raises:
        ConfigurationError: the value is no URL. The error does not show the value, which may contain a password.
    """
    named = proxy_for("https", host)
    url = named if named is None or "://" in named else f"http://{named}"
    if url is None or is_url(url):
        return url
    raise ConfigurationError("HTTPS_PROXY: must be a URL such as http://proxy.example:3128")


def _text(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
