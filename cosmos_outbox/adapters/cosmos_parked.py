"""
CosmosParked: the ParkedStore port on a Cosmos DB container.
"""

from __future__ import annotations

from collections.abc import Sequence

from azure.cosmos.aio import ContainerProxy, CosmosClient

from cosmos_outbox.adapters.cosmos_containers import open_container
from cosmos_outbox.adapters.cosmos_errors import translated
from cosmos_outbox.adapters.cosmos_store import CosmosStore
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import CommitResult, Document, Write


class CosmosParked:
    """
    A container partitioned on `/partitionKey` in which nothing expires; `open_parked` checks both.
    """

    def __init__(self, container: ContainerProxy) -> None:
        self._container = container
        self._store = CosmosStore(container)

    async def read(self, document_id: str, partition_key: str) -> Document:
        return await self._store.read(document_id, partition_key)

    async def list(self, partition_key: str) -> tuple[Document, ...]:
        async with translated():
            items = self._container.query_items("SELECT * FROM c", partition_key=partition_key)
            return tuple([document async for document in items])

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        return await self._store.commit(partition_key, writes)


async def open_parked(client: CosmosClient, database: str, container: str) -> CosmosParked:
    """
    Return the parked store on an existing container.

    Raises:
        ConfigurationError: the container is missing, or held events could not be found or would expire in it.
    """
    proxy, seconds = await open_container(client, database, container, needed_ttl="no time to live")
    if seconds is not None and seconds != -1:
        raise ConfigurationError(
            f"The container {container!r} deletes its documents after {seconds} s, and with them held events; "
            "switch its time to live off."
        )
    return CosmosParked(proxy)
