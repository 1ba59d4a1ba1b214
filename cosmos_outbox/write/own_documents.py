"""
Documents: typed access to documents of the application's own shape, beside the entities of a unit of work.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from cosmos_outbox.documents import first_error, json_bytes
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.identifiers import RESERVED_TYPES, check_id, check_partition_key
from cosmos_outbox.domain.own_documents import DocumentMapper, KeyOf, stripped, written
from cosmos_outbox.domain.progress import CommitEvents, Progress
from cosmos_outbox.errors import NotFound, NotModified, UnreadableDocument, UsageError
from cosmos_outbox.partition_key import KeyPaths, PartitionKey
from cosmos_outbox.ports import Document, Store
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.write.identity_map import IdentityMap
from cosmos_outbox.write.tracked import Change, Stored, Tracked

ModelT = TypeVar("ModelT")


class TrackedModel(Tracked):
    """
    A model of the application's own, whose progress is kept beside it; what it does not know of a `stored` document stays.

    Raises:
        UsageError: what is stored of the model has no id.
    """

    __slots__ = ("_key_of", "_kind", "_mapper", "_others")

    def __init__(
        self, model: object, mapper: DocumentMapper[Any], key_of: KeyOf, *, stored: Stored | None = None
    ) -> None:
        document, name = written(model, mapper, key_of), type(model).__name__
        if not isinstance(document.get("id"), str):
            raise UsageError(
                f"A document needs an `id` of text, and this {name} has {document.get('id')!r}. A dict, a dataclass and a "
                "pydantic model are stored as their JSON; for others, give a mapper."
            )
        super().__init__(model, Progress(), document["id"])
        self._mapper, self._key_of = mapper, key_of
        self._others = {name: value for name, value in (stored or {}).items() if name not in document}
        kind = document.get("type")
        self._kind = kind if isinstance(kind, str) else name[:1].lower() + name[1:]

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def partition_key(self) -> PartitionKey:
        key: PartitionKey = self._key_of(self._written())
        return key

    def created_event(self) -> None:
        return None

    def document(self, version: int, paths: KeyPaths) -> Document:
        return self._content()

    def altered(self, document: Stored) -> str | None:
        read = self._mapper.to_document(self._mapper.from_document(dict(document)))
        read = {**self._others, **stripped(read)}
        for name in () if json_bytes(document) == json_bytes(read) else {**document, **read}:
            mine, stored = (json.dumps(one.get(name), sort_keys=True) for one in (document, read))
            if mine != stored:
                return name
        return None

    def content(self, stored: Stored | None = None) -> Stored:
        return self._content() if stored is None else stored

    def _content(self) -> Document:
        known = stripped(self._written())
        return {**known, **{name: value for name, value in self._others.items() if name not in known}}

    def counted(self, version: int) -> int | None:
        own = self._written().get("version")
        return own if isinstance(own, int) and not isinstance(own, bool) else None

    def _written(self) -> Document:
        return written(self.model, self._mapper, self._key_of)


class Documents(Generic[ModelT]):
    """
    Reads at once; writes when the unit of work commits. A document that was read and changed is written without `save`.
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
        self, document_id: str, *, partition_key: PartitionKey | None = None, if_none_match: str | None = None
    ) -> ModelT:
        """
        Return the model of a document and track it.

        Args:
            document_id: its id.
            partition_key: Defaults to the id.
            if_none_match: an etag; raise NotModified while the document still has it.

        Raises:
            NotFound: there is none, or this unit of work deletes it.
            NotModified: see `if_none_match`.
            UnreadableDocument: the mapper makes no model of it.
        """
        key: PartitionKey = document_id if partition_key is None else partition_key
        check_id(document_id)
        check_partition_key(key, self._store.key_paths, by_default=partition_key is None)
        with self._entities.alone():
            self._entities.refusal = None  # a new attempt begins
            here = self._entities.at(document_id, key)
            own = next((one for one in here if isinstance(one, TrackedModel)), None)
            if own is None:
                document = await retry_reads(
                    lambda: self._store.read(document_id, key, if_none_match=if_none_match), self._options
                )
                own = self._restored(document, key)
                self._entities.add(own)
            if own.change is Change.DELETE:
                raise NotFound(document_id=document_id)
            if if_none_match is not None and own.etag == if_none_match:
                raise NotModified(etag=if_none_match)
            model: ModelT = own.model
            return model

    def save(self, model: ModelT, *, etag: str | None = None) -> ModelT:
        """
        Write a model with the next commit: in place of what was read, or of the document with this etag, else as a new one.

        Args:
            model: what to store.
            etag: of the document that another program, or the SDK, read. Defaults to the `_etag` of a dict, if it has one.

        Raises:
            UsageError: it is an entity; or what is stored of it has no id, or a `type` of this library's own documents.
            PreconditionFailed: `etag` is not the one that this unit of work read.
        """
        if isinstance(model, Entity):
            name = type(model).__name__
            raise UsageError(
                f"`save` was given the {name} {model.id!r}, which is an entity, and would store it without its version and its events. "
                f"Give it to the repository: `uow.repository({name}).create(…)`, or `update(…)`.",
                document_id=model.id,
                partition_key=model.partition_key,
            )
        own = self._entities.of(model)
        if etag is None and isinstance(model, dict):
            etag = model.get("_etag")
        if own is not None:
            own.check_etag(etag)
            self._entities.add(own, Change.UPDATE)
            return model
        own = TrackedModel(model, self._mapper, self._key_of)
        _check_type(own)
        if etag is not None:
            own.progress.committed(version=1, etag=etag, taken=CommitEvents())
        self._entities.add(own, Change.CREATE if etag is None else Change.UPDATE)
        return model

    def delete(self, model: ModelT) -> None:
        """Delete the document of a model that was read or saved here, with the next commit."""
        self._entities.add(self._entities.required(model), Change.DELETE)

    def etag_of(self, model: ModelT) -> str | None:
        """
        Return the etag of a model that was read or saved here, for `save` in another unit of work; None while it is new.

        Raises:
            UsageError: it was not read or saved here.
        """
        return self._entities.required(model).etag

    def _restored(self, document: Document, partition_key: PartitionKey) -> TrackedModel:
        content = stripped(document)
        try:
            own = TrackedModel(
                self._mapper.from_document(dict(content)), self._mapper, self._key_of, stored=content
            )
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
        own.progress.committed(version=1, etag=document["_etag"], taken=CommitEvents())
        return own


def _check_type(own: TrackedModel) -> None:
    kind = own.kind
    if kind in RESERVED_TYPES and own.content().get("type") == kind:
        raise UsageError(
            f"The document {own.id!r} has the type {kind!r}, which this library gives to documents of its own: it would be taken "
            "for one of them. Give it another `type`; an event is recorded (`uow.record(event, about=…)`).",
            document_id=own.id,
        )
