"""
CosmosLeases: read and write lease documents in a Cosmos DB container, as the interface (port) LeaseStore demands. The fields of a lease
document are defined in `changefeed/leases.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from azure.core import MatchConditions
from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.client import LONGEST_CALL_SECONDS
from cosmos_outbox.adapters.cosmos.errors import header, our_errors
from cosmos_outbox.errors import ConfigurationError, StoreUnavailable, error_line
from cosmos_outbox.ports import Document, Listing


class CosmosLeases:
    """
    The leases in a Cosmos DB container. The container must exist and be partitioned on `/id` or `/partitionKey`.

    Args:
        container: a container for leases only.
    """

    def __init__(self, container: ContainerProxy) -> None:
        self._container = container
        self._by_id: bool | None = None

    async def partitioned_by_id(self) -> bool:
        if self._by_id is None:
            async with _call(needed="partition key /id and a default time to live of -1 for the leases"):
                properties = await self._container.read()
                if (properties.get("defaultTtl") or 0) > 0:
                    raise ConfigurationError(
                        f"The lease container {self._container.id!r} deletes documents {properties['defaultTtl']} s after their last write. "
                        "Workers that are down longer would lose their positions: set its default time to live to -1."
                    )
                paths = properties["partitionKey"]["paths"]
                if paths not in (["/id"], ["/partitionKey"]):
                    raise ConfigurationError(
                        f"The lease container {self._container.id!r} is partitioned on {', '.join(paths)}; "
                        "create one with partition key /id."
                    )
                self._by_id = paths == ["/id"]
        return self._by_id

    async def list(self, prefix: str) -> Listing:
        headers: dict[str, Any] = {}
        async with _call():
            items = self._container.query_items(
                "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)",
                parameters=[{"name": "@prefix", "value": prefix}],
                # The SDK takes an answer without a list of documents for an empty list, and the worker would
                # take all its leases for lost. `body["Documents"]` raises an error instead.
                response_hook=lambda received, body: headers.update(received, listed=body["Documents"]),
            )
            documents = tuple([_check_stored(document) async for document in items])
            # The worker decides by the service's clock whether a lease has expired. This machine's clock is
            # used only if a proxy removed the header `date`.
            date = header(headers, "date")
            read_at = parsedate_to_datetime(date).astimezone(UTC) if date else datetime.now(UTC)
            return Listing(documents=documents, read_at=read_at)

    async def read(self, document_id: str, partition_key: str) -> Document:
        async with _call():
            return _check_stored(await self._container.read_item(document_id, partition_key))

    async def create(self, document: Mapping[str, Any]) -> Document:
        routing = {} if await self.partitioned_by_id() else {"partitionKey": document["id"]}
        async with _call():
            return _check_stored(await self._container.create_item({**routing, **document}))

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        async with _call():
            return _check_stored(
                await self._container.replace_item(document["id"], dict(document), **_condition(etag))
            )

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        async with _call():
            await self._container.delete_item(document_id, partition_key, **_condition(etag))


def _condition(etag: str | None) -> dict[str, Any]:
    return {} if etag is None else {"etag": etag, "match_condition": MatchConditions.IfNotModified}


@asynccontextmanager
async def _call(*, needed: str = "") -> AsyncIterator[None]:
    """
    Translate every failure of a call into an error of this library. An answer that cannot be read becomes
    StoreUnavailable, so the worker tries again.
    """
    try:
        async with our_errors(needed=needed), asyncio.timeout(LONGEST_CALL_SECONDS):
            yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreUnavailable(f"The lease container's answer cannot be read: {error_line(error)}") from error


def _check_stored(document: Any) -> Document:
    match document:
        # The limit of `_ts`, in seconds, keeps the time of the write within what a datetime can hold.
        case {"id": str(), "_etag": str(), "_ts": int(ts)} if 0 <= ts < 1 << 37:
            return dict(document)
    raise ValueError(f"a lease document needs an id, an _etag and a valid _ts, unlike {document!r:.300}")
