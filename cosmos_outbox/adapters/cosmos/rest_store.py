"""
RestStore: a CosmosStore that commits and reads over plain REST, at a fraction of the SDK's CPU. Experimental.

It uses only answers that need no judgement: what was read, committed or rolled back. A request that was refused before it was
executed is sent again through the SDK, whose answer then counts: it knows other regions, new containers, expired tokens. Where
the request may have been executed, its error goes to the caller, at 503 too, and the SDK sends the next. Endpoint and
headers are those of the SDK's last request of the kind. They hold for a few minutes, and for no kind after an answer that was not
understood: then the SDK sends one again, which takes the others to the region that it uses by now.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from azure.core.pipeline import PipelineResponse
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.cosmos.exceptions import CosmosBatchOperationError

from cosmos_outbox.adapters.cosmos.client import rest_client
from cosmos_outbox.adapters.cosmos.errors import error_of
from cosmos_outbox.adapters.cosmos.rest import NOT_EXECUTED, Answer, RestClient
from cosmos_outbox.adapters.cosmos.sdk_request import PARTITION_KEY, SESSION_TOKEN, Sent, kept_of
from cosmos_outbox.adapters.cosmos.store import CosmosStore, condition, open_store
from cosmos_outbox.partition_key import KeyPaths, PartitionKey
from cosmos_outbox.ports import Document, Write, WriteKind

# Headers of the SDK's request that hold for the next one too; RestClient adds date and authorization.
_KEPT = (
    "x-ms-version",
    "x-ms-consistency-level",
    "x-ms-cosmos-intended-collection-rid",
    "x-ms-cosmos-is-batch-request",
    "x-ms-cosmos-batch-atomic",
    "x-ms-cosmos-batch-continue-on-error",
    "x-ms-cosmos-priority-level",
    "x-ms-cosmos-throughput-bucket",
    "x-ms-cosmos-allow-tentative-writes",
)
_ANSWERED = (HTTPStatus.OK, HTTPStatus.MULTI_STATUS)
# The SDK would report these answers too, so the next request need not go through it.
_UNDERSTOOD = (
    *_ANSWERED,
    HTTPStatus.NOT_MODIFIED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.TOO_MANY_REQUESTS,
    449,
)


class RestStore(CosmosStore):
    """
    A container with time to live switched on; `open_rest_store` opens it.
    """

    def __init__(self, container: ContainerProxy, key_paths: KeyPaths, rest: RestClient) -> None:
        super().__init__(container, key_paths)
        self._rest = rest
        self._sent: dict[str, Sent] = {}  # by method

    async def _send(
        self, partition_key: PartitionKey, writes: Sequence[Write], **options: Any
    ) -> Sequence[Mapping[str, Any]]:
        if (sent := self._known("POST")) is None:
            note = partial(self._learn, "POST")
            return await super()._send(partition_key, writes, raw_response_hook=note, **options)
        body = json.dumps([_operation(write) for write in writes], separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json", PARTITION_KEY: _header(partition_key)}
        answer = await self._asked("POST", sent, sent.documents, headers, body)
        if answer.status in NOT_EXECUTED:
            return await super()._send(partition_key, writes, **options)
        if answer.status not in _ANSWERED:
            only = writes[0].id if len(writes) == 1 else None
            raise error_of(answer, document_id=only, partition_key=partition_key)
        outcomes: Sequence[Mapping[str, Any]] = answer.json()
        if any(one["statusCode"] >= HTTPStatus.BAD_REQUEST for one in outcomes):
            raise CosmosBatchOperationError(  # type: ignore[no-untyped-call]
                headers=answer.headers,
                status_code=answer.status,
                message="There was an error in the transactional batch.",
                operation_responses=outcomes,
            )
        options["response_hook"](answer.headers, None)
        return outcomes

    async def _fetch(self, document_id: str, partition_key: PartitionKey, **options: Any) -> Document:
        if (sent := self._known("GET")) is None or "/" in document_id:
            note = partial(self._learn, "GET")
            return await super()._fetch(document_id, partition_key, raw_response_hook=note, **options)
        headers = {PARTITION_KEY: _header(partition_key)}
        if "session_token" in options:
            headers[SESSION_TOKEN] = options["session_token"]
        if "etag" in options:
            headers["If-None-Match"] = options["etag"]
        answer = await self._asked("GET", sent, f"{sent.documents}/{document_id}", headers)
        match answer.status, answer.sub_status:
            case HTTPStatus.OK, _:
                document: Document = answer.json()
                return document
            case HTTPStatus.NOT_MODIFIED, _:
                return {}  # as the SDK returns it
            case (HTTPStatus.TOO_MANY_REQUESTS, _) | (HTTPStatus.NOT_FOUND, 0):
                raise error_of(answer, document_id=document_id, partition_key=partition_key)
        return await super()._fetch(document_id, partition_key, **options)

    async def _asked(
        self, method: str, sent: Sent, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Answer:
        """
        Send a request; the SDK sends the next one after an answer that is not understood here, or none.
        """
        understood = False
        try:
            answer = await self._rest.request(
                method, path, headers={**sent.headers, **headers}, body=body, endpoint=sent.endpoint
            )
            missing = method == "GET" and answer.status == HTTPStatus.NOT_FOUND and not answer.sub_status
            understood = missing or answer.status in _UNDERSTOOD
            return answer
        finally:
            if not understood:
                # Of all kinds: a region that takes no writes any more goes on answering reads, with what it has.
                self._sent.clear()

    def _known(self, method: str) -> Sent | None:
        sent = self._sent.get(method)
        return sent if sent is not None and asyncio.get_running_loop().time() < sent.until else None

    def _learn(self, method: str, response: PipelineResponse[Any, Any]) -> None:
        request, answer = response.http_request, response.http_response
        sent = kept_of(request, _KEPT, now=asyncio.get_running_loop().time())
        of_documents = sent.path.split("/")[4:5] == ["docs"]
        if request.method == method and of_documents and answer.status_code in _ANSWERED:
            self._sent[method] = sent


async def open_rest_store(client: CosmosClient, database: str, container: str) -> RestStore:
    """
    Return the store on an existing container, as `open_store` does, with commits and reads over plain REST.

    Experimental: it was proved against the emulator, and on no account of Azure yet.

    Args:
        client: opened by `open_cosmos_client`.
        database: its name.
        container: its name.

    Raises:
        ConfigurationError: the container is missing, or is set up so that the outbox could not work.
    """
    store = await open_store(client, database, container)
    proxy = client.get_database_client(database).get_container_client(container)
    return RestStore(proxy, store.key_paths, rest_client(client))


def _header(key: PartitionKey) -> str:
    return json.dumps(list(key) if isinstance(key, tuple) else [key])


def _operation(write: Write) -> Mapping[str, Any]:
    operation: dict[str, Any] = {"operationType": write.kind}
    if write.kind is not WriteKind.CREATE:
        operation["id"] = write.id
    if write.kind is not WriteKind.DELETE:
        operation["resourceBody"] = write.document
    if write.etag is not None:
        operation["ifMatch"] = condition(write.etag)
    return operation
