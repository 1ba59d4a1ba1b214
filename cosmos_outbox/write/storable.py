"""
Storable: whether what a commit would write can be read back as it is, and if not, which field is at fault.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, TypeAdapter, ValidationError, WrapSerializer
from pydantic_core import PydanticSerializationError

from cosmos_outbox.documents import Document, copied_size, first_error
from cosmos_outbox.domain.entities import altered_field
from cosmos_outbox.domain.events import DomainEvent, found
from cosmos_outbox.errors import UnstorableValue
from cosmos_outbox.partition_key import KeyPaths, PartitionKey, bytes_of
from cosmos_outbox.ports import Write
from cosmos_outbox.write.tracked import Part, Tracked

OPERATION_OVERHEAD_BYTES = 64  # {"operationType": "Create", "resourceBody": …}, beside ids and etags
_SERIALIZERS = PlainSerializer, WrapSerializer
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
        raise _refusal(owner, partition_key, field=field, reason=reason) from cause
    try:
        return named + copied_size(document, finite=True)
    except ValueError as error:
        field = next(found(document, _no_json), "a field").removeprefix("data.")
        raise _refusal(owner, partition_key, field=field, reason=str(error)) from error


def _altered(owner: Tracked | DomainEvent, document: Mapping[str, Any]) -> str | None:
    if isinstance(owner, Tracked):
        return owner.altered(document) if document else None
    if not (loose := _loose_fields(type(owner))):
        return None
    data = document["data"]  # without the fields, where it claims them
    read = {name: one.validate_python([data[key]])[0] for name, (key, one) in loose.items() if key in data}
    return altered_field(owner, owner.model_copy(update=read))


@functools.cache
def _loose_fields(kind: Any) -> dict[str, tuple[str, TypeAdapter[list[Any]]]]:
    """
    Return the names in the payload, and what reads a list of them, of an event's fields that take any value somewhere: the types of
    others, and serializers, say how a field is written.
    """
    # As the event may have it; a list takes it for whatever is in it
    config = ConfigDict(arbitrary_types_allowed=True)
    written = kind.__pydantic_decorators__.field_serializers.values()
    own = {name for one in written for name in one.info.fields}
    fields = {
        name: (field.serialization_alias or name, TypeAdapter(list[field.annotation], config=config))  # type: ignore[name-defined]
        for name, field in kind.model_fields.items()
        if name not in own and not any(isinstance(one, _SERIALIZERS) for one in field.metadata)
    }
    return {name: one for name, one in fields.items() if "'type': 'any'" in str(one[1].core_schema)}


def unwritable(
    owner: Tracked | DomainEvent, partition_key: PartitionKey, error: ValueError
) -> UnstorableValue:
    """Return the refusal of an owner that has no JSON."""
    model = owner.model if isinstance(owner, Tracked) else owner
    field = next((name for name in type(model).model_fields if not _serialises(model, name)), "a field")
    return _refusal(owner, partition_key, field=field, reason=str(error))


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


def _refusal(
    owner: Tracked | DomainEvent, partition_key: PartitionKey, *, field: str, reason: str
) -> UnstorableValue:
    kind = type(owner.model if isinstance(owner, Tracked) else owner)
    return UnstorableValue(
        kind.__name__, document_id=owner.id, partition_key=partition_key, field=field, reason=reason
    )
