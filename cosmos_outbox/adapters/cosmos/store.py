"""
CosmosStore: the Store port on one Cosmos DB container.
"""

from __future__ import annotations

import base64
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Any

from azure.core import MatchConditions
from azure.cosmos.aio import ContainerProxy, CosmosClient

from cosmos_outbox.adapters.cosmos.client import lsn_in
from cosmos_outbox.adapters.cosmos.containers import open_container, refuse_blocking
from cosmos_outbox.adapters.cosmos.errors import translated
from cosmos_outbox.adapters.cosmos.sql import condition_of, sql_of
from cosmos_outbox.errors import (
    ConfigurationError,
    InvalidRequest,
    NotModified,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from cosmos_outbox.ports import CommitResult, Document, Page, Query, Write, WriteKind

_SESSION_TOKEN = "x-ms-session-token"  # noqa: S105 - a header's name
_REMEMBERED_SESSIONS = 10_000
_SESSION_NOT_AVAILABLE = 1002
_ETAG = re.compile(r'"[!#-~]*"')
_MATCHES_NOTHING = '"-"'


class CosmosStore:
    """
    A container partitioned on `/partitionKey` with time to live switched on; `open_store` checks both.
    """

    def __init__(self, container: ContainerProxy) -> None:
        refuse_blocking(container)
        self._container = container
        # By partition key: how new the session is, and its token. The SDK drops the token of a batch, so a later read might not
        # see what the batch wrote.
        self._sessions: OrderedDict[str, tuple[int, str]] = OrderedDict()

    async def read(
        self, document_id: str, partition_key: str, *, if_none_match: str | None = None
    ) -> Document:
        options: dict[str, Any] = {}
        if if_none_match is not None:
            options = {"etag": _condition(if_none_match), "match_condition": MatchConditions.IfModified}
        if (session := self._sessions.get(partition_key)) is not None:
            options["session_token"] = session[1]
        try:
            async with translated(document_ids=[document_id], partition_key=partition_key):
                document = dict(await self._container.read_item(document_id, partition_key, **options))
        except StoreUnavailable as error:
            if getattr(error.__cause__, "sub_status", None) == _SESSION_NOT_AVAILABLE:
                # No replica catches up with the token of a range that was split since.
                self._sessions.pop(partition_key, None)
            raise
        if not document and if_none_match is not None:  # the SDK returns a 304 as an empty item
            raise NotModified(etag=if_none_match, document_id=document_id, partition_key=partition_key)
        return document

    async def commit(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        try:
            async with translated(document_ids=[write.id for write in writes], partition_key=partition_key):
                return await self._write(partition_key, writes)
        except StoreError as error:
            headers: Mapping[str, Any] = getattr(error.__cause__, "headers", None) or {}
            self._remember(partition_key, headers.get(_SESSION_TOKEN))
            if isinstance(error, PreconditionFailed):
                expected = next((write.etag for write in writes if write.id == error.document_id), None)
                raise PreconditionFailed(
                    expected=expected, document_id=error.document_id, partition_key=partition_key
                ) from error.__cause__
            raise

    async def query(self, query: Query, *, page_size: int, continuation: str | None) -> Page:
        text, values = sql_of(query)
        items = self._container.query_items(
            text, parameters=values, partition_key=query.partition_key, max_item_count=page_size
        )
        pages: Any = items.by_page(continuation)
        async with translated():
            async for page in pages:
                documents = tuple([document async for document in page])
                if documents or pages.continuation_token is None:
                    return Page(documents=documents, continuation=pages.continuation_token)
        return Page(documents=(), continuation=None)

    async def query_types(
        self, types: Sequence[str], *, page_size: int, continuation: str | None, include_deleted: bool
    ) -> Page:
        # The SDK has no token for a sorted query over several partitions, so a page begins after the last id and, if the previous
        # one ended among documents of one id, after the last partition key. Sorting by both would need a composite index.
        after_id, after_key = _after(continuation)
        condition, values = condition_of(types, include_deleted=include_deleted)
        known = values | {"@id": after_id}
        of_one_id = f"{condition} AND c.id = @id"
        wanted = page_size + 1  # to know whether more follow
        found: list[Document] = []
        if after_key is not None:
            rest = f"{of_one_id} AND c.partitionKey > @key ORDER BY c.partitionKey"
            found = await self._query(rest, known | {"@key": after_key}, wanted)
        if len(found) < wanted:
            others = f"{condition} AND c.id > @id ORDER BY c.id"
            found += await self._query(others, known, wanted - len(found))
            if len(found) == wanted and found[-2]["id"] == (cut := found[-1]["id"]):
                # The page ends among documents of one id, which the service returns in any order.
                found = [document for document in found if document["id"] != cut]
                in_order = f"{of_one_id} ORDER BY c.partitionKey"
                found += await self._query(in_order, known | {"@id": cut}, wanted - len(found))
        page = tuple(found[:page_size])
        return Page(
            documents=page, continuation=_continuation(page[-1], found[-1]) if found[page_size:] else None
        )

    async def _query(self, condition: str, values: Mapping[str, str], limit: int) -> list[Document]:
        items = self._container.query_items(
            f"SELECT * FROM c WHERE {condition}",  # noqa: S608 - made of constants, the values are parameters
            parameters=[
                {"name": name, "value": value} for name, value in values.items() if name in condition
            ],
            max_item_count=limit,
        )
        async with translated():
            return await _first(items, limit)

    async def _write(self, partition_key: str, writes: Sequence[Write]) -> CommitResult:
        headers: dict[str, Any] = {}

        def note(received: Mapping[str, Any], _: object) -> None:
            headers.update(received)

        if len(writes) > 1:
            answer = await self._container.execute_item_batch(
                [_batch_operation(write) for write in writes], partition_key, response_hook=note
            )
            etags = tuple(operation.get("eTag") for operation in answer)
        else:
            etags = (await self._write_one(partition_key, writes[0], response_hook=note),)
        self._remember(partition_key, headers.get(_SESSION_TOKEN))
        return CommitResult(etags=etags, request_charge=float(headers.get("x-ms-request-charge", 0.0)))

    async def _write_one(self, partition_key: str, write: Write, **options: Any) -> str | None:
        if write.etag is not None:
            options |= {"etag": _condition(write.etag), "match_condition": MatchConditions.IfNotModified}
        body = dict(write.document or {})
        match write.kind:
            case WriteKind.DELETE:
                await self._container.delete_item(write.id, partition_key, **options)
                return None
            case WriteKind.CREATE:
                stored = await self._container.create_item(body, **options)
            case WriteKind.REPLACE:
                stored = await self._container.replace_item(write.id, body, **options)
        return stored.get("_etag")

    def _remember(self, partition_key: str, session: str | None) -> None:
        if not session:
            return
        known, progress = self._sessions.get(partition_key), lsn_in(session) or 0
        if known is None or progress >= known[0]:  # answers may overtake each other
            self._sessions[partition_key] = progress, session
        self._sessions.move_to_end(partition_key)
        if len(self._sessions) > _REMEMBERED_SESSIONS:
            self._sessions.popitem(last=False)


async def open_store(client: CosmosClient, database: str, container: str) -> CosmosStore:
    """
    Return the store on an existing container.

    Raises:
        ConfigurationError: the container is missing, or is set up so that the outbox could not work.
    """
    proxy, seconds = await open_container(
        client, database, container, needed_ttl="a default time to live of -1"
    )
    if seconds is None:
        raise ConfigurationError(
            f"Time to live is off on the container {container!r}, so events would never be deleted; "
            "set its default time to live to -1."
        )
    return CosmosStore(proxy)


async def _first(items: AsyncIterable[Document], limit: int) -> list[Document]:
    found: list[Document] = []
    async for document in items:
        found.append(document)
        if len(found) == limit:
            break
    return found


def _batch_operation(write: Write) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    arguments: tuple[Any, ...]
    match write.kind:
        case WriteKind.DELETE:
            arguments = (write.id,)
        case WriteKind.REPLACE:
            arguments = (write.id, write.document)
        case _:
            arguments = (write.document,)
    condition = {} if write.etag is None else {"if_match_etag": _condition(write.etag)}
    return write.kind.value.lower(), arguments, condition


def _condition(etag: str) -> str:
    # A text that is not an etag, such as *, has another meaning in a header; here it must match no document.
    return etag if _ETAG.fullmatch(etag) else _MATCHES_NOTHING


def _continuation(last: Document, following: Document) -> str:
    place = [last["id"], last["partitionKey"]] if following["id"] == last["id"] else [last["id"]]
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _after(continuation: str | None) -> tuple[str, str | None]:
    if continuation is None:
        return "", None
    try:
        place = json.loads(base64.b64decode(continuation.encode(), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        place = None
    match place:
        case [str(last_id)]:
            return last_id, None
        case [str(last_id), str(last_key)]:
            return last_id, last_key
    raise InvalidRequest("The continuation token is not one that this library gave out.")
