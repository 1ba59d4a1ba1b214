"""
Storable: whether what a commit would write can be read back as it is, and if not, which field is at fault.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer
from pydantic_core.core_schema import any_schema, plain_serializer_function_ser_schema

from cosmos_outbox.documents import Document, copied_size, first_error
from cosmos_outbox.domain.events import DomainEvent, found
from cosmos_outbox.errors import UnstorableValue
from cosmos_outbox.partition_key import KeyPaths, PartitionKey, bytes_of
from cosmos_outbox.ports import Write
from cosmos_outbox.write.tracked import Part, Tracked

OPERATION_OVERHEAD_BYTES = 64  # {"operationType": "Create", "resourceBody": …}, beside ids and etags
_LOST, _LOSSY = "\0lost", (tuple, set, frozenset, Decimal)
_ANY = any_schema()
UNWRITABLE = PydanticSerializationError, UnicodeError


def storable(part: Part, paths: KeyPaths) -> Document:
    """
    Return what a commit stores of a tracked document.

    Raises:
        UnstorableValue: a field has a value that has no JSON.
    """
    tracked = part.document
    try:
        return tracked.document(part.version, paths)
    except UNWRITABLE as error:
        raise unwritable(tracked, part.partition_key, error) from error


def size_of(write: Write, owner: Tracked | DomainEvent, partition_key: PartitionKey) -> int:
    """
    Return how many bytes the SDK sends for a write, of which a read makes what its owner is.

    Raises:
        UnstorableValue: a field is not valid, or has a value that its JSON does not hold; a number in it is infinite, or none; or a
            text has no UTF-8.
    """
    named, document = len(write.id) + len(write.etag or "") + OPERATION_OVERHEAD_BYTES, write.document or {}
    try:
        field, reason, cause = _altered(owner, document), "its stored form reads back as another value", None
    except ValidationError as error:
        (field, reason), cause = first_error(error), error
    if field is not None:
        raise _refusal(owner, partition_key, field, reason) from cause
    try:
        return named + copied_size(document, finite=True)
    except ValueError as error:
        field = next(found(document, _no_json), "a field").removeprefix("data.")
        raise _refusal(owner, partition_key, field, str(error)) from error


def _altered(owner: Tracked | DomainEvent, document: Mapping[str, Any]) -> str | None:
    if isinstance(owner, Tracked):
        return owner.altered(document) if document else None
    marking = _marking(type(owner))
    said = marking.to_python(owner, mode="json", warnings=False) if marking else {}
    return next(found(said | _marked(owner.__pydantic_extra__ or {}), lambda part: part == _LOST), None)


def _marked(value: Any) -> Any:
    """Return a value, which may be of any type, with a mark in place of what JSON turns into something else without a word."""
    if isinstance(value, dict):
        return {str(name): _marked(one) if isinstance(name, str) else _LOST for name, one in value.items()}
    if isinstance(value, list):
        return [_marked(one) for one in value]
    return _LOST if isinstance(value, _LOSSY) or _no_json(value) else value


@functools.cache
def _marking(kind: type[DomainEvent]) -> SchemaSerializer | None:
    """Return what writes an event as its class does, with marks where it takes any value; None if it does so nowhere."""
    if "'type': 'any'" not in str(schema := kind.__pydantic_core_schema__):
        return None
    try:
        return SchemaSerializer(_with_marks(schema), _use_prebuilt=False)
    except TypeError:  # before pydantic 2.12, which marks nothing inside of inner models
        return SchemaSerializer(_with_marks(schema))


def _with_marks(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return (tuple if isinstance(schema, tuple) else list)(map(_with_marks, schema))
    if not isinstance(schema, dict) or "serialization" in schema:  # it says how the values are written
        return schema
    if schema.get("type") == "any" or schema.get("keys_schema") == schema.get("values_schema") == _ANY:
        return {**schema, "serialization": plain_serializer_function_ser_schema(_marked)}
    return {name: _with_marks(part) for name, part in schema.items()}


def unwritable(owner: Tracked | DomainEvent, key: PartitionKey, error: ValueError) -> UnstorableValue:
    """Return the refusal of an owner that has no JSON."""
    model = owner.model if isinstance(owner, Tracked) else owner
    field = next((name for name in type(model).model_fields if not _serialises(model, name)), "a field")
    return _refusal(owner, key, field, str(error))


def _serialises(owner: BaseModel, name: str) -> bool:
    try:
        owner.model_dump(mode="json", include={name}, warnings=False)
    except UNWRITABLE:
        return False
    return True


def _no_json(value: Any) -> bool:
    if isinstance(value, str):
        return bytes_of(value) is None
    return isinstance(value, float) and not math.isfinite(value)


def _refusal(owner: Tracked | DomainEvent, key: PartitionKey, field: str, reason: str) -> UnstorableValue:
    kind = type(owner.model if isinstance(owner, Tracked) else owner).__name__
    return UnstorableValue(of=kind, document_id=owner.id, partition_key=key, field=field, reason=reason)
