"""
Repository: read and write the entities of one type inside a unit of work. `change_tracking.py` decides what the next commit writes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from cosmos_outbox.domain.entities import Entity, SoftDeletable, is_deleted, kinds_of
from cosmos_outbox.errors import NotFound, NotModified, UnreadableDocument, UsageError
from cosmos_outbox.partition_key import PartitionKey, check_id, check_partition_key
from cosmos_outbox.ports import Page, Store
from cosmos_outbox.retries import RetryOptions, retry_reads
from cosmos_outbox.stored_documents import Document, first_error
from cosmos_outbox.write.change_tracking import Change, IdentityMap
from cosmos_outbox.write.fresh_reads import read_new_enough, too_old, version_of

_logger = logging.getLogger("cosmos_outbox.repository")
EntityT = TypeVar("EntityT", bound=Entity)
DEFAULT_PAGE_SIZE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityPage(Generic[EntityT]):
    """
    One page of entities. `continuation` is None after the last page.

    `unreadable` has an error for each document of the page that does not fit the class of its entity. The caller may
    raise one of these errors, or report them. Each is logged too.
    """

    entities: tuple[EntityT, ...]
    continuation: str | None
    unreadable: tuple[UnreadableDocument, ...] = ()


class Repository(Generic[EntityT]):
    """Reads and writes the entities of one type. A read happens at once, and a write when the unit of work commits."""

    def __init__(
        self, entity_type: type[EntityT], *, store: Store, entities: IdentityMap, options: RetryOptions
    ) -> None:
        if not (isinstance(entity_type, type) and issubclass(entity_type, Entity)):
            raise UsageError(f"{entity_type!r} is no class of an Entity; use `uow.documents` for it.")
        self._type, self._kinds = entity_type, kinds_of(entity_type, entities.kinds)
        self._store, self._entities, self._options = store, entities, options

    def create(self, entity: EntityT) -> EntityT:
        """
        Add a new entity. The commit raises Conflict if its id is taken.

        Raises:
            UsageError: the object is not an entity of this repository's type, or another unit of work tracks it.
        """
        self._check(entity)
        self._entities.track(entity, Change.CREATE)
        return entity

    async def read(
        self,
        entity_id: str,
        *,
        partition_key: PartitionKey | None = None,
        if_none_match: str | None = None,
        include_deleted: bool = False,
        at_least: int | None = None,
    ) -> EntityT:
        """
        Return an entity and track it. The next commit writes the caller's changes, and the events that the entity's
        methods record.

        The entity is of this repository's class, or of the subclass that the document's `type` names. An entity that is
        already tracked is returned as it is, without a request.

        Args:
            entity_id: the id of the entity.
            partition_key: the partition key of the entity, as `key_of` of the class makes it. Defaults to that of the
                tracked entity with this id, else to the id.
            if_none_match: an etag that the caller knows. If the entity still has it, NotModified is raised.
            include_deleted: whether to return also an entity that is marked as deleted, or deleted by this unit of
                work.
            at_least: the lowest version that the caller accepts, such as a message's `entity_version`. Without it, a
                replica that lags may return an older version. Defaults to None: any version.

        Raises:
            UsageError: the container takes no such id or partition key; or no partition key is given, and the class's
                is not the id.
            UsageError: this unit of work has read the entity as an object of another class with the same stored type.
            NotFound: there is no such entity, or it is marked as deleted, or this unit of work deletes it for good.
            NotModified: see `if_none_match`.
            UnreadableDocument: the stored document does not fit the class.
            TryLater: the entity stayed older than `at_least` for about two seconds. If the handler of a consumer raises
                this, its message waits and does not count as failed.
        """
        if not isinstance(entity_id, str):
            given = f"`uow.repository({self._type.__name__})` takes an id, which is a text, and no object of {type(entity_id).__name__}"
            raise UsageError(f"{given}: pass the `id` of an entity, or `str(…)` of a UUID or a number.")
        with self._entities.alone():
            self._entities.refusal = None  # if a commit was refused, this read begins a new attempt
            tracked = self._entities.find(self._kinds, entity_id, partition_key)
            if tracked is None:
                entity = await self._fetch(entity_id, partition_key, if_none_match, at_least)
            elif isinstance(tracked.model, self._type):
                entity = tracked.model
            else:
                raise UsageError(
                    f"This unit of work read {tracked} as {type(tracked.model).__qualname__}, so it cannot read it as "
                    f"{self._type.__qualname__} too: use one class for it.",
                    document_id=entity_id,
                    partition_key=tracked.key,
                )
            # This unit of work read the entity earlier, in a version that is too old.
            if at_least is not None and entity.version < at_least:
                raise too_old({"id": entity_id, "version": entity.version}, at_least)
            if self._is_gone(entity) and not include_deleted:
                why = ": it is deleted; `include_deleted=True` returns what is still stored."
                raise self._not_found(entity_id, entity.partition_key, why)
            if if_none_match is not None and entity.etag == if_none_match:
                raise NotModified(
                    etag=if_none_match, document_id=entity_id, partition_key=entity.partition_key
                )
            self._entities.track(entity)
            return entity

    async def find(
        self,
        entity_id: str,
        *,
        partition_key: PartitionKey | None = None,
        include_deleted: bool = False,
        at_least: int | None = None,
    ) -> EntityT | None:
        """
        Return an entity as `read` does, but None where `read` raises NotFound.

        Raises:
            UsageError: see `read`; or nothing was found, no `partition_key` was given, and the partition key of the
                class is not its id.
            UnreadableDocument, TryLater: see `read`.
        """
        try:
            return await self.read(
                entity_id, partition_key=partition_key, include_deleted=include_deleted, at_least=at_least
            )
        except NotFound as error:
            looked_up = partition_key is None and error.partition_key == entity_id
            if looked_up and self._type.partition_key is not Entity.partition_key:
                raise self._wants_key(entity_id) from error
            return None

    def update(self, entity: EntityT, etag: str | None = None) -> EntityT:
        """
        Write the entity with the next commit, even if it was not changed. An entity that was read and changed needs no
        `update`.

        Raises:
            UsageError: see `create`; or the entity was never stored.
            PreconditionFailed: `etag` is given and is not the one that the entity was read with.
        """
        self._check(entity)
        self._entities.track(entity, Change.UPDATE, etag=etag)
        return entity

    async def delete(
        self,
        entity_id: str,
        etag: str | None = None,
        *,
        partition_key: PartitionKey | None = None,
        hard: bool = False,
    ) -> EntityT:
        """
        Delete an entity with the next commit. A SoftDeletable entity is only marked as deleted, unless `hard` is true.
        Any other entity is deleted for good.

        Raises:
            NotFound: there is no such entity.
            PreconditionFailed: `etag` is given and the entity has another one.
            UsageError: the class overrides `delete`, and its method does not mark the entity as deleted.
        """
        with self._entities.alone():
            entity = await self.read(entity_id, partition_key=partition_key, include_deleted=hard)
            self._entities.track(entity, etag=etag)
            if isinstance(entity, SoftDeletable) and not entity.deleted:
                entity.delete()
                if not entity.deleted:
                    raise UsageError(
                        f"{type(entity).__name__}.delete did not mark {entity.entity_type} {entity_id!r} as deleted, so the document "
                        "would stay as it is: call `super().delete()` in that method, or set `deleted`.",
                        document_id=entity.id,
                        partition_key=entity.partition_key,
                    )
            soft = isinstance(entity, SoftDeletable) and not hard
            self._entities.track(entity, Change.UPDATE if soft else Change.DELETE)
            return entity

    async def page_of_key(
        self,
        partition_key: PartitionKey,
        *,
        page_size: int = DEFAULT_PAGE_SIZE,
        continuation: str | None = None,
        include_deleted: bool = False,
    ) -> EntityPage[EntityT]:
        """
        Return a page of the entities of one partition key, in the order of their ids, and track them as `read` does.
        Entities that are marked as deleted are left out.

        Args:
            partition_key: the partition key. Nothing else in the container is read.
            page_size: how many entities the page has at most. Defaults to 10.
            continuation: the continuation of the page before.
            include_deleted: whether to return also entities that are marked as deleted, or deleted by this unit of
                work.

        Raises:
            UsageError: `page_size` is less than 1, or the container takes no such partition key.
            InvalidRequest: the store did not issue `continuation` for this partition key.
        """
        check_partition_key(partition_key, self._store.key_paths)
        return await self._list(partition_key, page_size, continuation, include_deleted)

    async def page_of_all_keys(
        self,
        page_size: int = DEFAULT_PAGE_SIZE,
        continuation: str | None = None,
        *,
        include_deleted: bool = False,
    ) -> EntityPage[EntityT]:
        """
        Return a page of the entities of this type over all partition keys, as `page_of_key` does. The store chooses the
        order.

        Each page may ask every physical partition: in a container with twenty of them it costs up to twenty times as
        much as `page_of_key`.
        """
        return await self._list(None, page_size, continuation, include_deleted)

    async def query(
        self,
        sql: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        partition_key: PartitionKey | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        continuation: str | None = None,
        include_deleted: bool = False,
    ) -> EntityPage[EntityT]:
        """
        Return a page of the entities that a query in Cosmos DB's SQL selects, as `page_of_key` does.

        Args:
            sql: selects whole documents of this type: `SELECT * FROM c WHERE c.type = 'order' AND c.data.total >
                @least`. It has to come from the program, and not from the program's user.
            parameters: the values of the query's parameters by name, with or without the @.
            partition_key: the only partition key that is read. Defaults to all of them; a query over all of them has no
                continuation if it sorts.
            page_size: see `page_of_key`, also for the other arguments.

        Raises:
            UsageError: see `page_of_key`; or the query selects documents of another type; or the store is a
                MemoryContainer, which evaluates no SQL.
            InvalidRequest: the service does not understand the query.
        """
        if partition_key is not None:
            check_partition_key(partition_key, self._store.key_paths)
        values = {f"@{name.removeprefix('@')}": value for name, value in (parameters or {}).items()}
        return await self._page(
            lambda: self._store.query(
                sql,
                to_jsonable_python(values),
                partition_key=partition_key,
                page_size=page_size,
                continuation=continuation,
            ),
            page_size=page_size,
            include_deleted=include_deleted,
        )

    def _check(self, entity: object) -> None:
        if not isinstance(entity, self._type):
            said = f"`uow.repository({self._type.__name__})` takes objects of that class, not of {type(entity).__name__}"
            raise UsageError(
                f"{said}: use their own repository, or `uow.save(…)` for dicts and models of yours."
            )

    async def _fetch(
        self, entity_id: str, partition_key: PartitionKey | None, etag: str | None, at_least: int | None
    ) -> EntityT:
        by_default = partition_key is None
        if by_default and self._type.key_fields != Entity.key_fields:
            raise self._wants_key(entity_id)
        key: PartitionKey = entity_id if partition_key is None else partition_key
        kind, paths = self._type.entity_type, self._store.key_paths
        check_id(entity_id, of=f"a {kind}")
        check_partition_key(key, paths, of=f"{kind} {entity_id!r}", by_default=by_default)
        try:
            read = partial(self._store.read, entity_id, key)
            document = await read_new_enough(read, self._options, etag, at_least)
        except NotFound as error:
            why = " (or its TTL has passed); check the id and the partition key."
            if by_default:
                why = ", which defaults to the id: pass `partition_key` if the entity has another one."
            raise self._not_found(entity_id, key, why) from error
        if (stored_type := document.get("type")) not in self._kinds:
            why = f": the document with this id is a {str(stored_type)!r}; read it by the repository of that type."
            raise self._not_found(entity_id, key, why, stored_type=str(stored_type))
        return self._restore(document)

    async def _list(
        self, partition_key: PartitionKey | None, size: int, continuation: str | None, include_deleted: bool
    ) -> EntityPage[EntityT]:
        marked = any(issubclass(kind, SoftDeletable) for kind in self._kinds.values())
        return await self._page(
            lambda: self._store.list(
                tuple(self._kinds),
                partition_key=partition_key,
                page_size=size,
                continuation=continuation,
                include_deleted=include_deleted or not marked,
            ),
            page_size=size,
            include_deleted=include_deleted,
        )

    async def _page(
        self, fetch: Callable[[], Awaitable[Page]], *, page_size: int, include_deleted: bool
    ) -> EntityPage[EntityT]:
        if page_size < 1:
            raise UsageError(f"A page holds at least one entity, so page_size cannot be {page_size}.")
        entities: list[EntityT] = []
        unreadable: list[UnreadableDocument] = []
        with self._entities.alone():
            page = await retry_reads(fetch, self._options)
            self._entities.refusal = None  # if a commit was refused, this read begins a new attempt
            for document in page.documents:
                try:
                    entity = self._prefer_tracked(self._restore(document))
                except UnreadableDocument as error:
                    unreadable.append(error)
                    _logger.warning(
                        "document.unreadable %s", error, extra={"document": error.document_id}, exc_info=error
                    )
                    continue
                if include_deleted or not self._is_gone(entity):
                    self._entities.track(entity)
                    entities.append(entity)
        return EntityPage(
            entities=tuple(entities), continuation=page.continuation, unreadable=tuple(unreadable)
        )

    def _prefer_tracked(self, read: EntityT) -> EntityT:
        known = self._entities.find((read.entity_type,), read.id, read.partition_key)
        return known.model if known is not None and isinstance(known.model, self._type) else read

    def _is_gone(self, entity: Entity) -> bool:
        return is_deleted(entity) or self._entities.deletes(entity)

    def _restore(self, document: Document) -> EntityT:
        if document.get("type") not in self._kinds or "_etag" not in document:
            raise UsageError(
                f"The query found {document!r:.100}, which is no {self._type.entity_type}: let it find whole documents (`*`) whose "
                f"`c.type` is one of {', '.join(self._kinds)}."
            )
        data = document.get("data")
        if not isinstance(data, Mapping):
            raise self._unreadable(document, field="data", reason="it is not an object")
        if data.get("id") != document["id"]:  # another program left the id out of `data`
            data = {**data, "id": document["id"]}
        try:
            return self._kinds[document["type"]].restore(
                dict(data), version=version_of(document), etag=document["_etag"], stored=document
            )
        except ValidationError as error:
            field, reason = first_error(error)
            raise self._unreadable(document, field=field, reason=reason) from error

    def _wants_key(self, entity_id: str) -> UsageError:
        made = f"{self._type.__name__}.key_of({', '.join(self._type.key_fields)})"
        how = made if self._type.partition_key is Entity.partition_key else "…"
        return UsageError(
            f"The partition key of {self._type.__name__} is not its id, so {entity_id!r} cannot be found without "
            f"it: pass `partition_key={how}`.",
            document_id=entity_id,
        )

    def _not_found(
        self, entity_id: str, partition_key: PartitionKey, why: str, *, stored_type: str | None = None
    ) -> NotFound:
        message = (
            f"There is no {self._type.entity_type} {entity_id!r} in partition key {partition_key!r}{why}"
        )
        return NotFound(message, document_id=entity_id, partition_key=partition_key, stored_type=stored_type)

    def _unreadable(self, document: Document, *, field: str, reason: str) -> UnreadableDocument:
        return UnreadableDocument(
            entity_type=self._type.entity_type,
            document_id=document["id"],
            partition_key=self._store.key_paths.key_of(document),
            field=field,
            reason=reason,
        )
