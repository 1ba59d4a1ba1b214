"""
Target: which outbox a command works on, as the worker's environment variables name it, and its opened clients.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.identity.aio import DefaultAzureCredential
from azure.servicebus.aio import ServiceBusClient

from cosmos_outbox.adapters.cosmos.client import account_host, open_cosmos_client
from cosmos_outbox.adapters.cosmos.containers import shared_containers
from cosmos_outbox.adapters.cosmos.feed import CosmosChangeFeed
from cosmos_outbox.adapters.cosmos.leases import CosmosLeases
from cosmos_outbox.adapters.cosmos.parked import open_parked
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.adapters.servicebus.publisher import BatchScope, open_service_bus_client
from cosmos_outbox.changefeed.leases import lease_prefix
from cosmos_outbox.changefeed.naming import in_use
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.parking import ParkedKeys, Scope
from cosmos_outbox.ports import Publisher
from cosmos_outbox.relay.routing import parse_routes

_ALTERNATIVES = (
    ("COSMOS_CONNECTION_STRING", "COSMOS_ENDPOINT"),
    ("SERVICEBUS_CONNECTION_STRING", "SERVICEBUS_NAMESPACE"),
)
# What a message looks like, and for CloudEvents how its attributes travel.
MESSAGE_FORMATS = {"plain": None, "cloudevents-structured": "structured", "cloudevents-binary": "binary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    The names of an outbox; secrets are not shown.
    """

    cosmos_connection_string: str | None = field(repr=False)
    cosmos_endpoint: str | None
    database: str
    container: str
    lease_container: str
    parked_container: str | None
    servicebus_connection_string: str | None = field(repr=False)
    servicebus_namespace: str | None
    topic: str | None
    routes: str
    batch_scope: str
    message_format: str
    cloudevents_source: str
    processor: str
    delete_after_publish: str | None

    @property
    def namespace(self) -> str | None:
        """
        Return the host of the Service Bus namespace, whichever way it is named.
        """
        named = re.search("Endpoint=sb://([^;/]+)", self.servicebus_connection_string or "", re.IGNORECASE)
        return named[1] if named else self.servicebus_namespace


