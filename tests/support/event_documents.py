"""Make event documents as the change feed delivers them, and batches of such documents."""

from __future__ import annotations

from typing import Any

from cosmos_outbox.ports import ChangeBatch, Notes
from cosmos_outbox.stored_documents import Document


def event(
    key: str = "contact-1",
    number: int = 1,
    *,
    lsn: int | None = None,
    sequence: int | None = 0,
    size: int = 0,
    **meta: Any,
) -> Document:
    """
    Return an event document. If `sequence` is None, it has no `meta`, like the documents that Microsoft's .NET sample writes.
    """
    document: Document = {
        "id": f"{key}/{number}",
        "partitionKey": key,
        "type": "domainEvent",
        "ttl": 864000,
        "data": {
            "id": f"{key}/{number}",
            "action": "Renamed",
            "createdAt": "2026-01-01T00:00:00Z",
            "number": number,
            "padding": "x" * size,
        },
        "_lsn": number if lsn is None else lsn,
        "_ts": 1_800_000_000,
        "_etag": '"00000000-0000-0000-0000-000000000000"',
    }
    if sequence is not None:
        document["meta"] = {
            "entityType": "contact",
            "entityId": key,
            "entityVersion": number,
            "commitId": f"commit-{lsn or number}",
            "sequence": sequence,
            "schemaVersion": 1,
            **meta,
        }
    return document


def entity(key: str = "contact-1", *, lsn: int = 1) -> Document:
    return {"id": key, "partitionKey": key, "type": "contact", "data": {"id": key}, "ttl": -1, "_lsn": lsn}


def batch(
    *documents: Document,
    lease: str = "0",
    tenure: int = 0,
    processor: str = "",
    notes: Notes | None = None,
) -> ChangeBatch:
    return ChangeBatch(
        lease=lease,
        documents=documents,
        tenure=tenure,
        processor=processor,
        notes=Notes() if notes is None else notes,
    )
