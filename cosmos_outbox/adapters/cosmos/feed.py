"""
CosmosChangeFeed: the ChangeFeed port on a Cosmos DB container, one page per call.

The SDK reads the change feed through a continuation token in a format of its own. A lease stores the etag that the
service returned, as in .NET. So each call builds the SDK's token around that etag, and takes the new etag from the
response. No token of the SDK has to be stored. Once a range has had nothing new for a while, a cheaper request
first asks whether it has something new now; see `lean_poll_requests`.

By itself, the SDK would send with each request the session tokens of all ranges that the process has read. With a
thousand ranges that header is so long that the service refuses it. So each read sends only the session token of its own
range.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.cosmos.aio import ContainerProxy

from cosmos_outbox.adapters.cosmos.client import LONGEST_CALL_SECONDS, lsn_in
from cosmos_outbox.adapters.cosmos.containers import NEEDED_BY_EVENTS, usable_key_paths
from cosmos_outbox.adapters.cosmos.errors import our_errors
from cosmos_outbox.adapters.cosmos.lean_poll_requests import RANGE_ID, SESSION_TOKEN, LeanPolls, SentRequest
from cosmos_outbox.errors import ContainerRecreated, InvalidRequest, RangeGone, StoreUnavailable
from cosmos_outbox.partition_key import FeedRange, PartitionKey, parts_of
from cosmos_outbox.ports import ChangePage, MonitoredContainer, StartFrom
from cosmos_outbox.stored_documents import Document

_GONE = 410
# The sub-statuses of 410 which say that the range was split or merged, or that a split is being completed.
_RANGE_GONE = ("1002", "1007")
_MOST_TIMES_GONE = 5
_OK, _NOT_MODIFIED = 200, 304
_Place = tuple[str, FeedRange]  # a container's resource id, and a range of that container
_NO_SESSION = "-"  # a placeholder for the session token, which `_Read.send` replaces or removes
_SDK_START = {StartFrom.BEGINNING: "Beginning", StartFrom.NOW: "Now"}


class CosmosChangeFeed:
    """
    The change feed of one container.

    Args:
        container: the monitored container.
        account_host: the host of the account's global endpoint, as it appears in lease ids.
        polls: cheap requests for "is there anything new?", from `account_of(client).polls()`. They take a fraction of
            the SDK's CPU. Defaults to none: everything is read through the SDK.
        priority: the priority of reads and polls, if the account has priority-based execution. Defaults to the
            account's.
        throughput_bucket: the throughput bucket, from 1 to 5, in which reads and polls are counted. Defaults to none.
    """

    def __init__(
        self,
        container: ContainerProxy,
        *,
        account_host: str,
        polls: LeanPolls | None = None,
        priority: Literal["High", "Low"] | None = None,
        throughput_bucket: int | None = None,
    ) -> None:
        self._container = container
        self._account_host = account_host
        self._polls = polls
        # Lean polls repeat the headers of the SDK's requests, so priority and throughput bucket apply to
        # polls too.
        options = {"priority": priority, "throughput_bucket": throughput_bucket}
        self._options: dict[str, Any] = {name: one for name, one in options.items() if one is not None}
        self._open: dict[_Place, _Read] = {}
        self._sessions: dict[_Place, str] = {}

    async def describe(self) -> MonitoredContainer:
        properties = await self._properties()
        rid = str(properties["_rid"])
        # The first four bytes of a container's resource id are the resource id of its database.
        raw = base64.b64decode(rid.replace("-", "/"))
        database_rid = base64.b64encode(raw[:4]).decode().replace("/", "-")
        return MonitoredContainer(
            account_host=self._account_host,
            database_rid=database_rid,
            container_rid=rid,
            key_paths=usable_key_paths(properties),
        )

    async def physical_ranges(self) -> tuple[FeedRange, ...]:
        async with our_errors(of_feed=True), asyncio.timeout(LONGEST_CALL_SECONDS):
            ranges = [one["Range"] async for one in self._container.read_feed_ranges(force_refresh=True)]
        return tuple(FeedRange(min=one["min"], max=one["max"]) for one in ranges)

    async def range_of(self, partition_key: PartitionKey) -> FeedRange:
        """
        Return the range of one full partition key. It contains all documents of that key, and documents of another key
        only if the hashes of both keys are equal.
        """
        async with our_errors(of_feed=True), asyncio.timeout(LONGEST_CALL_SECONDS):
            found = await self._container.feed_range_from_partition_key([*parts_of(partition_key)])
        place: str = found["Range"]["min"]
        return FeedRange(min=place, max=f"{int(place, 16) + 1:0{len(place)}X}")

    async def partition_id(self, feed_range: FeedRange) -> str:
        # The SDK has no call that returns the id of a partition, but every session token starts with that id.
        response = _Read()
        async with our_errors(of_feed=True), asyncio.timeout(LONGEST_CALL_SECONDS):
            async for _ in self._pages(response, 1, **_from_start(feed_range, StartFrom.NOW)):
                break
        range_id = response.range_id()
        if range_id is None or not response.of_one_range():
            raise RangeGone  # the range was split since the ranges were listed
        return range_id

    async def read_page(
        self,
        feed_range: FeedRange,
        *,
        container_rid: str,
        continuation: str | None,
        start: StartFrom | datetime,
        max_items: int,
    ) -> ChangePage:
        place = container_rid, feed_range
        if (
            self._polls is not None
            and continuation is not None
            and place not in self._open
            and (nothing := await self._nothing_new(self._polls, place, continuation)) is not None
        ):
            return nothing
        response, documents = await self._read(place, continuation, start, max_items)
        if response.container_rid not in (None, container_rid) and (
            (await self._properties())["_rid"] != container_rid
        ):
            # The container was deleted and created again under the same name. The SDK asked the new container
            # with a position in the old one, so this page must not be used.
            raise ContainerRecreated
        if not response.of_one_range():
            # The SDK followed a split by itself. Its page may have documents outside the lease's range, so
            # the page is not used.
            raise RangeGone
        if response.etag is None or not response.etag.startswith('"'):
            raise InvalidRequest(f"The change feed answered without the etag of a range: {response.etag!r}.")
        if not documents and response.status != _NOT_MODIFIED and not response.lists_nothing:
            # An answer with documents may have lost them on the way, for example at a proxy. So believe "no
            # documents" only if the answer contains an empty list.
            raise StoreUnavailable(
                f"The change feed answered {response.status} without a list of documents; the worker reads the page again."
            )
        if documents or response.next_read is not None:
            # The SDK sends the next poll itself, because its iterator costs less than a new one. If that poll finds nothing,
            # the SDK sends one more: a busy range has changes by then. If a lean poll found them, the SDK would have to
            # read them again.
            self._open[place] = response
        # An iterator that started at a time is not used again: it would send that time together with the continuation.
        goes_on = bool(documents) and (continuation is not None or not isinstance(start, datetime))
        response.next_read = (response.etag, max_items) if goes_on else None
        range_id = response.range_id()
        if range_id is not None:
            self._sessions[place] = response.session_token
            # A lean poll (a cheap request without the SDK) understands only 304 as "nothing new". If the service
            # answers with 200, as an emulator may, each poll would cost a second request, so none is sent.
            if self._polls is not None and response.request is not None and response.status == _NOT_MODIFIED:
                self._polls.learn(place, response.request)
        return ChangePage(
            documents=documents,
            continuation=response.etag,
            latest_lsn=lsn_in(response.session_token),
            # An empty page with a new etag has skipped changes that the feed no longer shows, such as those of deleted
            # documents. It is not the end of the feed: there Azure answers 304, or an emulator 200 with the same etag.
            skipped=not documents and response.status == _OK and response.etag != continuation,
            range_id=range_id,
            request_charge=response.charge,
            size=response.size,
        )

    async def _nothing_new(self, polls: LeanPolls, place: _Place, continuation: str) -> ChangePage | None:
        headers = await polls.nothing_new(place, continuation, session_token=self._sessions.get(place, ""))
        if headers is None:
            return None
        response = _Read()
        response.note(headers, None)
        range_id = response.range_id()
        if range_id is None or response.container_rid not in (None, place[0]):
            return None
        self._sessions[place] = response.session_token
        return ChangePage(
            documents=(),
            continuation=continuation,
            latest_lsn=lsn_in(response.session_token),
            range_id=range_id,
            request_charge=response.charge,
        )

    async def _read(
        self, place: _Place, continuation: str | None, start: StartFrom | datetime, max_items: int
    ) -> tuple[_Read, tuple[Document, ...]]:
        container_rid, feed_range = place
        response = self._open.pop(place, None)
        # Forget the session token until the read has succeeded. After a restore of the account, no replica
        # may ever reach the position in the token, and each read with it would fail.
        session = self._sessions.pop(place, "")
        async with our_errors(of_feed=True), asyncio.timeout(LONGEST_CALL_SECONDS):
            if response is None or response.next_read != (continuation, max_items):
                response = _Read(session)
                where = (
                    _from_start(feed_range, start)
                    if continuation is None
                    else {"continuation": _composite_token(container_rid, feed_range, continuation)}
                )
                response.pages = self._pages(response, max_items, **where)
            try:
                response.charge, response.times_gone = 0.0, 0
                page = await anext(response.pages)
                return response, tuple([_move(document) async for document in page])
            except StopAsyncIteration:
                return response, ()
            except ValueError as error:
                # The SDK found that the token was made for a container with another resource id.
                if "collection rid" in str(error):
                    raise ContainerRecreated from error
                raise

    def _pages(self, response: _Read, max_items: int, **where: Any) -> Any:
        return self._container.query_items_change_feed(
            **where,
            **self._options,
            max_item_count=max_items,
            session_token=_NO_SESSION,  # without this, the SDK would gather the session tokens of all ranges
            response_hook=response.note,
            raw_request_hook=response.send,
            raw_response_hook=response.note_status,
        ).by_page()

    async def _properties(self) -> Mapping[str, Any]:
        async with our_errors(of_feed=True, needed=NEEDED_BY_EVENTS), asyncio.timeout(LONGEST_CALL_SECONDS):
            return await self._container.read()


class _Read:
    """
    One read of the change feed through the SDK, and what the service answered. The SDK calls `note` with the headers of
    an answer before it replaces the service's etag in them by its own token.
    """

    def __init__(self, session_token: str = "") -> None:
        self.etag: str | None = None
        self.container_rid: str | None = None
        self.session_token = session_token
        self.request: SentRequest | None = None
        self.charge = 0.0
        self.times_gone = 0
        self.status = 0
        self.lists_nothing = False
        self.size: int | None = None
        self.pages: Any = None
        self.next_read: tuple[str | None, int] | None = None
        self._headers: Mapping[str, str] = {}

    def send(self, request: PipelineRequest[Any]) -> None:
        """
        Replace the session token that the SDK would send by the token of the range that is read. If no token of that
        range is known, send none.
        """
        headers = request.http_request.headers
        if headers.pop(SESSION_TOKEN, None) and self.session_token.partition(":")[0] == headers.get(RANGE_ID):
            headers[SESSION_TOKEN] = self.session_token

    def note(self, headers: Mapping[str, str], body: object) -> None:
        self._headers = headers
        self.lists_nothing = isinstance(body, Mapping) and body.get("Documents") == []
        self.etag = headers.get("etag")
        self.container_rid = headers.get("x-ms-content-path")
        self.session_token = headers.get(SESSION_TOKEN) or ""
        self.charge += float(headers.get("x-ms-request-charge") or 0)

    def note_status(self, response: PipelineResponse[Any, Any]) -> None:
        """
        Note the status of an answer. End the read after five answers that its range was split or merged. The SDK would go on: after
        each such answer, it looks up the ranges and calls itself again, until the stack overflows and connections leak.

        Raises:
            RangeGone: five answers (`_MOST_TIMES_GONE`) to the same read said that the range was split or merged.
        """
        answer = response.http_response
        self.request, self.status = response.http_request, answer.status_code
        length = answer.headers.get("content-length")
        self.size = int(length) if length and "content-encoding" not in answer.headers else None
        if self.status == _GONE and answer.headers.get("x-ms-substatus") in _RANGE_GONE:
            self.times_gone += 1
            if self.times_gone == _MOST_TIMES_GONE:
                raise RangeGone

    def range_id(self) -> str | None:
        """
        Return the id of the physical partition that answered: the session token of its answer starts with that id.
        Return None if several partitions answered.
        """
        return None if "," in self.session_token else self.session_token.partition(":")[0] or None

    def of_one_range(self) -> bool:
        """
        Return whether the SDK's continuation token names exactly one range. If it names several, the SDK met a split
        and spread the call over the new ranges.
        """
        try:
            token = json.loads(base64.b64decode(self._headers["etag"], validate=True))
            return len(token["continuation"]["continuation"]) == 1
        except (KeyError, TypeError, ValueError):
            return False


def _move(document: Document) -> Document:
    """
    Return a copy of a document, and empty the SDK's own dict to free its memory. The SDK's iterator would keep the
    whole page until it reads the next one.
    """
    ours = dict(document)
    document.clear()
    return ours


def _composite_token(rid: str, feed_range: FeedRange, etag: str) -> str:
    bounds = _sdk_range(feed_range)
    state = {
        "v": "v2",
        "containerRid": rid,
        "mode": "LatestVersion",
        "startFrom": {"Type": "Beginning"},
        "continuation": {
            "v": "v2",
            "rid": rid,
            "continuation": [{"token": etag, "range": bounds}],
            "Range": bounds,
        },
    }
    return base64.b64encode(json.dumps(state).encode()).decode()


def _sdk_range(feed_range: FeedRange) -> dict[str, Any]:
    return {"min": feed_range.min, "max": feed_range.max, "isMinInclusive": True, "isMaxInclusive": False}


def _from_start(feed_range: FeedRange, start: StartFrom | datetime) -> dict[str, Any]:
    if isinstance(start, StartFrom):
        sdk_start: str | datetime = _SDK_START[start]
    else:
        # The service takes whole seconds, and returns the changes after the given second. So ask for the
        # second before the start.
        sdk_start = start.replace(microsecond=0) - timedelta(seconds=1)
    return {"feed_range": {"Range": _sdk_range(feed_range)}, "start_time": sdk_start}
