"""
The JSON documents stored in the container: the contract with programs in other languages.

An entity and its events share a logical partition and differ by `type`. The shape is that of Microsoft's sample, so its .NET
worker relays our events and ours relays its events (which have no `meta`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from cosmos_outbox.domain.entities import Entity, is_entity_field
from cosmos_outbox.domain.events import MAX_TTL, DomainEvent
from cosmos_outbox.domain.identifiers import EVENT_TYPE, PAYLOAD_TYPE
from cosmos_outbox.domain.own_documents import SET_BY_THE_SERVICE
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, PartitionKey, key_text

CLAIM = "claimCheck"
_PAYLOAD_OUTLIVES_SECONDS = 30 * 86_400
KEPT_FOREVER = -1
_OURS = frozenset({"id", "type", "data", "ttl", "version", *SET_BY_THE_SERVICE})

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """
    An event document as the change feed delivered it; `partition_key` is the text of the key (see `key_text`).
    """

    id: str
    partition_key: str
    action: str
    data: Mapping[str, Any]
    meta: Mapping[str, Any]  # camelCase, {} for events of the .NET sample
    lsn: int

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key of the events of one partition key: the commit, then the place inside it."""
        sequence = self.meta.get("sequence")
        return self.lsn, sequence if isinstance(sequence, int) else 0


def entity_document(entity: Entity, *, version: int, paths: KeyPaths = ON_PARTITION_KEY) -> Document:
    """
    Return the document of an entity as the commit with this version writes it.

    What other programs added, to the document or to `data`, stays; the fields of the entity are the entity's.
    """
    stored = entity.stored
    document: Document = {
        "id": entity.id,
        **paths.fields(entity.partition_key, stored),
        "type": entity.entity_type,
        "data": entity_data(entity),
        "ttl": KEPT_FOREVER if entity.ttl is None else int(entity.ttl.total_seconds()),
        "version": version,
    }
    if stored is not None:
        for name in stored.keys() - _OURS - document.keys():
            document[name] = stored[name]
    return document


def json_bytes(value: Any) -> bytes:
    """Return compact JSON in UTF-8; what UTF-8 cannot carry, half of a surrogate pair, is escaped."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:  # half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def entity_data(entity: Entity) -> dict[str, Any]:
    """Return the `data` of an entity's document, with what other programs added to it."""
    # The check of a commit names the field that a warning would be about.
    data = entity.model_dump(mode="json", by_alias=True, warnings=False)
    kept = (entity.stored or {}).get("data")
    if isinstance(kept, Mapping) and not kept.keys() <= data.keys():
        # A field that the entity omits now is gone, and must not come back from the stored document.
        added = {name: value for name, value in kept.items() if not is_entity_field(type(entity), name)}
        return {**added, **data}
    return data


