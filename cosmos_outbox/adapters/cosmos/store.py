"""
CosmosStore: read and write entities and events in a Cosmos DB container, behind the interface (port) Store. `feed.py` reads the change
feed, and `write/commit.py` decides which writes are repeated.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from azure.core import MatchConditions
from azure.core.async_paging import AsyncItemPaged
from azure.cosmos.aio import ContainerProxy, CosmosClient

from cosmos_outbox import errors
from cosmos_outbox.adapters.cosmos.client import lsn_in
from cosmos_outbox.adapters.cosmos.containers import NEEDED_BY_EVENTS, open_container, usable_key_paths
from cosmos_outbox.adapters.cosmos.errors import our_errors
from cosmos_outbox.adapters.cosmos.lean_poll_requests import SESSION_TOKEN
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, PartitionKey, identity
from cosmos_outbox.ports import CommitResult, Document, Page, Write, WriteKind

_REMEMBERED_SESSIONS = 10_000
_SESSION_NOT_AVAILABLE = 1002
_ETAG = re.compile(r'"[!#-~]*"')
_MATCHES_NOTHING = '"-"'


class CosmosStore:
    """
    The Store port on a Cosmos DB container. `open_store` returns it after a check that the container's time to live is
    switched on.
    """

    def __init__(self, container: ContainerProxy, key_paths: KeyPaths = ON_PARTITION_KEY) -> None:
        self._container = container
        self.key_paths = key_paths
        # The newest session token of each partition key, with its LSN. Reads send it, because the SDK drops
        # the session token of a batch, and a read without it might miss what the batch wrote.
        self._sessions: OrderedDict[Hashable, tuple[int, str]] = OrderedDict()

    async def read(
        self,
        document_id: str,
        partition_key: PartitionKey,
        *,
        if_none_match: str | None = None,
        newest: bool = False,
    ) -> Document:
        if newest:  # read by a batch, because a batch goes to the replica that takes writes
            outcomes, _ = await self._batch(partition_key, [document_id], [("read", (document_id,), {})])
            return dict(outcomes[0]["resourceBody"])
        options: dict[str, Any] = {}
        if if_none_match is not None:
            options = {"etag": _condition(if_none_match), "match_condition": MatchConditions.IfModified}
        if (session := self._sessions.get(identity(partition_key))) is not None:
            options["session_token"] = session[1]
        try:
            async with our_errors(document_ids=[document_id], partition_key=partition_key):
                document = dict(
                    await self._container.read_item(document_id, sdk_key(partition_key), **options)
                )
        except errors.StoreUnavailable as error:
            if getattr(error.__cause__, "sub_status", None) != _SESSION_NOT_AVAILABLE:
                raise
            # No replica has caught up with the session token, and after a split perhaps none ever will. So
            # read from the replica that takes writes: it is never behind, and its answer brings a usable
            # token.
            self._sessions.pop(identity(partition_key), None)
            return await self.read(document_id, partition_key, newest=True)
        if not document and if_none_match is not None:  # the SDK returns a 304 as an empty item
            raise errors.NotModified(etag=if_none_match, document_id=document_id, partition_key=partition_key)
        return document

    async def commit(self, partition_key: PartitionKey, writes: Sequence[Write]) -> CommitResult:
        try:
            # A single write is sent as a batch too, because a batch is a POST. If a reused connection breaks,
            # aiohttp repeats a PUT or DELETE, but no POST. The repeated request would fail because the first
            # one succeeded, which looks like a conflict with another program.
            outcomes, headers = await self._batch(
                partition_key, [write.id for write in writes], [_batch_operation(write) for write in writes]
            )
        except errors.PreconditionFailed as error:
            expected = next((write.etag for write in writes if write.id == error.document_id), None)
            raise errors.PreconditionFailed(
                expected=expected, document_id=error.document_id, partition_key=partition_key
            ) from error.__cause__
        etags = tuple([outcome.get("eTag") for outcome in outcomes])
        return CommitResult(etags=etags, request_charge=float(headers.get("x-ms-request-charge", 0.0)))

    async def _batch(self, key: PartitionKey, ids: Sequence[str], operations: Sequence[Any]) -> Any:
        """Send a batch. Return the outcomes of its operations, and the headers of the answer."""
        headers: Mapping[str, Any] = {}

        def note(received: Mapping[str, Any], _: object) -> None:
            nonlocal headers
            headers = received

        send = self._container.execute_item_batch
        try:
            async with our_errors(document_ids=ids, partition_key=key):
                return await send(operations, sdk_key(key), response_hook=note), headers
        except errors.StoreError as error:
            headers = getattr(error.__cause__, "headers", None) or {}
            raise
        finally:
            if session := headers.get(SESSION_TOKEN):
                self._remember(key, session)

    async def list(
        self,
        types: Sequence[str],
        *,
        partition_key: PartitionKey | None,
        page_size: int,
        continuation: str | None,
        include_deleted: bool,
    ) -> Page:
        values = {f"@type{number}": name for number, name in enumerate(types)}
        text = f"SELECT * FROM c WHERE c.type IN ({', '.join(values)})"  # noqa: S608 - names of ours, and values as parameters
        if not include_deleted:
            text += " AND (NOT IS_DEFINED(c.data.deleted) OR c.data.deleted = false)"
        if partition_key is not None:
            text += " ORDER BY c.id"  # the SDK cannot page a sorted query over several partition keys
        return await self.query(
            text, values, partition_key=partition_key, page_size=page_size, continuation=continuation
        )

    async def query(
        self,
        sql: str,
        parameters: Mapping[str, Any],
        *,
        partition_key: PartitionKey | None,
        page_size: int,
        continuation: str | None,
    ) -> Page:
        if continuation is not None and not (continuation.isascii() and continuation.isprintable()):
            # The token is sent in a header, which cannot carry this text, so the service did not issue it.
            raise errors.InvalidRequest("This is no token of Cosmos DB: pass the last page's continuation.")
        pages: Any = self.items(sql, parameters, page_size, partition_key).by_page(continuation)
        async with our_errors():
            async for page in pages:
                documents = tuple([document async for document in page])
                if documents or pages.continuation_token is None:
                    return Page(documents=documents, continuation=pages.continuation_token)
        return Page(documents=(), continuation=None)

    def items(
        self, sql: str, parameters: Mapping[str, Any], page_size: int, key: PartitionKey | None
    ) -> AsyncItemPaged[Any]:
        """Return the SDK's pager, which reads the answer of a query page by page."""
        named = [{"name": name, "value": value} for name, value in parameters.items()]
        where = {} if key is None else {"partition_key": sdk_key(key)}
        return self._container.query_items(sql, parameters=named, max_item_count=page_size, **where)

    def _remember(self, partition_key: PartitionKey, session: str) -> None:
        key = identity(partition_key)
        known, progress = self._sessions.get(key), lsn_in(session) or 0
        if known is None or progress >= known[0]:  # keep the newest token: answers may arrive out of order
            self._sessions[key] = progress, session
        self._sessions.move_to_end(key)
        if len(self._sessions) > _REMEMBERED_SESSIONS:
            self._sessions.popitem(last=False)


