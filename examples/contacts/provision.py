"""
Creates the database and containers of the local stack. On Azure the infrastructure does this, never a worker.
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
    """Create the database and its containers where they do not exist yet."""
    # -1: documents without a `ttl` of their own never expire. With time to live off, sent events would stay for ever.
    async with CosmosClient.from_connection_string(connection_string) as client:
        made = await client.create_database_if_not_exists(database)
        for container in (data, directory):
            await made.create_container_if_not_exists(
                container, PartitionKey("/partitionKey"), default_ttl=-1
            )
        await made.create_container_if_not_exists(leases, PartitionKey("/id"), default_ttl=-1)
        # No time to live at all: a held event waits until an operator decides, however long that takes.
        await made.create_container_if_not_exists(parked, PartitionKey("/partitionKey"))
