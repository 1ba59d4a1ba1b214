"""
Open an existing container, and check that events, leases and parked keys each have a container of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from azure.cosmos.aio import ContainerProxy, CosmosClient

from cosmos_outbox.adapters.cosmos.errors import our_errors
from cosmos_outbox.errors import ConfigurationError, require
from cosmos_outbox.partition_key import KeyPaths, key_paths_of

NEEDED_BY_EVENTS = "partition key /partitionKey, or the paths that your entities have, and a default time to live of -1 for the events"


def find_clashes(names: Mapping[str, str | None]) -> list[str]:
    """
    Return one line of text for every two settings that name the same container.

    If leases were stored beside the events, each renewal of a lease would be a change that the worker reads. That moves
    the worker's position, which it writes into the lease, which is a change again, without end. Besides, a program that
    may write events could write leases too, and so make workers skip events.

    Args:
        names: the name of a container by the name of its setting; None if the setting is not set.
    """
    return [
        f"{second}: names the container of {first}, {names[first]!r}; it needs one of its own"
        for first, second in combinations(names, 2)
        if names[first] is not None and names[first] == names[second]
    ]


def usable_key_paths(properties: Mapping[str, Any]) -> KeyPaths:
    """
    Return the partition key paths of a container for entities and events.

    Raises:
        ConfigurationError: the container's partition key is one that an outbox cannot use.
    """
    try:
        return key_paths_of((properties.get("partitionKey") or {}).get("paths") or ())
    except ValueError as error:
        raise ConfigurationError(
            f"The container {properties['id']!r} cannot hold an outbox: {error}. Create another container, "
            "because the partition key paths of this one cannot be changed."
        ) from None


async def open_container(
    client: CosmosClient, database: str, container: str, *, needed: str
) -> tuple[ContainerProxy, Mapping[str, Any]]:
    """
    Return an existing container and its properties.

    Args:
        client: a client of the account.
        database: the name of the database.
        container: the name of the container.
        needed: the partition key and time to live that the container needs, for the error text if it is missing.

    Raises:
        ConfigurationError: the container, or its database, is missing; or `client` is not a client of
            `azure.cosmos.aio`.
    """
    said = f"Pass (client, database, container) with a CosmosClient of azure.cosmos.aio, whose calls are awaited; {type(client)} is none."
    require(hasattr(client, "__aenter__"), said, ConfigurationError)
    proxy = client.get_database_client(database).get_container_client(container)
    async with our_errors(needed=needed):
        return proxy, await proxy.read()
