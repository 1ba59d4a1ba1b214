"""
Reads the operations of a batch request and writes their results, as JSON or as the binary rows that the SDK for .NET uses.
`transaction.py` executes the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cosmos_outbox_emulators.cosmos import hybrid_row, jsontext
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.replies import array
from cosmos_outbox_emulators.cosmos.transaction import Operation, OperationKind

MOST_OPERATIONS = 100

_KINDS = {kind.value: kind for kind in OperationKind}
_NUMBERED = {0: "Create", 1: "Patch", 2: "Read", 4: "Delete", 5: "Replace", 20: "Upsert"}
_DOCUMENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOperation:
    """
    One operation of a batch request. It may name a partition key of its own, and may ask for a result without the item (`minimal`).
    """

    operation: Operation
    partition_key: str | None
    minimal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one operation of a batch, which is written as a JSON object or as a binary row."""

    status: int
    substatus: int | None = None
    charge: float = 0.0
    etag: str | None = None
    body: bytes | None = None
    message: str | None = None
    retry_after_ms: int | None = None


ROLLED_BACK = Result(status=424, substatus=5415)


def failure(error: CosmosError) -> Result:
    return Result(
        status=error.status,
        substatus=error.substatus,
        charge=1.0,
        message=error.message,
        retry_after_ms=error.retry_after_ms,
    )


def is_binary(body: bytes) -> bool:
    return body[:1] == bytes([hybrid_row.VERSION])


def operations_of(body: bytes) -> list[Any]:
    """Return the operations in the body of a batch request, still unchecked. `operation` checks and reads each of them."""
    batch = rows(body) if is_binary(body) else jsontext.decode(body)
    if not isinstance(batch, list) or not batch:
        raise bad_request("Batch request has no operations.")
    if len(batch) > MOST_OPERATIONS:
        raise bad_request(
            f"Batch request has more operations than what is supported. {len(batch)} > {MOST_OPERATIONS}."
        )
    return batch


def results_body(results: Sequence[Result], *, binary: bool) -> bytes:
    return (
        hybrid_row.write(hybrid_row.RESULT, map(_row, results)) if binary else array([*map(_json, results)])
    )


def as_rows(results: bytes) -> bytes:
    """Convert the results of a batch from JSON to the binary rows of the SDK for .NET."""
    return hybrid_row.write(hybrid_row.RESULT, map(_from_json, jsontext.decode(results)))


def _from_json(result: Mapping[str, Any]) -> hybrid_row.Row:
    body, text = result.get("resourceBody"), result.get("message")
    content = text and text.encode() if body is None else jsontext.encode(body)
    return {"subStatusCode": 0, **result, "resourceBody": content}


def rows(body: bytes) -> list[Mapping[str, Any]]:
    """Convert the operations in a binary body to the form that they have in a JSON body."""
    operations: list[Mapping[str, Any]] = []
    for index, row in enumerate(hybrid_row.read(hybrid_row.OPERATION, body)):
        if row.get("resourceType") != _DOCUMENT:
            raise bad_request(f"Operation {index} of the batch is not about a document.")
        if "binaryId" in row or "effectivePartitionKey" in row:
            raise bad_request(
                f"Operation {index} of the batch names its item by a binary id or an effective partition key; "
                "this emulator knows items by id and partition key."
            )
        read = {**row, "operationType": _NUMBERED.get(row.get("operationType", -1))}
        if "resourceBody" in row:
            with suppress(CosmosError):  # a body that is not JSON makes only its own operation fail
                read["resourceBody"] = jsontext.decode(row["resourceBody"])
        operations.append(read)
    return operations


def operation(index: int, fields: Any) -> BatchOperation:
    """Read one operation of a batch. If the operation is invalid, the error names its number (`index`)."""
    if not isinstance(fields, dict):
        raise bad_request(f"Operation {index} of the batch must be a JSON object.")
    kind = fields.get("operationType")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise bad_request(f"Operation {index} of the batch has an invalid operationType.")
    body = fields.get("resourceBody")
    if kind == OperationKind.PATCH and isinstance(body, list):
        body = {"operations": body}
    if body is not None and not isinstance(body, dict):
        raise bad_request(f"The resourceBody of operation {index} must be a JSON object.")
    for name in ("id", "ifMatch", "ifNoneMatch"):
        if not isinstance(fields.get(name), str | None):
            raise bad_request(f"'{name}' of operation {index} must be text.")
    if body is not None and fields.get("timeToLiveInSeconds") is not None:
        body = {**body, "ttl": fields["timeToLiveInSeconds"]}
    # If the item still has the given etag, the service answers a read in a batch with 304. For a read, ifMatch means the same as
    # ifNoneMatch.
    unless = fields.get("ifNoneMatch") or (fields.get("ifMatch") if kind == OperationKind.READ else None)
    key = fields.get("partitionKey")
    return BatchOperation(
        operation=Operation(
            kind=_KINDS[kind],
            id=fields.get("id"),
            body=body,
            if_match=fields.get("ifMatch"),
            if_none_match=unless,
        ),
        partition_key=key if isinstance(key, str) else None,
        minimal=fields.get("minimalReturnPreference") is True,
    )


def _json(result: Result) -> bytes:
    """
    Return the JSON text of a result. The bytes of the stored item are inserted as they are, so that the item is not serialised
    again.
    """
    fields: dict[str, Any] = {
        "statusCode": result.status,
        "subStatusCode": result.substatus,
        "requestCharge": round(result.charge, 2),
        "eTag": result.etag,
        "message": result.message,
        "retryAfterMilliseconds": result.retry_after_ms,
    }
    text = jsontext.encode({name: value for name, value in fields.items() if value is not None})
    return text if result.body is None else b'%b,"resourceBody":%b}' % (text[:-1], result.body)


def _row(result: Result) -> hybrid_row.Row:
    return {
        "statusCode": result.status,
        "subStatusCode": result.substatus or 0,
        "eTag": result.etag,
        "resourceBody": result.body if result.message is None else result.message.encode(errors="replace"),
        "retryAfterMilliseconds": result.retry_after_ms,
        "requestCharge": result.charge,
    }
