"""The requests that write or read single documents: operations and transactional batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos_outbox_emulators.cosmos import charges, jsontext, sessions
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request, too_large
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.partition_key import LogicalKey
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, RequestKind
from cosmos_outbox_emulators.cosmos.replies import array, document_headers
from cosmos_outbox_emulators.cosmos.transaction import Operation, OperationKind, Outcome, Transaction

LARGEST_REQUEST_BYTES = 2 * 1024 * 1024
MOST_BATCH_OPERATIONS = 100

_KEY_MISMATCH = 1001
ROLLED_BACK = b'{"statusCode":424,"subStatusCode":5415,"requestCharge":0.0}'
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
    """Execute one operation on one item."""
    if len(request.body) > LARGEST_REQUEST_BYTES:
        raise too_large()
    if kind is RequestKind.DELETE and item_id is None:
        return _delete_key_reply(container, request, now)
    needs_body = kind not in (RequestKind.READ, RequestKind.DELETE)
    transaction = Transaction(container, key_of(container, request.headers), now)
    lsn = None
    if kind is RequestKind.READ:
        lsn = sessions.readable_lsn(container, transaction.partition, request.headers, now)
    outcome = transaction.execute(
        Operation(
            kind=_OPERATIONS[kind],
            id=item_id,
            body=_body(request, kind) if needs_body else None,
            if_match=request.headers.get("if-match"),
            if_none_match=request.headers.get("if-none-match"),
            lsn=lsn,
        )
    )
    transaction.commit()
    item = outcome.item
    size = len(item.encoded) if item else 0
    charge = charges.read_charge(size) if kind is RequestKind.READ else charges.write_charge(size)
    etag = item.etag if item else None
    headers = document_headers(container, transaction.partition, charge, etag=etag, lsn=lsn)
    minimal = needs_body and is_minimal(request.headers)
    body = item.encoded if item and outcome.status != 304 and not minimal else b""
    return Reply(status=outcome.status, body=body, headers=headers)


def _delete_key_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Delete all items of a partition key; the service does it in the background, here it is done when it answers.
    """
    transaction = Transaction(container, key_of(container, request.headers), now)
    transaction.delete_all()
    transaction.commit()
    return Reply(
        status=200, headers=document_headers(container, transaction.partition, charges.write_charge(0))
    )


def batch_reply(container: Container, request: Request, now: float, fault: FaultRule | None = None) -> Reply:
    """Execute all operations of a batch or none; `fault` fails one of them."""
    if len(request.body) > LARGEST_REQUEST_BYTES:
        raise too_large()
    key = key_of(container, request.headers)
    operations = operations_of(jsontext.decode(request.body))
    minimal = is_minimal(request.headers)
    transaction = Transaction(container, key, now)
    results: list[bytes] = []
    charge = 0.0
    for index, operation in enumerate(operations):
        try:
            if fault is not None and fault.op_index == index:
                raise _injected(fault)
            outcome = transaction.execute(operation)
        except CosmosError as error:
            results = [ROLLED_BACK] * len(operations)
            results[index] = failure(error)
            headers = document_headers(container, transaction.partition, 1.0)
            return Reply(status=207, body=array(results), headers=headers)
        size = len(outcome.item.encoded) if outcome.item else 0
        cost = (
            charges.read_charge(size) if operation.kind is OperationKind.READ else charges.write_charge(size)
        )
        charge += cost
        results.append(result(outcome, cost, minimal=minimal and operation.kind is not OperationKind.READ))
    transaction.commit()
    return Reply(
        status=200, body=array(results), headers=document_headers(container, transaction.partition, charge)
    )


def _body(request: Request, kind: RequestKind) -> jsontext.JsonObject:
    body = jsontext.decode(request.body)
    if kind is RequestKind.PATCH and isinstance(body, list):
        return {"operations": body}
    if not isinstance(body, dict):
        raise bad_request("The request payload must be a JSON object.")
    return body


def is_minimal(headers: Mapping[str, str]) -> bool:
    return headers.get("prefer", "").lower() == "return=minimal"


def operations_of(batch: Any) -> list[Operation]:
    if not isinstance(batch, list) or not batch:
        raise bad_request("Batch request has no operations.")
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


def result(outcome: Outcome, charge: float, *, minimal: bool) -> bytes:
    item = outcome.item
    if item is None:
        return b'{"statusCode":%d,"requestCharge":%.2f}' % (outcome.status, charge)
    etag = item.etag.replace('"', '\\"').encode()
    if minimal or outcome.status == 304:
        return b'{"statusCode":%d,"requestCharge":%.2f,"eTag":"%b"}' % (outcome.status, charge, etag)
    return b'{"statusCode":%d,"requestCharge":%.2f,"eTag":"%b","resourceBody":%b}' % (
        outcome.status,
        charge,
        etag,
        item.encoded,
    )


def failure(error: CosmosError) -> bytes:
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


def key_of(container: Container, headers: Mapping[str, str]) -> LogicalKey:
    text = headers.get("x-ms-documentdb-partitionkey")
    if text is None:
        raise bad_request("PartitionKey value must be supplied for this operation.", substatus=_KEY_MISMATCH)
    return container.key_from_header(text)
