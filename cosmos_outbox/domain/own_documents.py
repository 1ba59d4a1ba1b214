"""
OwnDocument: a dict, dataclass or model of the application in the place of an entity, stored as it is, without our envelope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, is_typeddict

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from cosmos_outbox.domain.entities import CommitEvents, Entity
from cosmos_outbox.errors import UnstorableValue, UsageError

ModelT = TypeVar("ModelT")
KeyOf = Callable[[Mapping[str, Any]], Any]
SET_BY_THE_SERVICE = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"})


class DocumentMapper(Protocol[ModelT]):
    """
    How an application's model is stored: a document has an `id`, and the properties of the container's partition key.
    """

    def to_document(self, model: ModelT) -> dict[str, Any]:
        """
        Return what is stored of a model, as JSON types.
        """
        ...

    def from_document(self, document: dict[str, Any]) -> ModelT:
        """
        Return the model of a stored document; it is given no property that the service set.

        Raises:
            ValueError: the document is not one of these, such as pydantic's ValidationError.
        """
        ...


class JsonMapper(Generic[ModelT]):
    """
    The mapper of dicts, dataclasses, TypedDicts and pydantic models: their JSON, under their aliases.
    """

    def __init__(self, model_type: type[ModelT]) -> None:
        self._type = model_type
        # Also the SDK's own kind
        self.keeps_dicts = issubclass(model_type, dict) and not is_typeddict(model_type)

    def to_document(self, model: ModelT) -> dict[str, Any]:
        written = to_jsonable_python(model, by_alias=True)
        return written if isinstance(written, dict) else {}

    def from_document(self, document: dict[str, Any]) -> ModelT:
        if self.keeps_dicts:
            return document  # type: ignore[return-value]
        model: ModelT = self._adapter.validate_python(document)
        return model

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[ModelT]:
        return TypeAdapter(self._type)


class OwnDocument(Entity):
    """
    Stands for a model in a unit of work, which asks it what to store and keeps its etag and events.

    Raises:
        UsageError: what is stored of the model has no id.
    """

    # Past pydantic, whose access to a private attribute takes 5 us, dozens of times a commit
    __slots__ = ("_as_it_is", "_key_of", "_kind", "_mapper", "_model", "_others")
    __setattr__ = object.__setattr__

    def __init__(self, model: object, mapper: DocumentMapper[Any], key_of: KeyOf) -> None:
        document, name = _written(model, mapper, key_of), type(model).__name__
        if not isinstance(document.get("id"), str):
            raise UsageError(
                f"A document needs an `id` of text, and this {name} has {document.get('id')!r}. A dict, a dataclass and a "
                "pydantic model are stored as their JSON; for others, give a mapper."
            )
        super().__init__(id=document["id"])
        self._model: Any = model
        self._mapper, self._key_of = mapper, key_of
        self._as_it_is = type(model) is dict and type(mapper) is JsonMapper and mapper.keeps_dicts
        self._others: dict[str, Any] = {}  # properties that the model does not know
        kind = document.get("type")
        self._kind = kind if isinstance(kind, str) else name[:1].lower() + name[1:]

    @property
    def entity_type(self) -> str:  # type: ignore[override]
        return self._kind

    @property
    def model(self) -> Any:
        """
        Return the object of the application.
        """
        return self._model

    @property
    def partition_key(self) -> str:
        # Asked for many times in a commit: a dict that has its key as text stores that
        if self._as_it_is:
            key = self._key_of(self._model)
            if type(key) is str:
                return key
        stored: str = self._key_of(_written(self._model, self._mapper, self._key_of))
        return stored

    @property
    def counted_version(self) -> int | None:
        """
        Return the document's own `version`, for consumers; None if it does not count.
        """
        model, mapper, key_of = self._model, self._mapper, self._key_of
        version = (model if self._as_it_is else _written(model, mapper, key_of)).get("version")
        return version if isinstance(version, int) and not isinstance(version, bool) else None

    def keep_others(self, stored: Mapping[str, Any]) -> None:
        """
        Keep the properties of the stored document that the model does not know.
        """
        known = _written(self._model, self._mapper, self._key_of)
        self._others = {name: value for name, value in stored.items() if name not in known}

    def document(self) -> dict[str, Any]:
        """
        Return what a commit stores.
        """
        written = stripped(_written(self._model, self._mapper, self._key_of))
        return {**written, **{name: value for name, value in self._others.items() if name not in written}}

    def read_back(self, document: dict[str, Any]) -> dict[str, Any]:
        """
        Return what a model would store if it were read from a document and not changed; the same object if that is certain.
        """
        if self._as_it_is:  # JSON already, of which a read makes that dict
            return document
        return {**self._others, **self._mapper.to_document(self._mapper.from_document(dict(document)))}

    def mark_committed(
        self, *, version: int, etag: str | None, taken: CommitEvents, stored: Mapping[str, Any] | None = None
    ) -> None:
        super().mark_committed(version=version, etag=etag, taken=taken, stored=stored)
        if isinstance(self._model, dict) and "_etag" in self._model:
            # The caller read it with the SDK, and may give it to the next unit of work.
            self._model["_etag"] = etag


def stripped(document: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return a document without what the service sets.
    """
    return {name: value for name, value in document.items() if name not in SET_BY_THE_SERVICE}


def _written(model: Any, mapper: DocumentMapper[Any], key_of: KeyOf) -> dict[str, Any]:
    try:
        return mapper.to_document(model)
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        fields = model if isinstance(model, Mapping) else getattr(model, "__dict__", {})
        raise UnstorableValue(
            type(model).__name__,
            document_id=str(fields.get("id")),
            partition_key=key_of(fields),
            field=next((str(name) for name, value in fields.items() if not _is_json(value)), "a field"),
            reason=str(error),
        ) from error


def _is_json(value: object) -> bool:
    try:
        to_jsonable_python(value)
    except (PydanticSerializationError, UnicodeDecodeError):
        return False
    return True
