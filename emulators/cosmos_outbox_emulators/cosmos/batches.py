"""
Executes batches and bulk requests, which `batch_body` reads and checks first: at most 100 operations each.

A batch applies all of its operations to one partition key, or none of them. In a bulk request, each operation has a partition key of its
own and succeeds or fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from cosmos_outbox_emulators.cosmos import charges, sessions
from cosmos_outbox_emulators.cosmos.batch_body import (
    ROLLED_BACK,
    BatchOperation,
    Result,
    failure,
    is_binary,
    operation,
    operations_of,
    results_body,
)
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.documents import LARGEST_REQUEST_BYTES, is_minimal, key_of
from cosmos_outbox_emulators.cosmos.errors import CosmosError, too_large
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.partition_key import LogicalKey
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, is_on, range_of
from cosmos_outbox_emulators.cosmos.replies import document_headers
from cosmos_outbox_emulators.cosmos.transaction import OperationKind, Transaction

LARGEST_ANSWER_BYTES = 10 * 1024 * 1024
_RANGE_GONE = 1002


def reply(container: Container, request: Request, now: float, fault: FaultRule | None = None) -> Reply:
    """Execute a batch or a bulk request, and return the reply. A `fault` makes one operation of a batch fail."""
    if len(request.body) > LARGEST_REQUEST_BYTES:
        raise too_large()
    if request.headers.get("x-ms-cosmos-batch-atomic", "").lower() == "false":
        partition, results = _bulk(container, request, now)
    else:
        partition, results = _batch(container, request, now, fault)
    worst = max(result.status for result in results)
    headers = document_headers(container, partition, sum(result.charge for result in results))
    if worst >= 400:
        del headers["x-ms-content-path"]
    # A read of an unchanged item has the status 304. A batch with such a read is answered with 207, although no operation failed.
    body = results_body(results, binary=is_binary(request.body))
    return Reply(status=207 if worst >= 300 else 200, body=body, headers=headers)


def _batch(
    container: Container, request: Request, now: float, fault: FaultRule | None
) -> tuple[Partition, list[Result]]:
    transaction = Transaction(container, key_of(container, request.headers), now)
    results: list[Result] = []
    operations = [operation(index, fields) for index, fields in enumerate(operations_of(request.body))]
    if any(one.operation.kind is OperationKind.READ for one in operations):
        sessions.require_seen(container, transaction.partition, request.headers, transaction.partition.lsn)
    for index, one in enumerate(operations):
        try:
            if fault is not None and fault.op_index == index:
                raise _error_of(fault)
            results.append(_execute(transaction, one, request))
            _check_answer(results)
        except CosmosError as error:
            results = [ROLLED_BACK] * len(operations)
            results[index] = failure(error)
            return transaction.partition, results
    transaction.commit()
    return transaction.partition, results


def _bulk(container: Container, request: Request, now: float) -> tuple[Partition, list[Result]]:
    """
    Execute the operations of a bulk request one by one, all of them in one range. After a failure, execute the remaining
    operations only if the request asks for it.
    """
    range_id = range_of(request.headers)
    partition = None if range_id is None else container.partition_by_id(range_id)
    goes_on = is_on(request.headers, "x-ms-cosmos-batch-continue-on-error")
    results: list[Result] = []
    for index, fields in enumerate(operations_of(request.body)):
        if results and results[-1].status >= 400 and not goes_on:
            results.append(ROLLED_BACK)
            continue
        try:
            one = operation(index, fields)
            text = one.partition_key
            key = key_of(container, request.headers) if text is None else container.key_from_header(text)
            transaction = _begin(container, key, now, partition)
            result = _execute(transaction, one, request)
        except CosmosError as error:
            results.append(failure(error))
            continue
        transaction.commit()
        results.append(result)
    return partition or container.partitions[0], results


def _check_answer(results: Sequence[Result]) -> None:
    if sum(len(result.body or b"") for result in results) > LARGEST_ANSWER_BYTES:
        raise too_large("The results of the batch are too large for one answer.")


def _begin(container: Container, key: LogicalKey, now: float, asked: Partition | None) -> Transaction:
    transaction = Transaction(container, key, now)
    if asked is not None and transaction.partition is not asked:
        raise CosmosError(410, "The partition key belongs to another range.", substatus=_RANGE_GONE)
    return transaction


def _execute(transaction: Transaction, one: BatchOperation, request: Request) -> Result:
    outcome = transaction.execute(one.operation)
    item, reads = outcome.item, one.operation.kind is OperationKind.READ
    size = len(item.encoded) if item else 0
    charge = charges.read_charge(size) if reads else charges.write_charge(size)
    minimal = not reads and (one.minimal or is_minimal(request.headers))
    body = item.encoded if item and outcome.status != 304 and not minimal else None
    return Result(status=outcome.status, charge=charge, etag=item.etag if item else None, body=body)


def _error_of(fault: FaultRule) -> CosmosError:
    return CosmosError(
        fault.status or 500, "Injected fault.", substatus=fault.substatus, retry_after_ms=fault.retry_after_ms
    )
