"""
CosmosChangeFeed: the ChangeFeed port on a Cosmos DB container, one page per call.

The SDK reads the change feed through a composite continuation token of its own. A lease stores the service's raw etag,
as in .NET. So each call builds the SDK's token around that etag and takes the new etag from the response, and no token
of the SDK has to outlive a call. If a range had nothing new at its last read, a lean poll first asks whether it has
something new now; see `lean_poll_requests`.

By itself, the SDK would send the session tokens of all ranges that the process has read with each request. Their size
grows with the square of the number of ranges, and with a thousand ranges the service refuses the header. So each read
sends only the session token of its own range.
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
# sub-statuses of 410: the range was split or merged, or a split is being completed
_RANGE_GONE = ("1002", "1007")
_MOST_TIMES_GONE = 5
_OK, _NOT_MODIFIED = 200, 304
_Place = tuple[str, FeedRange]  # a container, and a range of it
_NO_SESSION = "-"  # a session token that is replaced before it is sent; the service would refuse it
_SDK_START = {StartFrom.BEGINNING: "Beginning", StartFrom.NOW: "Now"}


class CosmosChangeFeed:
    """
    The change feed of one container.

    Args:
        container: the monitored container.
        account_host: the host of the account's global endpoint, as it appears in lease ids.
        polls: the lean polls of the client's `account_of`, which take a fraction of the SDK's CPU. Defaults to none:
            everything is read through the SDK.
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
        # Lean polls repeat the headers of the SDK's requests, so these options apply to polls too.
        options = {"priority": priority, "throughput_bucket": throughput_bucket}
        self._options: dict[str, Any] = {name: one for name, one in options.items() if one is not None}
        self._open: dict[_Place, _Read] = {}
        self._sessions: dict[_Place, str] = {}

    async def describe(self) -> MonitoredContainer:
        properties = await self._properties()
        rid = str(properties["_rid"])
        # The database's resource id is the first four bytes of the container's.
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
            # The SDK refreshed its cache, and asked the new container with a position in the old one. So this
            # page is not of the monitored container.
            raise ContainerRecreated
        if not response.of_one_range():
            # The SDK followed a split by itself. It may have read more than the lease covers, or its answer
            # does not say what it read.
            raise RangeGone
        if response.etag is None or not response.etag.startswith('"'):
            raise InvalidRequest(f"The change feed answered without the etag of a range: {response.etag!r}.")
        if not documents and response.status != _NOT_MODIFIED and not response.lists_nothing:
            # Do not trust an answer whose headers are right and whose list of documents is missing: the
            # documents may have been lost on the way.
            raise StoreUnavailable(
                f"The change feed answered {response.status} without a list of documents; the worker reads the page again."
            )
        if documents and (continuation is not None or not isinstance(start, datetime)):
            # Keep the SDK's iterator, because it reads the next page at less cost. After a start at a time it
            # cannot be used: it would send that start together with the continuation.
            response.next_read = response.etag, max_items
            self._open[place] = response
        range_id = response.range_id()
        if range_id is not None:
            self._sessions[place] = response.session_token
            # Let a lean poll ask next time only if the service says "nothing new" with 304. If it says so
            # with 200, as an emulator may, each poll would cost two requests.
            if self._polls is not None and response.request is not None and response.status == _NOT_MODIFIED:
                self._polls.learn(place, response.request)
        return ChangePage(
            documents=documents,
            continuation=response.etag,
            latest_lsn=lsn_in(response.session_token),
            # Azure answers 304 at the end of the feed. An emulator that answers 200 there does not advance
            # the etag, so an empty page was skipped only if it has another etag.
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
        # A read that fails forgets the session token: after a restore no replica may ever reach the position
        # that the token names.
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
                # The SDK raises this when its token names another container.
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
    One read of the change feed, and what the answers to its requests said. The hook `note` gets the headers before the
    SDK overwrites their etag.
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
        Send the session token of the range that is read, instead of the SDK's. If that token is not known, send none.
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
        Note the status of an answer, and end a read whose range is gone. At each answer that says so, the SDK would
        look up the ranges and call itself again, until the stack overflows and connections leak.

        Raises:
            RangeGone: `_MOST_TIMES_GONE` answers to one read said that the range is gone.
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
        Return the id of the physical partition that answered, which its session token starts with. Return None if
        several answered.
        """
        return None if "," in self.session_token else self.session_token.partition(":")[0] or None

    def of_one_range(self) -> bool:
        """
        Return whether the SDK's continuation token names exactly one range. Then the SDK did not spread the call over
        several ranges.
        """
        try:
            token = json.loads(base64.b64decode(self._headers["etag"], validate=True))
            return len(token["continuation"]["continuation"]) == 1
        except (KeyError, TypeError, ValueError):
            return False


def _move(document: Document) -> Document:
    """
    Return a copy of a document, and empty the SDK's own dict. The SDK's iterator keeps the whole page until it reads
    the next one, so this frees the memory.
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
        # The service takes whole seconds and returns changes after that second, so ask for the second before.
        sdk_start = start.replace(microsecond=0) - timedelta(seconds=1)
    return {"feed_range": {"Range": _sdk_range(feed_range)}, "start_time": sdk_start}
