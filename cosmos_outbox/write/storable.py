"""
Storable: whether what a commit would write can be read back as it is, and if not, which field is at fault.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from cosmos_outbox.documents import Document, copied_size, first_error
from cosmos_outbox.domain.events import DomainEvent, found
from cosmos_outbox.errors import UnstorableValue
from cosmos_outbox.partition_key import KeyPaths, PartitionKey, bytes_of
from cosmos_outbox.ports import Write
from cosmos_outbox.write.tracked import Part, Tracked

OPERATION_OVERHEAD_BYTES = 64  # {"operationType": "Create", "resourceBody": …}, beside ids and etags
UNWRITABLE = PydanticSerializationError, UnicodeError


def storable(part: Part, paths: KeyPaths) -> Document:
    """
    Return what a commit stores of a tracked document, of which a read makes an equal model.

    Raises:
        UnstorableValue: a field is not valid, or has a value that its JSON does not hold.
    """
    tracked, partition_key = part.document, part.partition_key
    try:
        document = tracked.document(part.version, paths)
    except UNWRITABLE as error:
        raise unwritable(tracked, partition_key, error) from error
    try:
        field, reason, cause = tracked.altered(document), "its stored form reads back as another value", None
    except ValidationError as error:
        (field, reason), cause = first_error(error), error
    if field is not None:
        raise _refusal(tracked, partition_key, field=field, reason=reason) from cause
    return document


def size_of(write: Write, owner: Tracked | DomainEvent, partition_key: PartitionKey) -> int:
    """
    Return how many bytes the SDK sends for a write.

    Raises:
        UnstorableValue: a number in it is infinite, or none; or a text has no UTF-8.
    """
    named, document = len(write.id) + len(write.etag or "") + OPERATION_OVERHEAD_BYTES, write.document or {}
    try:
        return named + copied_size(document, finite=True)
    except ValueError as error:
        field = next(found(document, _no_json), "a field").removeprefix("data.")
        raise _refusal(owner, partition_key, field=field, reason=str(error)) from error


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
