"""Answers requests that read many documents: queries, the list of all documents, and the change feed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime

from cosmos_outbox_emulators.cosmos import charges, jsontext, metrics, sessions, sql
from cosmos_outbox_emulators.cosmos.changefeed import read_changes
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import bad_request
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.partition_key import FIRST_EPK, LAST_EPK, LogicalKey, logical_key
from cosmos_outbox_emulators.cosmos.protocol import (
    CROSS_PARTITION,
    CROSS_PARTITION_DISABLED,
    QUERY_PLAN,
    Reply,
    Request,
    RequestKind,
    is_on,
    page_size,
    range_of,
    whole_number,
)
from cosmos_outbox_emulators.cosmos.replies import document_headers, listing
from cosmos_outbox_emulators.cosmos.scope import Window, window_of_key
from cosmos_outbox_emulators.cosmos.walk import Walk

_DEFAULT_PAGE = 100
_UNLIMITED = 2**31  # no limit of items, so that only its size in bytes ends a page of the change feed
_RANGE_ID = re.compile(r"\d{1,9}", re.ASCII)
_HEX = re.compile(
    r"[0-9A-F]{0,300}"
)  # 300 digits suffice for the three hashes of a hierarchical key, and for 101 bytes of text in version 1
_LSN = re.compile(r'"?(\d{1,18})"?', re.ASCII)
_NOTHING = object()


def query_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Answer a query with its rows if it reads one partition key or one range, or several ranges whose rows need no merging. For any
    other query, return the plan by which the client merges the rows.
    """
    headers = request.headers
    if "a-im" in headers:
        raise bad_request("This emulator does not filter the change feed by a query.")
    query = sql.parse_request(request.body)
    if is_on(headers, QUERY_PLAN):
        sql.plan.check_features(query, headers.get("x-ms-cosmos-supported-query-features", ""))
        body = jsontext.encode(sql.plan.execution_info(query, _ranges(container, query)))
        return Reply(status=200, body=body, headers={"x-ms-request-charge": "0.00"})
    partitions, window = _scope(container, headers)
    if not any(f"x-ms-documentdb-partitionkey{end}" in headers for end in ("", "rangeid")):
        key, crossing = _key_in_filter(container, query), is_on(headers, CROSS_PARTITION)
        # If the request allows cross-partition queries, a query with an aggregate gets a plan, even if its filter names one
        # partition key. The client merges the aggregate itself, or refuses the query. azure-cosmos refuses an aggregate without
        # VALUE.
        if key is not None and not (crossing and query.aggregates):
            partitions, window = [container.partition_of(key.epk)], window_of_key(key)
        elif not crossing:
            raise bad_request(CROSS_PARTITION_DISABLED)
        elif not sql.plan.is_servable(query):
            raise sql.plan.not_servable(query, _ranges(container, query))
    return _query(container, request, now, query, Walk(partitions, window))


def readfeed_reply(container: Container, request: Request, now: float) -> Reply:
    """List all items of a container, or of the partition key or range that the request names."""
    return _query(container, request, now, sql.EVERYTHING, Walk(*_scope(container, request.headers)))


def _key_in_filter(container: Container, query: sql.Query) -> LogicalKey | None:
    """
    Return the partition key that a query's filter names, or None. The filter must consist of comparisons joined by AND, which set
    each path of the partition key equal to a value.
    """
    values = [query.equalities.get(path, _NOTHING) for path in container.key_paths]
    return None if _NOTHING in values else logical_key(values, container.version)


def _ranges(container: Container, query: sql.Query) -> list[jsontext.JsonObject]:
    key = _key_in_filter(container, query)
    if key is None:
        return [sql.plan.range_of(FIRST_EPK, LAST_EPK, point=False)]
    return [sql.plan.range_of(key.epk, key.epk, point=True)]