def first_error(error: ValidationError) -> tuple[str, str]:
    """Return the path of the first field that pydantic refused, and why."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])) or "the whole", first["msg"]


def commit_id_of(document: Mapping[str, Any]) -> str | None:
    """Return the id of the commit that wrote an event."""
    meta = document.get("meta")
    commit_id = meta.get("commitId") if isinstance(meta, Mapping) else None
    return commit_id if isinstance(commit_id, str) else None


def version_of(document: Mapping[str, Any]) -> int:
    """
    Return how many commits wrote an entity's document; 1 for one of the .NET sample, which does not count.
    """
    version = document.get("version")
    return version if isinstance(version, int) and version > 0 else 1


def event_meta(
    kind: str, document_id: str, *, version: int | None, commit_id: str, correlation: Mapping[str, str]
) -> Document:
    """
    Return what the `meta` of one entity's events in one commit have in common; without a version where it does not count.
    """
    return {
        "entityType": kind,
        "entityId": document_id,
        **({} if version is None else {"entityVersion": version}),
        "commitId": commit_id,
        **correlation,
    }


def event_document(
    event: DomainEvent,
    *,
    partition_key: PartitionKey,
    meta: Document,
    sequence: int,
    paths: KeyPaths = ON_PARTITION_KEY,
) -> Document:
    """Return the document of an event, the one with this number inside its commit."""
    return {
        "id": event.id,
        **paths.fields(partition_key),
        "type": EVENT_TYPE,
        "data": event.payload(),
        "ttl": max(1, int(event.ttl.total_seconds())),
        "meta": {**meta, "sequence": sequence, "schemaVersion": event.schema_version},
    }


def event_with_claim(document: Document, *, partition_key: Any) -> Document:
    """
    Return the document of an event whose payload is stored in a document of its own: it has that one's address instead.
    """
    claim = {
        "id": _payload_id(document),
        "partitionKey": [*partition_key] if isinstance(partition_key, tuple) else partition_key,
    }
    kept = {name: document["data"][name] for name in ("id", "action", "createdAt")}
    return {**document, "data": {**kept, CLAIM: claim}, "meta": {**document["meta"], CLAIM: claim["id"]}}


def payload_document(document: Document) -> Document:
    """Return the document that holds the payload of an event; it outlives the event, which may be parked when its time is over."""
    content = {name: value for name, value in document.items() if name != "meta"}
    ttl = min(document["ttl"] + _PAYLOAD_OUTLIVES_SECONDS, int(MAX_TTL.total_seconds()))
    return {**content, "id": _payload_id(document), "type": PAYLOAD_TYPE, "ttl": ttl}


def _payload_id(document: Document) -> str:
    return f"payload-{document['id']}"


async def claimed_payload(
    data: Mapping[str, Any], read: Callable[[str, Any], Awaitable[Document]]
) -> Mapping[str, Any]:
    """
    Return the payload of an event: `data` itself or, if that holds a claim, what is stored under it.

    Args:
        data: the body of a message, or the `data` of an event.
        read: returns a document by id and partition key, such as `store.read`.

    Raises:
        NotFound: the payload is gone: its time to live, 30 days more than the event's, has passed.
    """
    claim = data.get(CLAIM)
    if not isinstance(claim, Mapping):
        return data
    key = claim["partitionKey"]
    document = await read(claim["id"], tuple(key) if isinstance(key, list) else key)
    payload: Mapping[str, Any] = document["data"]
    return payload


def stored_event(document: Mapping[str, Any], paths: KeyPaths = ON_PARTITION_KEY) -> StoredEvent | None:
    """
    Return the event of a document; None if it is something else, or claims to be one and cannot be published: its id is not a string,
    its partition key missing or null, or its data not an object. Neither this library nor Microsoft's sample writes such documents.

    Only what the relay needs to route and order is required; the payload is passed on unchanged.
    """
    if document.get("type") != EVENT_TYPE:
        return None
    data, event_id, partition_key = document.get("data"), document.get("id"), paths.key_of(document)
    if not isinstance(data, dict) or not isinstance(event_id, str) or partition_key is None:
        return None
    meta = document.get("meta")
    return StoredEvent(
        id=event_id,
        partition_key=key_text(partition_key),
        action=str(data.get("action") or ""),
        data=data,
        meta=meta if isinstance(meta, dict) else {},
        lsn=int(document.get("_lsn", 0)),
    )


def claims_to_be_an_event(document: Mapping[str, Any]) -> bool:
    """Say whether a document is an event, well formed or not."""
    return document.get("type") == EVENT_TYPE


def copied_size(document: Mapping[str, Any], *, finite: bool = False) -> int:
    """
    Return how many bytes the SDK sends for a document: compact JSON with non-ASCII characters escaped.

    Raises:
        ValueError: `finite` is asked for, and a number in it is not, or a text has no UTF-8: JSON has neither.
    """
    text = to_json(document, inf_nan_mode="constants") if finite else json_bytes(document)
    if text.isascii() and not (finite and (b"NaN" in text or b"Infinity" in text)):
        return len(text)  # several times as fast
    return len(json.dumps(document, separators=(",", ":"), allow_nan=not finite))
