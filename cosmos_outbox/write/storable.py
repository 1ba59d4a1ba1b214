"""
Storable: whether what a commit would write can be read back as it is, and if not, which field is at fault.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from cosmos_outbox.documents import Document, copied_size, entity_document, event_document, first_error
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.domain.own_documents import OwnDocument, stripped
from cosmos_outbox.errors import UnstorableValue
from cosmos_outbox.partition_key import KeyPaths, PartitionKey

_UNWRITABLE = PydanticSerializationError, UnicodeDecodeError
_DIFFERS = "its stored form reads back as another value"


def storable_entity(entity: Entity, *, version: int, paths: KeyPaths) -> Document:
    """
    Return the document of an entity, of which a read makes an equal entity.

    Raises:
        UnstorableValue: a field is not valid, or has a value that its JSON does not hold.
    """
    try:
        document = entity_document(entity, version=version, paths=paths)
    except _UNWRITABLE as error:
        raise _unwritable(entity, entity.partition_key, error) from error
    try:
        if isinstance(entity, OwnDocument):
            _check_same(entity, document, entity.read_back(document))
            return document
        read = type(entity).model_validate(document["data"])
    except ValidationError as error:
        field, reason = first_error(error)
        raise _refusal(entity, entity.partition_key, field=field, reason=reason) from error
    for name in type(entity).model_fields if entity.__dict__ != read.__dict__ else ():
        if not _is_same(entity, read, name):
            raise _refusal(entity, entity.partition_key, field=name, reason=_DIFFERS)
    return document


def _check_same(entity: OwnDocument, document: Document, read: Mapping[str, Any]) -> None:
    for name in {**document, **stripped(read)} if read is not document else ():
        if json.dumps(document.get(name), sort_keys=True) != json.dumps(read.get(name), sort_keys=True):
            raise _refusal(entity, entity.partition_key, field=name, reason=_DIFFERS)


def storable_event(
    event: DomainEvent, *, partition_key: PartitionKey, meta: Document, sequence: int, paths: KeyPaths
) -> Document:
    """
    Return the document of an event.

    Raises:
        UnstorableValue: a field has a value that JSON cannot hold.
    """
    try:
        return event_document(event, partition_key=partition_key, meta=meta, sequence=sequence, paths=paths)
    except _UNWRITABLE as error:
        raise _unwritable(event, partition_key, error) from error


def size_of(document: Mapping[str, Any], owner: Entity | DomainEvent, *, partition_key: PartitionKey) -> int:
    """
    Return how many bytes the SDK sends for a document.

    Raises:
        UnstorableValue: a number in it is infinite, or none.
    """
    try:
        return copied_size(document, finite=True)
    except ValueError as error:
        field = next(_not_finite(document.get("data", document), ()), "a number")
        raise _refusal(owner, partition_key, field=field, reason=str(error)) from error


def _unwritable(
    owner: Entity | DomainEvent, partition_key: PartitionKey, error: ValueError
) -> UnstorableValue:
    field = next(filter(lambda name: not _serialises(owner, name), type(owner).model_fields), "a field")
    return _refusal(owner, partition_key, field=field, reason=str(error))


def _serialises(owner: BaseModel, name: str) -> bool:
    try:
        owner.model_dump(mode="json", include={name}, warnings=False)
    except _UNWRITABLE:
        return False
    return True


def _is_same(entity: Entity, read: Entity, name: str) -> bool:
    mine, stored = getattr(entity, name), getattr(read, name)
    if mine is stored or mine == stored:
        return True
    # Values that cannot be compared, and models that differ in private attributes alone, are the same in all they show.
    shown = [one.model_dump(include={name}, serialize_as_any=True, warnings=False) for one in (entity, read)]
    return name in shown[0] and shown[0] == shown[1]


def _not_finite(value: object, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield ".".join(path)
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, part in inner:
        yield from _not_finite(part, (*path, str(name)))


def _refusal(
    owner: Entity | DomainEvent, partition_key: PartitionKey, *, field: str, reason: str
) -> UnstorableValue:
    kind = type(owner.model if isinstance(owner, OwnDocument) else owner)
    return UnstorableValue(
        kind.__name__, document_id=owner.id, partition_key=partition_key, field=field, reason=reason
    )
