"""
Unstorable values: make the error for a value that would be read back as another value, such as a whole number that Cosmos DB would
round, or a tuple that comes back as a list. The error names the field. `domain/events.py` decides which values these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from cosmos_outbox.domain.events import find, has_no_json, is_rounded
from cosmos_outbox.errors import UnstorableValue

UNWRITABLE = PydanticSerializationError, UnicodeError


def refusal(
    model: object,
    document_id: str,
    key: Any,
    field: str,
    reason: str = "its stored form reads back as another value",
) -> UnstorableValue:
    """Return the error that refuses a model because of the value of one field."""
    return UnstorableValue(
        of=type(model).__name__, document_id=document_id, partition_key=key, field=field, reason=reason
    )


def unwritable(model: object, document_id: str, key: Any, error: ValueError) -> UnstorableValue:
    """Return the error for a model that cannot be converted to JSON."""
    fields = model if isinstance(model, Mapping) else getattr(model, "__dict__", {})
    field = next((str(name) for name in fields if not _has_json(model, name, fields[name])), "a field")
    return refusal(model, document_id, key, field, str(error))


def no_json(
    model: object, document_id: str, key: Any, document: Mapping[str, Any], error: ValueError
) -> UnstorableValue:
    """
    Return the error for a document with a text that UTF-8 cannot encode, a number that is infinite or NaN, or an
    integer that Cosmos DB would round.
    """
    field = next(find(document, lambda part: has_no_json(part) or is_rounded(part)), "a field")
    return refusal(model, document_id, key, field.removeprefix("data."), str(error))


def _has_json(model: object, name: str, value: object) -> bool:
    try:
        if isinstance(model, BaseModel):
            model.model_dump(mode="json", include={name}, warnings=False)
        else:
            to_jsonable_python(value)
    except UNWRITABLE:
        return False
    return True
