"""
Stored documents: the JSON of entities and events in the container, which programs in other languages rely on, too.

An entity and its events share a logical partition and differ by `type`. The class of an event sets its `ttl` and its payload: time, ids and fields (`domain.events`). The
documents have the form of Microsoft's .NET sample of an outbox on Cosmos DB. So the sample's worker can relay the events of this library,
and this library's relay can send the sample's events, which have no `meta`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

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


class StoredEvent(NamedTuple):
    """
    An event document as the change feed returned it. A named tuple, because a frozen dataclass takes three times as long to make.

    partition_key: the text of the key (see `key_text`).
    """

    id: str
    partition_key: str
    action: str
    data: Mapping[str, Any]
    meta: Mapping[str, Any]  # in camelCase; {} for events of the .NET sample
    lsn: int

    @property
    def order(self) -> tuple[int, int]:
        """Return the sort key for the events of one partition key: the LSN of the commit, then the number of the event inside it."""
        sequence = self.meta.get("sequence")
        return self.lsn, sequence if isinstance(sequence, int) else 0


def entity_document(
    entity: Entity, stored: Mapping[str, Any] | None = None, *, version: int, key_fields: Document
) -> Document:
    """
    Return the document that a commit writes for an entity, with this version and these properties of its partition key.

    Fields that other programs added to the `stored` document, or to its `data`, are kept. The entity's own fields come from the entity.
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
    except ValueError:  # a text has half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def entity_data(entity: Entity, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the `data` of an entity's document, with the fields that other programs added to the `data` of the stored document."""
    # Pydantic's warnings are off, because the commit itself checks the values, and its error names the field.
    data = entity.model_dump(mode="json", by_alias=True, warnings=False)
    kept = (stored or {}).get("data")
    if not isinstance(kept, Mapping) or kept.keys() <= data.keys():
        return data
    # Keep only the fields of other programs: a field that the entity leaves out now must not come back from the stored document.
    names = kept.keys() if entity.model_config.get("extra") == "allow" else _entity_names(type(entity))
    return {**{name: value for name, value in kept.items() if name not in names}, **data}


def comparable(model: object, content: Any) -> bytes:
    """
    Return the stored form of a model as bytes, which are compared later to find out whether the model was changed.

    Computed fields are left out if possible, because a computed field may depend on the time, and differ without a change of the model.
    """
    computed = getattr(type(model), "model_computed_fields", None)
    if computed and not may_follow_the_clock(model):
        names = {field.alias or name for name, field in computed.items()}
        content = {name: value for name, value in content.items() if name not in names}
    # return bytes, because different JSON values may be equal in Python: True equals 1
    return json_bytes(content)


def may_follow_the_clock(model: object) -> bool:
    """
    Say whether a commit compares the computed fields of a model to find changes, although some may change merely as time passes.

    It compares them if the model has private attributes or fields that are not stored, because a change of those shows only in computed
    fields.
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
    """Return a time that is stored as text, in UTC; None if the value is not a time with an offset, as another program may write."""
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
    """Return the `meta` that all events of one entity in one commit share. The version is left out if the document has none."""
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
    Return the document of an event. `sequence` is the number of the event within its commit.

    The time to live of an event with a `deliver_at` counts from that time, so that the event can still be sent again after its delivery.
    """
    ttl, meta = event.ttl, {**meta, "sequence": sequence, "schemaVersion": event.schema_version}
    if deliver_at is not None:
        # Count from now, not from the event's `created_at`, which the application may have set to another
        # time.
        later = max(timedelta(0), deliver_at - utc_now())
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
    Return the payload of an event: its `data` or, if that contains a claim check, the payload that is stored at the claim check's address.

    Args:
        data: the body of a message, or the `data` of an event.
        read: a function that returns a document by id and partition key, such as `store.read`.

    Raises:
        NotFound: the payload was deleted, because its time to live has passed. That is 30 days longer than the event's.
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
    Return the event that a document holds; None if the document is no event, or one that cannot be published.

    An event cannot be published if its id is not a string, its partition key is missing or null, or its data is not an object. Neither this
    library nor Microsoft's sample writes such documents. Nothing else is checked: the payload is passed on unchanged.
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
        ValueError: only with `finite`: a number in the document is infinite or NaN, UTF-8 cannot encode a text in it, or Cosmos DB would
            store another number in place of a whole number.
    """
    text = to_json(document, inf_nan_mode="constants") if finite else json_bytes(document)
    # Look for 19 digits in a row with `translate`, which takes a tenth of the time of a regular expression. Only if there are any, check
    # the numbers one by one.
    has_many_digits = finite and _MANY_DIGITS in text.translate(_ALL_ZEROS)
    if has_many_digits and any(True for _ in find(document, is_rounded)):
        raise ValueError(
            "Cosmos DB would change this number, because it stores whole numbers of more than 64 bits as floats; store the number as text"
        )
    if text.isascii() and not (finite and (b"NaN" in text or b"Infinity" in text)):
        # the length is already known; this saves the slow `json.dumps` below for most documents
        return len(text)
    return len(json.dumps(document, separators=(",", ":"), allow_nan=not finite))
