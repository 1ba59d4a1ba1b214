"""
How a dict, dataclass or model of the application is stored: as it is, without the envelope of an entity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, is_typeddict

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from cosmos_outbox.errors import UnstorableValue

ModelT = TypeVar("ModelT")
KeyOf = Callable[[Mapping[str, Any]], Any]
SET_BY_THE_SERVICE = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"})


class DocumentMapper(Protocol[ModelT]):
    """
    How an application's model is stored: a document has an `id`, and the properties of the container's partition key.
    """

    def to_document(self, model: ModelT) -> dict[str, Any]:
        """Return what is stored of a model, as JSON types."""
        ...

    def from_document(self, document: dict[str, Any]) -> ModelT:
        """
        Return the model of a stored document; it is given no property that the service set.

        Raises:
            ValueError: the document is not one of these, such as pydantic's ValidationError.
        """
        ...


class JsonMapper(Generic[ModelT]):
    """The mapper of dicts, dataclasses, TypedDicts and pydantic models: their JSON, under their aliases."""

    def __init__(self, model_type: type[ModelT]) -> None:
        self._type = model_type
        # Also the SDK's own kind
        self._keeps_dicts = issubclass(model_type, dict) and not is_typeddict(model_type)

    def to_document(self, model: ModelT) -> dict[str, Any]:
        written = to_jsonable_python(model, by_alias=True)
        return written if isinstance(written, dict) else {}

    def from_document(self, document: dict[str, Any]) -> ModelT:
        if self._keeps_dicts:
            return document  # type: ignore[return-value]
        model: ModelT = self._adapter.validate_python(document)
        return model

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[ModelT]:
        return TypeAdapter(self._type)


def stripped(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without what the service sets."""
    return {name: value for name, value in document.items() if name not in SET_BY_THE_SERVICE}


def written(model: Any, mapper: DocumentMapper[Any], key_of: KeyOf) -> dict[str, Any]:
    """
    Return what a mapper makes of a model.

    Raises:
        UnstorableValue: a field has a value that JSON cannot hold.
    """
    try:
        return mapper.to_document(model)
    except (PydanticSerializationError, UnicodeError) as error:
        fields = model if isinstance(model, Mapping) else getattr(model, "__dict__", {})
        raise UnstorableValue(
            of=type(model).__name__,
            document_id=str(fields.get("id")),
            partition_key=key_of(fields),
            field=next((str(name) for name, value in fields.items() if not _is_json(value)), "a field"),
            reason=str(error),
        ) from error


def _is_json(value: object) -> bool:
    try:
        to_jsonable_python(value)
    except (PydanticSerializationError, UnicodeError):
        return False
    return True
