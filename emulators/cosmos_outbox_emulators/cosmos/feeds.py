"""
The requests that read many documents: queries, the read of a whole feed, and the change feed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from itertools import chain

from cosmos_outbox_emulators.cosmos import charges, sql
from cosmos_outbox_emulators.cosmos.changefeed import read_changes
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.item import Item, Position
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.partition_key import FIRST_EPK, LAST_EPK
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, RequestKind, is_on, whole_number
from cosmos_outbox_emulators.cosmos.replies import document_headers, listing
from cosmos_outbox_emulators.cosmos.scope import Window, window_of_key

_DEFAULT_PAGE = 100
_LARGEST_PAGE = 1000
_UNLIMITED = 2**31  # a page of the change feed then ends by its size only
_RANGE_ID = re.compile(r"\d{1,9}", re.ASCII)
_HEX = re.compile(
    r"[0-9A-F]{0,98}"
)  # of a hierarchical key's three hashes, and of the bound "FF" behind them
_LSN = re.compile(r'"?(\d{1,18})"?', re.ASCII)
_EVERYTHING = sql.parse_query("SELECT * FROM c")


def query_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Answer a query, over all partitions if need be: no query plan and no merging by the client is needed.
    """
    if is_on(request.headers, "x-ms-cosmos-is-query-plan-request"):
        raise bad_request("This emulator executes cross-partition queries itself and makes no query plans.")
    return _query(container, request, now, sql.parse_request(request.body))


def readfeed_reply(container: Container, request: Request, now: float) -> Reply:
    """
    List all items.
    """
    return _query(container, request, now, _EVERYTHING)


def _query(container: Container, request: Request, now: float, query: sql.Query) -> Reply:
    partitions, window = _scope(container, request.headers)
    for partition in partitions:
        partition.purge(now)

    def scan(after: Position | None) -> chain[Item]:
        return chain.from_iterable(
            filter(window.contains, partition.scan(window.low, window.high, after))
            for partition in partitions
        )

    page_size = whole_number(request.headers, "x-ms-max-item-count", default=_DEFAULT_PAGE, least=-1)
    page = sql.run(
        query,
        scan,
        page_size=min(page_size, _LARGEST_PAGE) if page_size > 0 else _LARGEST_PAGE,
        continuation=request.headers.get("x-ms-continuation"),
    )
    size = sum(map(len, page.rows))
    headers = document_headers(container, partitions[0], charges.query_charge(len(page.rows), size))
    headers["x-ms-item-count"] = str(len(page.rows))
    if page.continuation is not None:
        headers["x-ms-continuation"] = page.continuation
    return Reply(status=200, body=listing(container, page.rows), headers=headers)


def changefeed_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Answer one page of the change feed in latest-version mode: 200 with changes, or 304; both carry the continuation as etag.
    """
    if request.headers.get("a-im", "").lower() != "incremental feed":
        raise bad_request(
            "This emulator's change feed has the latest-version mode only (A-IM: Incremental Feed)."
        )
    partitions, window = _scope(container, request.headers)
    if len(partitions) > 1:
        raise bad_request("A change feed request must address one partition key range.")
    container.change_feed_reads += 1
    partition = partitions[0]
    partition.purge(now)
    limit = whole_number(request.headers, "x-ms-max-item-count", default=_DEFAULT_PAGE, least=-1)
    page = read_changes(
        partition,
        window,
        after_lsn=_after_lsn(request.headers, partition),
        limit=limit if limit > 0 else _UNLIMITED,
        newer_than=_newer_than(request.headers),
    )
    size = sum(len(item.encoded) for item in page.items)
    charge = charges.feed_charge(len(page.items), size)
    headers = document_headers(container, partition, charge, etag=f'"{page.lsn}"')
    if not page.items:
        return Reply(status=304, headers=headers)
    headers["x-ms-item-count"] = str(len(page.items))
    rows = [b'%b,"_lsn":%d}' % (item.encoded[:-1], item.lsn) for item in page.items]
    return Reply(status=200, body=listing(container, rows), headers=headers)


def _after_lsn(headers: Mapping[str, str], partition: Partition) -> int:
    position = headers.get("if-none-match")
    if position is None:
        return 0
    if position == "*":
        return partition.lsn
    match = _LSN.fullmatch(position)
    if match is None:
        raise bad_request(f"The continuation {position[:50]} of the change feed is invalid.")
    return int(match[1])


def _newer_than(headers: Mapping[str, str]) -> float | None:
    text = headers.get("if-modified-since")
    if text is None or "if-none-match" in headers:  # a continuation says it better
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise bad_request(f"The date {text[:50]} is invalid.") from error


def _scope(container: Container, headers: Mapping[str, str]) -> tuple[Sequence[Partition], Window]:
    """
    Find what a feed request addresses: one key, one range (410 if gone), a window of one range, or all.
    """
    if "x-ms-documentdb-partitionkey" in headers:
        key = container.key_from_header(headers["x-ms-documentdb-partitionkey"])
        return [container.partition_of(key.epk)], window_of_key(key)
    window = Window(
        low=_epk(headers, "x-ms-start-epk", FIRST_EPK), high=_epk(headers, "x-ms-end-epk", LAST_EPK)
    )
    range_id = headers.get("x-ms-documentdb-partitionkeyrangeid")
    if range_id is None:
        return container.overlapping(window.low, window.high) or container.partitions[:1], window
    if _RANGE_ID.fullmatch(range_id) is None:
        raise bad_request(f"'{range_id[:50]}' is not a partition key range id.")
    return [container.partition_by_id(range_id)], window


def _epk(headers: Mapping[str, str], name: str, default: str) -> str:
    value = headers.get(name, default).upper()
    if _HEX.fullmatch(value) is None:
        raise bad_request(f"The value of header {name} is not an effective partition key.")
    return value


REPLIES: Mapping[RequestKind, Callable[[Container, Request, float], Reply]] = {
    RequestKind.QUERY: query_reply,
    RequestKind.READFEED: readfeed_reply,
    RequestKind.CHANGEFEED: changefeed_reply,
}
