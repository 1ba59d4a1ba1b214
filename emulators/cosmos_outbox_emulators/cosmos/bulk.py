"""
Bulk requests: batches that are not atomic, in which each operation has its own partition key and its own fate.
"""

from __future__ import annotations

from typing import Any

from cosmos_outbox_emulators.cosmos import charges, jsontext
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.documents import (
    LARGEST_REQUEST_BYTES,
    ROLLED_BACK,
    failure,
    is_minimal,
    key_of,
    operations_of,
    result,
)
from cosmos_outbox_emulators.cosmos.errors import CosmosError, too_large
from cosmos_outbox_emulators.cosmos.partition import Partition
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, is_on
from cosmos_outbox_emulators.cosmos.replies import array, document_headers
from cosmos_outbox_emulators.cosmos.transaction import Operation, Outcome, Transaction

_RANGE_GONE = 1002


def is_bulk(request: Request) -> bool:
    return request.headers.get("x-ms-cosmos-batch-atomic", "").lower() == "false"


def bulk_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Execute the operations of one range, each for itself; after the first failure only if the request says so.
    """
    if len(request.body) > LARGEST_REQUEST_BYTES:
        raise too_large()
    range_id = request.headers.get("x-ms-documentdb-partitionkeyrangeid")
    partition = None if range_id is None else container.partition_by_id(range_id)
    goes_on = is_on(request.headers, "x-ms-cosmos-batch-continue-on-error")
    minimal = is_minimal(request.headers)
    batch = jsontext.decode(request.body)
    results: list[bytes] = []
    failed = False
    charge = 0.0
    for fields, operation in zip(batch, operations_of(batch), strict=True):
        if failed and not goes_on:
            results.append(ROLLED_BACK)
            continue
        try:
            outcome = _execute(container, request, fields, operation, partition, now=now)
        except CosmosError as error:
            failed = True
            results.append(failure(error))
            continue
        cost = charges.write_charge(len(outcome.item.encoded) if outcome.item else 0)
        charge += cost
        results.append(result(outcome, cost, minimal=minimal))
    headers = document_headers(container, partition or container.partitions[0], charge)
    return Reply(status=207 if failed else 200, body=array(results), headers=headers)


def _execute(
    container: Container,
    request: Request,
    fields: dict[str, Any],
    operation: Operation,
    partition: Partition | None,
    *,
    now: float,
) -> Outcome:
    text = fields.get("partitionKey")
    key = container.key_from_header(text) if isinstance(text, str) else key_of(container, request.headers)
    transaction = Transaction(container, key, now)
    if partition is not None and transaction.partition is not partition:
        raise CosmosError(410, "The partition key is of another range.", substatus=_RANGE_GONE)
    outcome = transaction.execute(operation)
    transaction.commit()
    return outcome