def target_of(environ: Mapping[str, str]) -> Target:
    """
    Return the outbox that the environment names.

    Raises:
        ConfigurationError: one line for every variable that is missing, or that the worker would refuse too.
    """

    def value(name: str) -> str | None:
        return environ.get(f"OUTBOX_{name}") or None

    mistakes = [
        f"OUTBOX_{name}: is required" for name in ("COSMOS_DATABASE", "COSMOS_CONTAINER") if not value(name)
    ]
    if not value("COSMOS_CONNECTION_STRING") and not value("COSMOS_ENDPOINT"):
        mistakes.append("OUTBOX_COSMOS_CONNECTION_STRING or OUTBOX_COSMOS_ENDPOINT: one of them is required")
    scope, form, routes = (
        value("BATCH_SCOPE") or "topic",
        value("MESSAGE_FORMAT") or "plain",
        value("ROUTES") or "",
    )
    for first, second in _ALTERNATIVES:
        if value(first) and value(second):
            mistakes.append(f"OUTBOX_{first} or OUTBOX_{second}: give only one of them")
    if scope not in list(BatchScope):
        mistakes.append(f"OUTBOX_BATCH_SCOPE: must be one of {', '.join(BatchScope)}")
    if form not in MESSAGE_FORMATS:
        mistakes.append(f"OUTBOX_MESSAGE_FORMAT: must be one of {', '.join(MESSAGE_FORMATS)}")
    try:
        parse_routes(routes, default="-")
    except ConfigurationError as error:
        mistakes.append(f"OUTBOX_ROUTES: {error}")
    if "/" in (value("SERVICEBUS_NAMESPACE") or ""):
        mistakes.append(
            "OUTBOX_SERVICEBUS_NAMESPACE: must be a host such as NAME.servicebus.windows.net, not a URL"
        )
    leases = value("LEASE_CONTAINER") or "leases"
    mistakes += shared_containers(
        {
            "OUTBOX_COSMOS_CONTAINER": value("COSMOS_CONTAINER"),
            "OUTBOX_LEASE_CONTAINER": leases,
            "OUTBOX_PARKED_CONTAINER": value("PARKED_CONTAINER"),
        }
    )
    if mistakes:
        raise ConfigurationError("\n".join(sorted(mistakes)))
    return Target(
        cosmos_connection_string=value("COSMOS_CONNECTION_STRING"),
        cosmos_endpoint=value("COSMOS_ENDPOINT"),
        database=str(value("COSMOS_DATABASE")),
        container=str(value("COSMOS_CONTAINER")),
        lease_container=leases,
        parked_container=value("PARKED_CONTAINER"),
        servicebus_connection_string=value("SERVICEBUS_CONNECTION_STRING"),
        servicebus_namespace=value("SERVICEBUS_NAMESPACE"),
        topic=value("TOPIC"),
        routes=routes,
        batch_scope=scope,
        message_format=form,
        cloudevents_source=value("CLOUDEVENTS_SOURCE")
        or f"/{value('COSMOS_DATABASE')}/{value('COSMOS_CONTAINER')}",
        processor=value("PROCESSOR_NAME") or "outbox",
        delete_after_publish=value("DELETE_AFTER_PUBLISH"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """
    The containers of an outbox, ready to use.
    """

    target: Target
    client: CosmosClient
    data: ContainerProxy
    lease_container: ContainerProxy
    parked: ContainerProxy | None
    feed: CosmosChangeFeed
    leases: CosmosLeases

    async def prefix(self) -> str:
        """
        Return what the ids of the processor's leases start with.

        Raises:
            ConfigurationError: the container of the leases, or that of the events, is missing; or there are leases under
                several names of the account.
        """
        # First, to name the container of leases where the database of both is missing.
        await self.leases.partitioned_by_id()
        named = await in_use(
            await self.feed.describe(), processor_name=self.target.processor, leases=self.leases
        )
        return lease_prefix(
            self.target.processor, named.account_host, named.database_rid, named.container_rid
        )

    async def parked_keys(self, publisher: Publisher | None = None) -> ParkedKeys:
        """
        Return the parked keys of the processor, to look at or, with a publisher, to release.

        Raises:
            ConfigurationError: the environment names no container for them, or one that cannot work.
        """
        if self.target.parked_container is None:
            raise ConfigurationError("OUTBOX_PARKED_CONTAINER: is required")
        store = await open_parked(self.client, self.target.database, self.target.parked_container)
        named = await self.feed.describe()
        return ParkedKeys(
            store,
            publisher,
            scope=Scope(processor=self.target.processor, container=named.container_rid),
            events=CosmosStore(self.data),
        )


@asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Opened]:
    """
    Open the Cosmos DB side of an outbox.
    """
    async with open_cosmos_client(
        connection_string=target.cosmos_connection_string, endpoint=target.cosmos_endpoint
    ) as client:
        database = client.get_database_client(target.database)
        data = database.get_container_client(target.container)
        leases = database.get_container_client(target.lease_container)
        parked = target.parked_container
        yield Opened(
            target=target,
            client=client,
            data=data,
            lease_container=leases,
            parked=database.get_container_client(parked) if parked else None,
            feed=CosmosChangeFeed(data, account_host=account_host(client)),
            leases=CosmosLeases(leases),
        )


@asynccontextmanager
async def opened_bus(target: Target) -> AsyncIterator[tuple[ServiceBusClient, str]]:
    """
    Open the Service Bus side of an outbox; yield its client and the name of the topic.

    Raises:
        ConfigurationError: the environment does not name it.
    """
    if target.topic is None:
        raise ConfigurationError("OUTBOX_TOPIC: is required")
    if target.servicebus_connection_string is None and target.servicebus_namespace is None:
        raise ConfigurationError(
            "OUTBOX_SERVICEBUS_CONNECTION_STRING or OUTBOX_SERVICEBUS_NAMESPACE: one of them is required"
        )
    async with AsyncExitStack() as stack:
        credential = None
        if target.servicebus_connection_string is None:
            credential = await stack.enter_async_context(DefaultAzureCredential())
        client = open_service_bus_client(
            connection_string=target.servicebus_connection_string,
            namespace=target.servicebus_namespace,
            credential=credential,
        )
        yield await stack.enter_async_context(client), target.topic