async def open_store(client: CosmosClient, database: str, container: str) -> CosmosStore:
    """
    Open an existing container of entities and events.

    Raises:
        ConfigurationError: the container is missing, its time to live is off, or an outbox cannot use its partition
            key.
    """
    proxy, properties = await open_container(client, database, container, needed=NEEDED_BY_EVENTS)
    key_paths = usable_key_paths(properties)
    if properties.get("defaultTtl") is None:
        raise errors.ConfigurationError(
            f"Time to live is off on the container {container!r}, so Cosmos DB would never delete events and the "
            "records of handled messages; set its default time to live to -1."
        )
    return CosmosStore(proxy, key_paths)


def _batch_operation(write: Write) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    arguments: tuple[Any, ...] = () if write.kind is WriteKind.CREATE else (write.id,)
    if write.kind is not WriteKind.DELETE:
        arguments += (write.document,)
    options = {} if write.etag is None else {"if_match_etag": _condition(write.etag)}
    return write.kind.lower(), arguments, options


def _condition(etag: str) -> str:
    """Return the etag. If the text is not a valid etag, return an etag that matches no document."""
    # In the header, * would match every document. A text that is no etag must match no document.
    return etag if _ETAG.fullmatch(etag) else _MATCHES_NOTHING


def sdk_key(key: PartitionKey | None) -> Any:
    """Return a partition key in the form that the SDK takes. None is the key of documents without a partition key."""
    return list(key) if isinstance(key, tuple) else key