def _query(container: Container, request: Request, now: float, query: sql.Query, walk: Walk) -> Reply:
    for partition in walk.partitions:
        partition.purge(now)
        lsn = sessions.readable_lsn(container, partition, request.headers, now)
        if lsn < partition.lsn:
            walk.as_of[partition.range_id] = lsn
    page = sql.run(
        query,
        walk,
        page_size=page_size(request.headers),
        continuation=request.headers.get("x-ms-continuation"),
    )
    size = sum(map(len, page.rows))
    first = walk.partitions[0]
    charge = charges.query_charge(len(page.rows), size)
    headers = document_headers(container, first, charge, lsn=walk.as_of.get(first.range_id))
    headers["x-ms-item-count"] = str(len(page.rows))
    if page.continuation is not None:
        if request.headers.get("x-ms-documentdb-responsecontinuationtokenlimitinkb") == "0":
            raise bad_request("The continuation token limit specified is not large enough.")
        headers["x-ms-continuation"] = page.continuation
    if is_on(request.headers, "x-ms-documentdb-populatequerymetrics"):
        headers["x-ms-documentdb-query-metrics"] = metrics.query_metrics(query, page.rows)
    if is_on(request.headers, "x-ms-cosmos-populateindexmetrics"):
        headers["x-ms-cosmos-index-utilization"] = metrics.index_metrics(container)
    return Reply(status=200, body=listing(container.rid, page.rows), headers=headers)


def changefeed_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Answer one page of the change feed in latest-version mode: 200 with changes, or 304 without. Both have the continuation in their
    etag.
    """
    mode = request.headers.get("a-im", "").lower()
    if mode == "full-fidelity feed":  # clients recognise this refusal by its text
        raise bad_request("The change feed mode 'All Versions and Deletes' must be enabled on the account.")
    if mode != "incremental feed":
        raise bad_request("The header A-IM must be 'Incremental Feed', the only mode of this emulator.")
    partitions, window = _scope(container, request.headers)
    if len(partitions) > 1:
        raise bad_request("A change feed request must address one partition key range.")
    container.change_feed_reads += 1
    partition = partitions[0]
    partition.purge(now)
    lsn = sessions.readable_lsn(container, partition, request.headers, now)
    limit = whole_number(request.headers, "x-ms-max-item-count", default=_DEFAULT_PAGE, least=-1)
    page = read_changes(
        partition,
        window,
        after_lsn=_after_lsn(request.headers, lsn),
        limit=limit if limit > 0 else _UNLIMITED,
        newer_than=_newer_than(request.headers),
        up_to=lsn,
    )
    size = sum(len(item.encoded) for item in page.items)
    charge = charges.feed_charge(len(page.items), size)
    headers = document_headers(container, partition, charge, etag=f'"{page.lsn}"', lsn=lsn)
    headers["x-ms-item-count"] = str(len(page.items))  # the SDK for .NET needs it even with a 304
    if not page.items:
        return Reply(status=304, headers=headers)
    rows = [b'%b,"_lsn":%d}' % (item.encoded[:-1], item.lsn) for item in page.items]
    return Reply(status=200, body=listing(container.rid, rows), headers=headers)


def _after_lsn(headers: Mapping[str, str], newest: int) -> int:
    position = headers.get("if-none-match")
    if position is None:
        return 0
    if position == "*":
        return newest
    match = _LSN.fullmatch(position)
    if match is None:
        raise bad_request(f"The continuation {position[:50]} of the change feed is invalid.")
    return int(match[1])


def _newer_than(headers: Mapping[str, str]) -> float | None:
    text = headers.get("if-modified-since")
    if text is None or "if-none-match" in headers:  # a continuation replaces the start time
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise bad_request(f"The date {text[:50]} is invalid.") from error


def _scope(container: Container, headers: Mapping[str, str]) -> tuple[Sequence[Partition], Window]:
    """
    Return the partitions and the effective partition keys that a feed request addresses: one key, one range, a part of one range,
    or everything. A request for a range that is gone is refused with 410.
    """
    if "x-ms-documentdb-partitionkey" in headers:
        key = container.key_from_header(headers["x-ms-documentdb-partitionkey"])
        return [container.partition_of(key.epk)], window_of_key(key)
    window = Window(
        low=_epk(headers, "x-ms-start-epk", FIRST_EPK), high=_epk(headers, "x-ms-end-epk", LAST_EPK)
    )
    range_id = range_of(headers)
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
