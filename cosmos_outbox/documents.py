"""
The JSON documents stored in the container: the contract with programs in other languages.

An entity and its events lie in one logical partition and tell themselves apart by `type`. The shape is the one of
Microsoft's sample, so its .NET worker relays our events and ours relays its events (which then have no `meta`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cosmos_outbox.domain.entities import Entity, owns
from cosmos_outbox.domain.events import DomainEvent

EVENT_TYPE = "domainEvent"
KEPT_FOREVER = -1
TRAIL_LENGTH = 8
_SET_BY_THE_SERVICE = {"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"}
_OURS = frozenset({"id", "partitionKey", "type", "data", "ttl", "version", *_SET_BY_THE_SERVICE})

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """
    An event document as the change feed delivered it.
    """

    id: str
    partition_key: str
    action: str
    data: Mapping[str, Any]
    meta: Mapping[str, Any]  # camelCase, {} for events of the .NET sample
    ttl: int | None
    lsn: int
    written_at: int  # `_ts`, seconds since 1970

    @property
    def order(self) -> tuple[int, int]:
        """
        Return what sorts the events of one partition key: the commit, then the place inside it.
        """
        sequence = self.meta.get("sequence")
        return self.lsn, sequence if isinstance(sequence, int) else 0


def entity_document(entity: Entity, *, version: int, commit_id: str | None = None) -> Document:
    """
    Return the document of an entity as the commit with this version writes it.

    What other programs added, to the document or to `data`, stays; inside a field of the entity, the entity decides.
    `commit_id` goes into the trail where no event of the commit stays long enough to prove later that it was written.
    """
    document: Document = {
        "id": entity.id,
        "partitionKey": entity.partition_key,
        "type": entity.entity_type,
        "data": _data_of(entity),
        "ttl": KEPT_FOREVER,
        "version": version,
    }
    stored = entity.stored
    if stored is not None:
        for name in stored.keys() - _OURS:
            document[name] = stored[name]
        kept, data = stored.get("data"), document["data"]
        if isinstance(kept, Mapping) and not kept.keys() <= data.keys():
            # A field that the entity leaves out now is gone, and must not come back from what is stored.
            added = {name: value for name, value in kept.items() if not owns(type(entity), name)}
            document["data"] = {**added, **data}
    if commit_id is not None:
        trail = [
            {"version": earlier, "id": earlier_id}
            for earlier, earlier_id in commit_trail(document).items()
            if earlier < version
        ]
        trail.append({"version": version, "id": commit_id})
        document["meta"] = {**_meta_of(document), "commits": trail[-TRAIL_LENGTH:]}
    return document


def is_edited(entity: Entity, document: Mapping[str, Any]) -> bool:
    """
    Say whether an entity has other data now than when its document was made.
    """
    data, written = _data_of(entity), document["data"]
    own = {name: value for name, value in written.items() if name in data or owns(type(entity), name)}
    # As JSON: for Python, True is 1.
    return json.dumps(data, sort_keys=True) != json.dumps(own, sort_keys=True)


def _data_of(entity: Entity) -> dict[str, Any]:
    data: dict[str, Any] = entity.__pydantic_serializer__.to_python(entity, mode="json", by_alias=True)
    return data


def commit_id_of(document: Mapping[str, Any]) -> str | None:
    """
    Return the id of the commit that wrote an event.
    """
    commit_id = _meta_of(document).get("commitId")
    return commit_id if isinstance(commit_id, str) else None


def commit_trail(document: Mapping[str, Any]) -> dict[int, str]:
    """
    Return the ids of the last commits that wrote an entity and left no lasting event, by version, newest last.
    """
    found: dict[int, str] = {}
    trail = _meta_of(document).get("commits")
    for entry in trail if isinstance(trail, list) else ():
        version, commit_id = (
            (entry.get("version"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        )
        if isinstance(version, int) and isinstance(commit_id, str):
            found[version] = commit_id
    return dict(sorted(found.items()))


def _meta_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = document.get("meta")
    return meta if isinstance(meta, Mapping) else {}


def version_of(document: Mapping[str, Any]) -> int:
    """
    Return how many commits wrote an entity's document; 1 where the .NET sample wrote it, which does not count.
    """
    version = document.get("version")
    return version if isinstance(version, int) and version > 0 else 1


def origin_of(entity: Entity, *, version: int, commit_id: str, correlation: Mapping[str, str]) -> Document:
    """
    Return what the `meta` of one entity's events in one commit have in common.

    It is what the sample's events lack, and a consumer needs to see gaps and causes.
    """
    return {
        "entityType": entity.entity_type,
        "entityId": entity.id,
        "entityVersion": version,
        "commitId": commit_id,
        **correlation,
    }


def event_document(event: DomainEvent, *, partition_key: str, origin: Document, sequence: int) -> Document:
    """
    Return the document of an event, the one with this number inside its commit.
    """
    return {
        "id": event.id,
        "partitionKey": partition_key,
        "type": EVENT_TYPE,
        "data": event.payload(),
        "ttl": max(1, int(event.ttl.total_seconds())),
        "meta": {**origin, "sequence": sequence, "schemaVersion": event.schema_version},
    }


def stored_event(document: Mapping[str, Any]) -> StoredEvent | None:
    """
    Return the event a change carries, or None where the document is something else (or see `is_malformed_event`).

    Only what the relay needs to route and order is required; the payload is passed on as it is.
    """
    if document.get("type") != EVENT_TYPE:
        return None
    data, event_id, partition_key = document.get("data"), document.get("id"), document.get("partitionKey")
    if not isinstance(data, dict) or not isinstance(event_id, str) or not isinstance(partition_key, str):
        return None
    meta, ttl = document.get("meta"), document.get("ttl")
    return StoredEvent(
        id=event_id,
        partition_key=partition_key,
        action=str(data.get("action") or ""),
        data=data,
        meta=meta if isinstance(meta, dict) else {},
        ttl=ttl if isinstance(ttl, int) else None,
        lsn=int(document.get("_lsn", 0)),
        written_at=int(document.get("_ts", 0)),
    )


def claims_to_be_an_event(document: Mapping[str, Any]) -> bool:
    """
    Say whether a document is an event or a malformed one: all that a relay has to see.
    """
    return document.get("type") == EVENT_TYPE


def copied_size(document: Mapping[str, Any]) -> int:
    """
    Return how many bytes the SDK sends for a copy of a document: compact JSON in which what is not ASCII is escaped.
    """
    return len(json.dumps(document, separators=(",", ":")))


def is_malformed_event(document: Mapping[str, Any]) -> bool:
    """
    Say whether a document calls itself an event, but cannot be published.

    Its id or partition key is no string, or its data no object, or null. Neither this library nor Microsoft's sample writes
    such.
    """
    return claims_to_be_an_event(document) and stored_event(document) is None
