"""
Documents: typed access to documents of the application's own shape, beside the entities of a unit of work.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import ValidationError

from cosmos_outbox.documents import first_error
from cosmos_outbox.domain.entities import CommitEvents, Entity
from cosmos_outbox.domain.identifiers import RESERVED_TYPES, check_id, check_partition_key
from cosmos_outbox.domain.own_documents import DocumentMapper, KeyOf, OwnDocument, stripped
from cosmos_outbox.errors import NotFound, NotModified, UnreadableDocument, UsageError
from cosmos_outbox.partition_key import PartitionKey
from cosmos_outbox.ports import Document, Store
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.write.batch import Change
from cosmos_outbox.write.identity_map import IdentityMap, check_etag

ModelT = TypeVar("ModelT")


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
        key_of: KeyOf,
    ) -> None:
        self._type, self._mapper, self._key_of = model_type, mapper, key_of
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
        with self._entities.guard:
            self._entities.refusal = None  # a new attempt begins
            own = self._entities.find_own(document_id, key)
            if own is None:
                document = await retry_reads(
                    lambda: self._store.read(document_id, key, if_none_match=if_none_match), self._options
                )
                own = self._restored(document, key)
                self._entities.track(own)
            if self._entities.deletes(own):
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
        own = self._entities.own(model)
        if etag is None and isinstance(model, dict):
            etag = model.get("_etag")
        if own is not None:
            check_etag(own, etag)
            self._entities.track(own, Change.UPDATE)
            return model
        own = OwnDocument(model, self._mapper, self._key_of)
        _check_type(own)
        if etag is None:
            self._entities.track(own, Change.CREATE)
        else:
            own.mark_committed(version=1, etag=etag, taken=CommitEvents())
            self._entities.track(own, Change.UPDATE)
        return model

    def delete(self, model: ModelT) -> None:
        """
        Delete the document of a model that was read or saved here, with the next commit.
        """
        self._entities.track(self._entities.required(model), Change.DELETE)

    def etag_of(self, model: ModelT) -> str | None:
        """
        Return the etag of a model that was read or saved here, for `save` in another unit of work; None while it is new.

        Raises:
            UsageError: it was not read or saved here.
        """
        return self._entities.required(model).etag

    def _restored(self, document: Document, partition_key: PartitionKey) -> OwnDocument:
        content = stripped(document)
        try:
            own = OwnDocument(self._mapper.from_document(dict(content)), self._mapper, self._key_of)
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
        own.keep_others(content)
        own.mark_committed(version=1, etag=document["_etag"], taken=CommitEvents())
        return own


def _check_type(own: OwnDocument) -> None:
    kind = own.entity_type
    if kind in RESERVED_TYPES and own.document().get("type") == kind:
        raise UsageError(
            f"The document {own.id!r} has the type {kind!r}, which this library gives to documents of its own: it would be taken "
            "for one of them. Give it another `type`; an event is recorded (`uow.record(event, about=…)`).",
            document_id=own.id,
        )
