"""
CosmosParked: parked keys and held events in a Cosmos DB container, behind the interface (port) ParkedStore.
`parking/park.py` decides what is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from azure.cosmos.aio import CosmosClient

from cosmos_outbox.adapters.cosmos.containers import open_container
from cosmos_outbox.adapters.cosmos.errors import our_errors
from cosmos_outbox.adapters.cosmos.store import CosmosStore
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Document

# How many parked keys one request lists. The number is large, because the document of a key has only some hundred bytes.
_KEYS_A_PAGE = 1000


class CosmosParked(CosmosStore):
    """
    The container of parked keys and their held events. It is partitioned on `/partitionKey`, and no document in it
    expires. `open_parked` checks that.
    """

    async def page(self, partition_key: str, *, after: str = "", limit: int = 100) -> tuple[Document, ...]:
        return await self._page(
            "SELECT * FROM c WHERE c.id > @after ORDER BY c.id", {"@after": after}, partition_key, limit
        )

    async def queue(self, partition_key: str, *, epoch: str, first: int, limit: int) -> tuple[Document, ...]:
        return await self._page(
            "SELECT * FROM c WHERE c.epoch = @epoch AND c.position >= @first ORDER BY c.position",
            {"@epoch": epoch, "@first": first},
            partition_key,
            limit,
        )

    async def present(self, partition_key: str, document_ids: Collection[str]) -> frozenset[str]:
        query = "SELECT VALUE c.id FROM c WHERE ARRAY_CONTAINS(@ids, c.id)"
        found = await self._all(query, {"@ids": list(document_ids)}, partition_key)
        return frozenset(found)

    async def keys(self, *, processor: str, container: str) -> tuple[Document, ...]:
        query = (
            "SELECT * FROM c WHERE c.type = 'parkedKey' "
            "AND c.processor = @processor AND c.container = @container"
        )
        return tuple(await self._all(query, {"@processor": processor, "@container": container}))

    async def partitions(self) -> frozenset[str]:
        query = "SELECT DISTINCT VALUE c.partitionKey FROM c WHERE c.type = 'parkedEvent'"
        return frozenset(await self._all(query, {}))

    async def scopes(self) -> Counter[tuple[str, str]]:
        """Return how many keys are parked for each processor name and each container."""
        query = "SELECT c.processor, c.container FROM c WHERE c.type = 'parkedKey'"
        return Counter((str(one["processor"]), str(one["container"])) for one in await self._all(query, {}))

    async def _all(self, query: str, parameters: Mapping[str, Any], key: str | None = None) -> list[Any]:
        async with our_errors():
            return [item async for item in self.items(query, parameters, _KEYS_A_PAGE, key)]

    async def _page(
        self, query: str, parameters: Mapping[str, Any], partition_key: str, limit: int
    ) -> tuple[Document, ...]:
        """
        Return only the first page of the answer to a query, so that large documents do not fill the memory.
        """
        page = await self.query(
            query, parameters, partition_key=partition_key, page_size=limit, continuation=None
        )
        return page.documents


async def open_parked(client: CosmosClient, database: str, container: str) -> CosmosParked:
    """
    Open an existing container for parked keys and their held events.

    Raises:
        ConfigurationError: the container is missing, has another partition key than `/partitionKey`, or has a time to
            live after which held events would be deleted.
    """
    proxy, properties = await open_container(
        client, database, container, needed="partition key /partitionKey and no time to live"
    )
    paths, seconds = properties["partitionKey"]["paths"], properties.get("defaultTtl")
    if paths != ["/partitionKey"]:
        raise ConfigurationError(
            f"The container {container!r} is partitioned on {', '.join(paths)}; create one with partition key /partitionKey."
        )
    if seconds is not None and seconds != -1:
        raise ConfigurationError(
            f"The container {container!r} deletes its documents after {seconds} s, and held events would be lost: "
            "switch its time to live off."
        )
    return CosmosParked(proxy)
