"""
The requests about items: single operations, transactional batches, queries, reads of a whole feed and the change feed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any
from urllib.parse import quote

from emulators.cosmos import charges, jsontext, sql
from emulators.cosmos.changefeed import read_changes
from emulators.cosmos.container import Container
from emulators.cosmos.errors import CosmosError, bad_request, too_large
from emulators.cosmos.faults import FaultRule
from emulators.cosmos.item import Item, Position
from emulators.cosmos.partition import Partition
from emulators.cosmos.partition_key import FIRST_EPK, LAST_EPK, LogicalKey
from emulators.cosmos.protocol import Reply, Request, RequestKind, is_on, whole_number
from emulators.cosmos.scope import Window, window_of_key
from emulators.cosmos.transaction import Operation, OperationKind, Outcome, Transaction

LARGEST_REQUEST_BYTES = 2 * 1024 * 1024
MOST_BATCH_OPERATIONS = 100

_DEFAULT_PAGE = 100
_LARGEST_PAGE = 1000
_KEY_MISMATCH = 1001
_ROLLED_BACK = b'{"statusCode":424,"subStatusCode":5415,"requestCharge":0.0}'
_RANGE_ID = re.compile(r"\d{1,9}", re.ASCII)
_HEX = re.compile(r"[0-9A-F]{0,64}")
_LSN = re.compile(r'"?(\d{1,18})"?', re.ASCII)
_OPERATIONS = {
    RequestKind.CREATE: OperationKind.CREATE,
    RequestKind.UPSERT: OperationKind.UPSERT,
    RequestKind.READ: OperationKind.READ,
    RequestKind.REPLACE: OperationKind.REPLACE,
    RequestKind.DELETE: OperationKind.DELETE,
    RequestKind.PATCH: OperationKind.PATCH,
}


def item_reply(
    container: Container, request: Request, kind: RequestKind, item_id: str | None, now: float
) -> Reply:
    """
    Execute one operation on one item.
    """
    if len(request.body) > LARGEST_REQUEST_BYTES:
        raise too_large()
    needs_body = kind not in (RequestKind.READ, RequestKind.DELETE)
    transaction = Transaction(container, _key(container, request.headers), now)
    outcome = transaction.execute(
        Operation(
            kind=_OPERATIONS[kind],
            id=item_id,
            body=jsontext.decode_object(request.body) if needs_body else None,
            if_match=request.headers.get("if-match"),
            if_none_match=request.headers.get("if-none-match"),
        )
    )
    transaction.commit()
    item = outcome.item
    size = len(item.encoded) if item else 0
    charge = charges.read_charge(size) if kind is RequestKind.READ else charges.write_charge(size)
    headers = _headers(container, transaction.partition, charge, etag=item.etag if item else None)
    minimal = needs_body and request.headers.get("prefer", "").lower() == "return=minimal"
    body = item.encoded if item and outcome.status != 304 and not minimal else b""
    return Reply(status=outcome.status, body=body, headers=headers)


# Batches


def batch_reply(container: Container, request: Request, now: float, fault: FaultRule | None = None) -> Reply:
    """
    Execute all operations of a batch or none; `fault` fails one of them.
    """
    if len(request.body) > LARGEST_REQUEST_BYTES:
        raise too_large()
    key = _key(container, request.headers)
    operations = _operations(jsontext.decode(request.body))
    transaction = Transaction(container, key, now)
    results: list[bytes] = []
    charge = 0.0
    for index, operation in enumerate(operations):
        try:
            if fault is not None and fault.op_index == index:
                raise _injected(fault)
            outcome = transaction.execute(operation)
        except CosmosError as error:
            results = [_ROLLED_BACK] * len(operations)
            results[index] = _failure(error)
            headers = _headers(container, transaction.partition, 1.0)
            return Reply(status=207, body=_array(results), headers=headers)
        size = len(outcome.item.encoded) if outcome.item else 0
        cost = (
            charges.read_charge(size) if operation.kind is OperationKind.READ else charges.write_charge(size)
        )
        charge += cost
        results.append(_result(outcome, cost))
    transaction.commit()
    return Reply(status=200, body=_array(results), headers=_headers(container, transaction.partition, charge))


def _operations(batch: Any) -> list[Operation]:
    if not isinstance(batch, list) or not batch:
        raise bad_request("The batch request must be a JSON array of at least one operation.")
    if len(batch) > MOST_BATCH_OPERATIONS:
        raise bad_request(
            f"Batch request has more operations than what is supported. {len(batch)} > {MOST_BATCH_OPERATIONS}."
        )
    return [_operation(index, fields) for index, fields in enumerate(batch)]


_BATCH_KINDS = {kind.value: kind for kind in OperationKind}


def _operation(index: int, fields: Any) -> Operation:
    if not isinstance(fields, dict):
        raise bad_request(f"Operation {index} of the batch must be a JSON object.")
    kind = fields.get("operationType")
    if not isinstance(kind, str) or kind not in _BATCH_KINDS:
        raise bad_request(f"Operation {index} of the batch has an invalid operationType.")
    body = fields.get("resourceBody")
    if body is not None and not isinstance(body, dict):
        raise bad_request(f"The resourceBody of operation {index} must be a JSON object.")
    for name in ("id", "ifMatch", "ifNoneMatch"):
        if not isinstance(fields.get(name), str | None):
            raise bad_request(f"'{name}' of operation {index} must be text.")
    return Operation(
        kind=_BATCH_KINDS[kind],
        id=fields.get("id"),
        body=body,
        if_match=fields.get("ifMatch"),
        if_none_match=fields.get("ifNoneMatch"),
    )


def _result(outcome: Outcome, charge: float) -> bytes:
    item = outcome.item
    if item is None:
        return b'{"statusCode":%d,"requestCharge":%.2f}' % (outcome.status, charge)
    etag = item.etag.replace('"', '\\"').encode()
    if outcome.status == 304:
        return b'{"statusCode":304,"requestCharge":%.2f,"eTag":"%b"}' % (charge, etag)
    return b'{"statusCode":%d,"requestCharge":%.2f,"eTag":"%b","resourceBody":%b}' % (
        outcome.status,
        charge,
        etag,
        item.encoded,
    )


def _failure(error: CosmosError) -> bytes:
    fields: dict[str, Any] = {
        "statusCode": error.status,
        "subStatusCode": error.substatus,
        "requestCharge": 1.0,
        "message": error.message,
    }
    if error.retry_after_ms is not None:
        fields["retryAfterMilliseconds"] = error.retry_after_ms
    return jsontext.encode(fields)


def _injected(fault: FaultRule) -> CosmosError:
    return CosmosError(
        fault.status or 500, "Injected fault.", substatus=fault.substatus, retry_after_ms=fault.retry_after_ms
    )


# Feeds


def query_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Answer a query, over all partitions if need be: no query plan and no merging by the client is needed.
    """
    if is_on(request.headers, "x-ms-cosmos-is-query-plan-request"):
        raise bad_request("This emulator executes cross-partition queries itself and makes no query plans.")
    body = jsontext.decode(request.body)
    if isinstance(body, str):
        body = {"query": body}
    if not isinstance(body, dict):
        raise bad_request("The query must be a JSON object with 'query' and 'parameters'.")
    return _query(container, request, now, sql.parse_query(body.get("query"), body.get("parameters")))


