"""
CosmosLeases: the LeaseStore port on a Cosmos DB container.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from azure.core import MatchConditions
from azure.core.pipeline import PipelineResponse
from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.client import LONGEST_CALL_SECONDS
from cosmos_outbox.adapters.cosmos.errors import error_of, translated
from cosmos_outbox.adapters.cosmos.lean_requests import OF_A_WRITE, Learned
from cosmos_outbox.adapters.cosmos.rest import NOT_EXECUTED, RestClient
from cosmos_outbox.adapters.cosmos.sdk_request import PARTITION_KEY
from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.ports import Document, Listing

_WRITES = "docs"


class CosmosLeases:
    """
    The lease container; it must exist and be partitioned on `/id` or `/partitionKey`.

    Args:
        container: for leases only.
        rest: of the same account, for writes at a fraction of the SDK's CPU. Defaults to none: all goes through the SDK.
    """

    def __init__(self, container: ContainerProxy, *, rest: RestClient | None = None) -> None:
        self._container = container
        self._writes = None if rest is None else Learned(rest, OF_A_WRITE, needed=0)
        self._by_id: bool | None = None

    async def partitioned_by_id(self) -> bool:
        if self._by_id is None:
            try:
                async with _called():
                    properties = await self._container.read()
            except ConfigurationError:
                raise ConfigurationError(
                    f"The lease container {self._container.id!r} or its database does not exist; create it with partition "
                    "key /id and a default time to live of -1 (workers never create containers)."
                ) from None
            if (properties.get("defaultTtl") or 0) > 0:
                raise ConfigurationError(
                    f"The lease container {self._container.id!r} deletes documents {properties['defaultTtl']} s after their last "
                    "write, and with them the positions of workers that are down; set its default time to live to -1."
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
        headers: dict[str, str] = {}
        async with _called():
            items = self._container.query_items(
                "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)",
                parameters=[{"name": "@prefix", "value": prefix}],
                response_hook=lambda received, _: headers.update(received),
            )
            documents = tuple([document async for document in items])
        return Listing(documents=documents, read_at=_service_time(headers))

    async def read(self, document_id: str, partition_key: str) -> Document:
        async with _called():
            return dict(await self._container.read_item(document_id, partition_key))

    async def create(self, document: Mapping[str, Any]) -> Document:
        if found := await self._over_rest("POST", document, {}):
            return found
        async with _called():
            return dict(await self._container.create_item(dict(document), raw_response_hook=self._learn))

    async def replace(self, document: Mapping[str, Any], *, etag: str) -> Document:
        if found := await self._over_rest("PUT", document, {"If-Match": etag}):
            return found
        async with _called():
            return dict(
                await self._container.replace_item(
                    document["id"], dict(document), **_condition(etag), raw_response_hook=self._learn
                )
            )

    async def _over_rest(
        self, method: str, document: Mapping[str, Any], condition: Mapping[str, str]
    ) -> Document | None:
        """
        Write a document over plain REST; None where nothing was written, and the SDK has to do it or to say why not.
        """
        if self._writes is None:
            return None
        key = document.get("id" if await self.partitioned_by_id() else "partitionKey")
        if not isinstance(key, str):
            return None
        headers = {**condition, PARTITION_KEY: json.dumps([key])}
        replaced = document["id"] if method == "PUT" else ""
        async with _called():
            answer = await self._writes.written(
                method, _WRITES, replaced, headers=headers, body=json.dumps(document).encode()
            )
            if answer is None or answer.status in NOT_EXECUTED:
                return None
            if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED):
                raise error_of(answer, document_id=document["id"])
            found: Document = answer.json()
            return found

    def _learn(self, response: PipelineResponse[Any, Any]) -> None:
        request, status = response.http_request, response.http_response.status_code
        if self._writes is not None and request.method != "GET" and status < HTTPStatus.BAD_REQUEST:
            self._writes.learn(_WRITES, request)

    async def delete(self, document_id: str, partition_key: str, *, etag: str | None = None) -> None:
        async with _called():
            await self._container.delete_item(document_id, partition_key, **_condition(etag))


def _condition(etag: str | None) -> dict[str, Any]:
    return {} if etag is None else {"etag": etag, "match_condition": MatchConditions.IfNotModified}


@asynccontextmanager
async def _called() -> AsyncIterator[None]:
    async with translated(), asyncio.timeout(LONGEST_CALL_SECONDS):
        yield


def _service_time(headers: Mapping[str, str]) -> datetime:
    # The service's clock decides expiry; our own is used if a proxy removed the header.
    date = next((value for name, value in headers.items() if name.lower() == "date"), None)
    return parsedate_to_datetime(date).astimezone(UTC) if date else datetime.now(UTC)
