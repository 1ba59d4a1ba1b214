"""
Stored documents: the JSON in the container, which is the contract with programs in other languages.

An entity and its events share a logical partition and differ by `type`. The shape is that of Microsoft's sample, so its .NET
worker relays our events and ours relays its events (which have no `meta`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from cosmos_outbox.domain.entities import EVENT_TYPE, Entity
from cosmos_outbox.domain.events import MAX_TTL, DomainEvent, find, is_rounded, utc_now
from cosmos_outbox.partition_key import ON_PARTITION_KEY, KeyPaths, key_text

CLAIM = "claimCheck"
KEPT_FOREVER = -1
SET_BY_THE_SERVICE = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"})
_ALL_ZEROS, _MANY_DIGITS = bytes.maketrans(b"123456789", b"0" * 9), b"0" * 19
_OURS = frozenset({"id", "type", "data", "ttl", "version", *SET_BY_THE_SERVICE})

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event document as the change feed returned it; `partition_key` is the text of the key (see `key_text`)."""

    id: str
    partition_key: str
    action: str
    data: Mapping[str, Any]
    meta: Mapping[str, Any]  # in camelCase; {} for events of the .NET sample
    lsn: int

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key of the events of one partition key: the commit, then the place inside it."""
        sequence = self.meta.get("sequence")
        return self.lsn, sequence if isinstance(sequence, int) else 0


def entity_document(
    entity: Entity, stored: Mapping[str, Any] | None = None, *, version: int, key_fields: Document
) -> Document:
    """
    Return the document of an entity as the commit with this version writes it, with the properties of its partition key.

    What other programs added to the `stored` one, or to its `data`, stays; the fields of the entity are the entity's.
    """
    document: Document = {
        "id": entity.id,
        **key_fields,
        "type": entity.entity_type,
        "data": entity_data(entity, stored),
        "ttl": KEPT_FOREVER if entity.ttl is None else int(entity.ttl.total_seconds()),
        "version": version,
    }
    if stored is not None:
        for name in stored.keys() - _OURS - document.keys():
            document[name] = stored[name]
    return document


def json_bytes(value: Any) -> bytes:
    """Return compact JSON in UTF-8. Half of a surrogate pair, which UTF-8 cannot encode, is escaped."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:  # half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def entity_data(entity: Entity, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the `data` of an entity's document, with the fields that other programs added to the stored one."""
    # No warnings here: the check of a commit names the field that a warning would be about.
    data = entity.model_dump(mode="json", by_alias=True, warnings=False)
    kept = (stored or {}).get("data")
    if not isinstance(kept, Mapping) or kept.keys() <= data.keys():
        return data
    # A field that the entity omits now is gone. It must not come back from the stored document.
    names = kept.keys() if entity.model_config.get("extra") == "allow" else _entity_names(type(entity))
    return {**{name: value for name, value in kept.items() if name not in names}, **data}


def comparable(model: object, content: Any) -> bytes:
    """
    Return the stored form of a model, to compare with a later one. Computed fields are left out: one that depends on the
    time of day differs although the model was not changed.
    """
    computed = getattr(type(model), "model_computed_fields", None)
    if computed and not may_follow_the_clock(model):
        names = {field.alias or name for name, field in computed.items()}
        content = {name: value for name, value in content.items() if name not in names}
    return json_bytes(content)  # as bytes, since in Python True equals 1


def may_follow_the_clock(model: object) -> bool:
    """
    Say whether a model has computed fields that may change with the clock alone, and that may also be the only trace of a caller's change.
    """
    kind: Any = type(model)
    if not getattr(kind, "model_computed_fields", None):
        return False
    private = kind.__private_attributes__.keys() - Entity.__private_attributes__.keys()
    return bool(private) or any(field.exclude for field in kind.model_fields.values())


@functools.cache
def _entity_names(kind: type[Entity]) -> frozenset[str]:
    written = {name: field for name, field in kind.model_fields.items() if field.exclude is not True}
    names = [field.serialization_alias or name for name, field in written.items()]
    return frozenset([*names, *(field.alias or name for name, field in kind.model_computed_fields.items())])


def strip_system(document: Mapping[str, Any]) -> Document:
    """Return a document without the properties that the service sets."""
    return {name: value for name, value in document.items() if name not in SET_BY_THE_SERVICE}


def time_of(value: Any) -> datetime | None:
    """Return a time that an event names, in UTC; None if another program wrote something else there."""
    try:
        time = datetime.fromisoformat(value)
        return None if time.utcoffset() is None else time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def first_error(error: ValidationError) -> tuple[str, str]:
    """Return the path of the first field that pydantic refused, and the reason."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])) or "the whole", first["msg"]


def event_meta(
    kind: str, document_id: str, *, version: int | None, commit_id: str, correlation: Mapping[str, str]
) -> Document:
    """Return the `meta` that one entity's events in one commit share; without a version if the entity does not count."""
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
    key_fields: Document,
    meta: Document,
    sequence: int,
    deliver_at: datetime | None = None,
) -> Document:
    """
    Return the document of an event, which has this number inside its commit.

    One for later lives as long after its time as others after their commit: it can be sent again, and has its payload.
    """
    ttl, meta = event.ttl, {**meta, "sequence": sequence, "schemaVersion": event.schema_version}
    if deliver_at is not None:
        later = max(timedelta(0), deliver_at - utc_now())  # the event may name another time of its creation
        ttl = min(ttl + later, MAX_TTL)
        meta["deliverAt"] = deliver_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return {
        "id": event.id,
        **key_fields,
        "type": EVENT_TYPE,
        "data": event.payload(),
        "ttl": max(1, int(ttl.total_seconds())),
        "meta": meta,
    }


async def claimed_payload(
    data: Mapping[str, Any], read: Callable[[str, Any], Awaitable[Document]]
) -> Mapping[str, Any]:
    """
    Return the payload of an event: its `data` or, if that holds a claim, the payload that is stored under the claim.

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
    Return the event of a document. Return None if the document is no event, or claims to be one and cannot be published: its id is
    not a string, its partition key missing or null, or its data not an object. Neither this library nor Microsoft's sample writes
    such documents.

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
    """Say whether a document has the type of an event, well formed or not."""
    return document.get("type") == EVENT_TYPE


def size_on_wire(document: Mapping[str, Any], *, finite: bool = False) -> int:
    """
    Return how many bytes the SDK sends for a document: compact JSON with non-ASCII characters escaped.

    Raises:
        ValueError: `finite` is asked for, and a number in it is not, or a text has no UTF-8: JSON has neither. Or a whole number
            would be kept as another one.
    """
    text = to_json(document, inf_nan_mode="constants") if finite else json_bytes(document)
    # In a tenth of the time that a regular expression takes
    has_many_digits = finite and _MANY_DIGITS in text.translate(_ALL_ZEROS)
    if has_many_digits and any(True for _ in find(document, is_rounded)):
        raise ValueError(
            "Cosmos DB would change this number: it stores whole numbers over 64 bits as floats; store it as text"
        )
    if text.isascii() and not (finite and (b"NaN" in text or b"Infinity" in text)):
        return len(text)  # several times as fast as the general way
    return len(json.dumps(document, separators=(",", ":"), allow_nan=not finite))