_EVERYTHING = sql.parse_query("SELECT * FROM c")


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
    headers = _headers(container, partitions[0], charges.query_charge(len(page.rows), size))
    headers["x-ms-item-count"] = str(len(page.rows))
    if page.continuation is not None:
        headers["x-ms-continuation"] = page.continuation
    return Reply(status=200, body=_listing(container, page.rows), headers=headers)


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
    partition = partitions[0]
    partition.purge(now)
    limit = whole_number(request.headers, "x-ms-max-item-count", default=_DEFAULT_PAGE, least=-1)
    page = read_changes(
        partition,
        window,
        after_lsn=_after_lsn(request.headers, partition),
        limit=limit if limit > 0 else LARGEST_REQUEST_BYTES,
        newer_than=_newer_than(request.headers),
    )
    size = sum(len(item.encoded) for item in page.items)
    charge = charges.feed_charge(len(page.items), size)
    headers = _headers(container, partition, charge, etag=f'"{page.lsn}"')
    if not page.items:
        return Reply(status=304, headers=headers)
    headers["x-ms-item-count"] = str(len(page.items))
    rows = [b'%b,"_lsn":%d}' % (item.encoded[:-1], item.lsn) for item in page.items]
    return Reply(status=200, body=_listing(container, rows), headers=headers)


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


def _key(container: Container, headers: Mapping[str, str]) -> LogicalKey:
    text = headers.get("x-ms-documentdb-partitionkey")
    if text is None:
        raise bad_request("PartitionKey value must be supplied for this operation.", substatus=_KEY_MISMATCH)
    return container.key_from_header(text)


def _headers(
    container: Container, partition: Partition, charge: float, *, etag: str | None = None
) -> dict[str, str]:
    headers = {
        "x-ms-request-charge": f"{charge:.2f}",
        "x-ms-session-token": f"{partition.range_id}:-1#{partition.lsn}",
        "lsn": str(partition.lsn),
        "x-ms-documentdb-partitionkeyrangeid": partition.range_id,
        # Without it the SDK does not track session tokens.
        "x-ms-alt-content-path": quote(container.path),
        "x-ms-content-path": container.rid,
    }
    if etag is not None:
        headers["etag"] = etag
    return headers


def _array(rows: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(rows) + b"]"


def _listing(container: Container, rows: Sequence[bytes]) -> bytes:
    return b'{"_rid":"%b","Documents":%b,"_count":%d}' % (container.rid.encode(), _array(rows), len(rows))
