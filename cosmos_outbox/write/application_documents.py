"""
Application documents: read and write documents of the application's own shape (a dict, dataclass or model). They are
stored as they are, without the envelope of an entity. `repository.py` reads and writes entities.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Generic, Protocol, TypeVar, is_typeddict

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from cosmos_outbox.domain.entities import RESERVED_TYPES, Entity
from cosmos_outbox.domain.events import Progress
from cosmos_outbox.errors import NotFound, NotModified, UnreadableDocument, UsageError
from cosmos_outbox.partition_key import PartitionKey, check_id, check_partition_key
from cosmos_outbox.ports import Document, Store
from cosmos_outbox.retries import RetryOptions
from cosmos_outbox.stored_documents import first_error, json_bytes, strip_system
from cosmos_outbox.write.change_tracking import Change, IdentityMap, Stored, Tracked
from cosmos_outbox.write.fresh_reads import read_new_enough, too_old, version_of
from cosmos_outbox.write.unstorable_values import UNWRITABLE, unwritable

ModelT = TypeVar("ModelT")
KeyOf = Callable[[Mapping[str, Any]], Any]


class DocumentMapper(Protocol[ModelT]):
    """
    Converts an application's model to the document that is stored, and back. A document has an `id`, and the properties
    of the container's partition key.
    """

    def to_document(self, model: ModelT) -> dict[str, Any]:
        """Return the document of a model, in JSON types."""
        ...

    def from_document(self, document: dict[str, Any]) -> ModelT:
        """
        Return the model of a stored document, which comes without the properties that the service sets.

        Raises:
            ValueError: no model can be made of the document. Pydantic's ValidationError is a ValueError.
        """
        ...


class JsonMapper(Generic[ModelT]):
    """
    The mapper of dicts, dataclasses, TypedDicts and pydantic models. It stores them as JSON, with the aliases of their
    fields.
    """

    def __init__(self, model_type: type[ModelT]) -> None:
        if not (issubclass(model_type, dict | BaseModel) or is_dataclass(model_type)):
            name = model_type.__name__
            raise UsageError(
                f"The library cannot store instances of {name}, which is no dict, dataclass or pydantic model. Pass a mapper, an object with the methods of "
                f"DocumentMapper (`to_document`, `from_document`): `uow.documents({name}, mapper).save(…)`; a read takes the same mapper."
            )
        self._type = model_type
        # Whether a read returns the stored dict without conversion. A TypedDict is converted, because its
        # fields have types.
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


class TrackedModel(Tracked):
    """
    A model of the application that a unit of work tracks. This object also keeps the model's etag and events, and the
    fields of the `stored` document that the model does not know.

    Raises:
        UsageError: the document of the model has no id.
    """

    __slots__ = ("_key_of", "_mapper", "_others")

    def __init__(
        self, model: object, mapper: DocumentMapper[Any], key_of: KeyOf, *, stored: Stored | None = None
    ) -> None:
        self._mapper, self._key_of = mapper, key_of
        document, name = self._to_document(model), type(model).__name__
        if not isinstance(document.get("id"), str):
            raise UsageError(f"A document needs an `id` of text, and this {name} has {document.get('id')!r}.")
        kind = document.get("type")
        kind = kind if isinstance(kind, str) else name[:1].lower() + name[1:]
        self._others = {name: value for name, value in (stored or {}).items() if name not in document}
        super().__init__(model, Progress(), kind, document["id"], key_of({**document, **self._others}))

    def now(self) -> tuple[Any, Document | None, int | None]:
        document = self.content()
        # The document's `version` counts only if it is a field of the model, because only then the
        # application sets it.
        version = None if "version" in self._others else document.get("version")
        counts = isinstance(version, int) and not isinstance(version, bool)
        return self._key_of(document), document, version if counts else None

    def content(self) -> Document:
        known = strip_system(self._to_document(self.model))
        return {**known, **{name: value for name, value in self._others.items() if name not in known}}

    def render(self, content: Document | None, key_fields: Document) -> tuple[Document, str | None]:
        content = self.content() if content is None else content
        return content, self._find_altered(content)

    def _find_altered(self, document: Stored) -> str | None:
        read = self._mapper.to_document(self._mapper.from_document(dict(document)))
        read = {**self._others, **strip_system(read)}
        for name in () if json_bytes(document) == json_bytes(read) else {**document, **read}:
            mine, stored = (json.dumps(one.get(name), sort_keys=True) for one in (document, read))
            if mine != stored:
                return name
        return None

    def _to_document(self, model: Any) -> Document:
        try:
            return self._mapper.to_document(model)
        except UNWRITABLE as error:
            fields = model if isinstance(model, Mapping) else getattr(model, "__dict__", {})
            raise unwritable(model, str(fields.get("id")), self._key_of(fields), error) from error


class Documents(Generic[ModelT]):
    """
    Reads and writes documents of the application's own shape. A read happens at once, and a write when the unit of work
    commits. A document that was read and changed is written by the commit without a call of `save`.
    """

    def __init__(
        self,
        model_type: type[ModelT],
        *,
        mapper: DocumentMapper[ModelT],
        store: Store,
        entities: IdentityMap,
        options: RetryOptions,
    ) -> None:
        self._type, self._mapper, self._key_of = model_type, mapper, store.key_paths.key_of
        self._store, self._entities, self._options = store, entities, options

    async def read(
        self,
        document_id: str,
        *,
        partition_key: PartitionKey | None = None,
        if_none_match: str | None = None,
        at_least: int | None = None,
    ) -> ModelT:
        """
        Return the model of a document and track it.

        Args:
            document_id: the id of the document.
            partition_key: Defaults to the id.
            if_none_match: an etag that the caller knows. If the document still has it, NotModified is raised.
            at_least: the lowest `version` of the document that the caller accepts, see `Repository.read`. Defaults to
                None: any version.

        Raises:
            NotFound: there is no such document, or this unit of work deletes it.
            NotModified: see `if_none_match`.
            UnreadableDocument: the mapper cannot make a model of the document.
            TryLater: the document stayed older than `at_least`.
        """
        key: PartitionKey = document_id if partition_key is None else partition_key
        check_id(document_id)
        check_partition_key(key, self._store.key_paths, by_default=partition_key is None)
        with self._entities.alone():
            self._entities.refusal = None  # if a commit was refused, this read begins a new attempt
            here = self._entities.at(document_id, key)
            own = next((one for one in here if isinstance(one, TrackedModel)), None)
            if own is None:
                read = functools.partial(self._store.read, document_id, key)
                document = await read_new_enough(read, self._options, if_none_match, at_least)
                own = self._restore(document, key)
                self._entities.add(own)
            stored = own.progress.stored or {"id": document_id}
            # A unit of work that already has a document does not read it again. If the caller needs a newer version, raise an error.
            if at_least is not None and version_of(stored) < at_least:
                raise too_old(stored, at_least)
            if own.change is Change.DELETE:
                raise NotFound(document_id=document_id)
            if if_none_match is not None and own.progress.etag == if_none_match:
                raise NotModified(etag=if_none_match)
            model: ModelT = own.model
            return model

    async def find(
        self, document_id: str, *, partition_key: PartitionKey | None = None, at_least: int | None = None
    ) -> ModelT | None:
        """
        Return the model of a document as `read` does, but None where `read` raises NotFound.

        Raises:
            UnreadableDocument, TryLater: see `read`.
        """
        try:
            return await self.read(document_id, partition_key=partition_key, at_least=at_least)
        except NotFound:
            return None

    def save(self, model: ModelT, *, etag: str | None = None) -> ModelT:
        """
        Have the next commit write a model. It replaces the document that was read, or the document that has the given
        etag. Otherwise it is stored as a new document.

        Args:
            model: what to store.
            etag: the etag of a document that another program, or the SDK, read. Defaults to the `_etag` of a dict that
                has one.

        Raises:
            UsageError: the model is an entity; or its document has no id, or has a `type` of this library's own
                documents.
            PreconditionFailed: `etag` is not the one that this unit of work read.
        """
        if isinstance(model, Entity):
            name = type(model).__name__
            raise UsageError(
                f"`save` would store the entity {name} {model.id!r} without its version and its events. Pass it to "
                f"its repository: `uow.repository({name}).create(…)`, or `update(…)`.",
                document_id=model.id,
                partition_key=model.partition_key,
            )
        own = self._entities.of(model)
        if etag is None and isinstance(model, dict):
            etag = model.get("_etag")
        if own is not None:
            self._entities.add(own, Change.UPDATE, etag=etag)
            return model
        own = TrackedModel(model, self._mapper, self._key_of)
        if own.kind in RESERVED_TYPES and own.content().get("type") == own.kind:
            raise UsageError(
                f"The document {own.id!r} has the type {own.kind!r}, which this library gives to documents of its own: the library would take "
                "it for one of them. Give it another `type`; to record an event, call `uow.record(event, about=…)`.",
                document_id=own.id,
            )
        if etag is not None:
            own.progress.note_commit(version=1, etag=etag)
        self._entities.add(own, Change.CREATE if etag is None else Change.UPDATE)
        return model

    def delete(self, model: ModelT) -> None:
        """Have the next commit delete the document of a model that was read or saved in this unit of work."""
        self._entities.add(self._entities.require(model), Change.DELETE)

    def etag_of(self, model: ModelT) -> str | None:
        """
        Return the etag of a model that was read or saved in this unit of work, for a `save` in another unit of work.
        Return None while the document is new.

        Raises:
            UsageError: the model was neither read nor saved in this unit of work.
        """
        return self._entities.require(model).progress.shown_etag

    def _restore(self, document: Document, partition_key: PartitionKey) -> TrackedModel:
        content = strip_system(document)
        try:
            model = self._mapper.from_document(dict(content))
            own = TrackedModel(model, self._mapper, self._key_of, stored=content)
        except ValueError as error:
            field, reason = (
                first_error(error) if isinstance(error, ValidationError) else ("the whole", str(error))
            )
            raise UnreadableDocument(
                entity_type=self._type.__name__,
                document_id=document["id"],
                partition_key=partition_key,
                field=field,
                reason=reason,
            ) from error
        own.progress.note_commit(version=1, etag=document["_etag"])
        return own
