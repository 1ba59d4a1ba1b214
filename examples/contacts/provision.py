"""
Create the database and containers of the contacts example on an emulator. On Azure, the templates in `infra` create them.
"""

from __future__ import annotations

from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient


async def provision(
    connection_string: str,
    *,
    database: str = "contacts",
    data: str = "data",
    leases: str = "leases",
    parked: str = "parked",
    directory: str = "directory",
) -> None:
    """Create the database and its containers, unless they exist."""
    # -1 turns time to live on: events expire by their own `ttl`, and documents without a `ttl` never expire. Without the setting,
    # Cosmos DB would ignore the `ttl` of events and keep them for ever.
    async with CosmosClient.from_connection_string(connection_string) as client:
        made = await client.create_database_if_not_exists(database)
        for container in (data, directory):
            await made.create_container_if_not_exists(
                container, PartitionKey("/partitionKey"), default_ttl=-1
            )
        await made.create_container_if_not_exists(leases, PartitionKey("/id"), default_ttl=-1)
        # The parked store has no time to live, because a held event has to wait until an operator decides what to do with it.
        await made.create_container_if_not_exists(parked, PartitionKey("/partitionKey"))
