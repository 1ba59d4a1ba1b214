"""
Answers requests that write or read a single document, or delete all documents of a partition key. `feeds.py` answers queries.
"""

from __future__ import annotations

from collections.abc import Mapping

from cosmos_outbox_emulators.cosmos import charges, jsontext, sessions
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import bad_request, too_large
from cosmos_outbox_emulators.cosmos.partition_key import LogicalKey
from cosmos_outbox_emulators.cosmos.protocol import Reply, Request, RequestKind
from cosmos_outbox_emulators.cosmos.replies import document_headers
from cosmos_outbox_emulators.cosmos.transaction import Operation, OperationKind, Transaction

LARGEST_REQUEST_BYTES = 2 * 1024 * 1024

_KEY_MISMATCH = 1001
_QUOTA = "documentSize=10240;documentsSize=10485760;documentsCount=-1;collectionSize=10485760;"


def item_reply(
    container: Container, request: Request, kind: RequestKind, item_id: str | None, now: float
) -> Reply:
    """Execute a request that reads or writes one item, and return the reply."""
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
            kind=OperationKind[kind.name],
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
    headers["x-ms-resource-quota"] = headers["x-ms-resource-usage"] = _QUOTA
    minimal = needs_body and is_minimal(request.headers)
    body = item.encoded if item and outcome.status != 304 and not minimal else b""
    return Reply(status=outcome.status, body=body, headers=headers)


def _delete_key_reply(container: Container, request: Request, now: float) -> Reply:
    """
    Delete all items of a partition key. Azure deletes them in the background, but the emulator deletes them before it answers.
    """
    transaction = Transaction(container, key_of(container, request.headers), now)
    transaction.delete_all()
    transaction.commit()
    return Reply(
        status=200, headers=document_headers(container, transaction.partition, charges.write_charge(0))
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


def key_of(container: Container, headers: Mapping[str, str]) -> LogicalKey:
    text = headers.get("x-ms-documentdb-partitionkey")
    if text is None:
        raise bad_request("PartitionKey value must be supplied for this operation.", substatus=_KEY_MISMATCH)
    return container.key_from_header(text)
