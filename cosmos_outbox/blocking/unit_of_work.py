"""
BlockingUnitOfWork: a unit of work for code without an event loop, used by one thread, with calls that block.
`background_loop.py` runs the event loop behind these calls.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from cosmos_outbox.blocking.background_loop import Portal
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import OutboxError, SharedUnitOfWork
from cosmos_outbox.write.application_documents import DocumentMapper, Documents
from cosmos_outbox.write.outbox import Outbox
from cosmos_outbox.write.repository import Repository
from cosmos_outbox.write.unit_of_work import Commit, UnitOfWork, warn_of_what_is_left

EntityT = TypeVar("EntityT", bound=Entity)
ModelT = TypeVar("ModelT")
ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")


class OneThread:
    """Guards the functions of a unit of work: only the thread that created the unit of work may call them."""

    def __init__(self, portal: Portal[Outbox]) -> None:
        self._portal, self._thread_id = portal, threading.get_ident()

    def guard(self, function: Callable[Parameters, ResultT]) -> Callable[Parameters, ResultT]:
        """Return a function that calls the given one, but raises SharedUnitOfWork outside of the unit of work's thread."""

        @functools.wraps(function)
        def check(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
            if threading.get_ident() != self._thread_id:
                raise SharedUnitOfWork(
                    "A unit of work belongs to the thread that made it; give every thread its own."
                )
            return function(*args, **kwargs)

        return check

    def blocking(self, function: Callable[Parameters, Awaitable[ResultT]]) -> Callable[Parameters, ResultT]:
        """Return a function that runs a coroutine function on the outbox's event loop, and blocks until it is done. See `guard`."""

        @functools.wraps(function)
        def block(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ResultT:
            return self._portal.call(lambda: function(*args, **kwargs))

        return self.guard(block)


class BlockingRepository(Generic[EntityT]):
    """A repository with the methods and arguments of `Repository`. The methods that send a request to Cosmos DB block."""

    def __init__(self, repository: Repository[EntityT], thread: OneThread) -> None:
        self.create, self.update = thread.guard(repository.create), thread.guard(repository.update)
        self.read, self.find = thread.blocking(repository.read), thread.blocking(repository.find)
        self.delete, self.query = thread.blocking(repository.delete), thread.blocking(repository.query)
        self.page_of_key = thread.blocking(repository.page_of_key)
        self.page_of_all_keys = thread.blocking(repository.page_of_all_keys)


class BlockingDocuments(Generic[ModelT]):
    """Documents of the application's own shape: the methods of `Documents`, with the same arguments. `read` and `find` block."""

    def __init__(self, documents: Documents[ModelT], thread: OneThread) -> None:
        self.save, self.delete = thread.guard(documents.save), thread.guard(documents.delete)
        self.read, self.find = thread.blocking(documents.read), thread.blocking(documents.find)
        self.etag_of = thread.guard(documents.etag_of)


class BlockingUnitOfWork:
    """
    One thread's changes to entities of one partition key: `with outbox.unit_of_work() as uow:`. See `UnitOfWork`.

    If `commit()` is interrupted (Ctrl-C, a signal handler that raises), its batch may have been written or not. Commit the same unit of
    work again within a minute to find out, or read the entities again.
    """

    def __init__(self, unit: UnitOfWork, portal: Portal[Outbox]) -> None:
        self._unit, self._thread = unit, OneThread(portal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # If the block raised an error, an error here must not hide it.
        with suppress(*((SharedUnitOfWork,) if error else ())):
            if error is None:
                self._thread.guard(warn_of_what_is_left)(self._unit, commit="uow.commit()")
            self.close()

    def close(self) -> None:
        """
        Forget all entities of this unit of work for good. Later calls raise UsageError. The end of the `with` block does this.
        """
        self._thread.guard(self._unit.close)()

    def repository(self, entity_type: type[EntityT]) -> BlockingRepository[EntityT]:
        """Return the repository of an entity type; all repositories of a unit of work commit together."""
        return BlockingRepository(self._unit.repository(entity_type), self._thread)

    @overload
    def documents(self) -> BlockingDocuments[dict[str, Any]]: ...
    @overload
    def documents(
        self, model_type: type[ModelT], mapper: DocumentMapper[ModelT] | None = None
    ) -> BlockingDocuments[ModelT]: ...
    def documents(self, model_type: type[Any] = dict, mapper: DocumentMapper[Any] | None = None) -> Any:
        """Return an object that reads and saves documents of the application's own shape; see `UnitOfWork.documents`."""
        return BlockingDocuments(self._unit.documents(model_type, mapper), self._thread)

    def save(self, model: ModelT, *, etag: str | None = None) -> ModelT:
        """
        Have the next commit write a dict, dataclass or model of the application's own shape; see `Documents.save`.
        """
        return self.documents(type(model)).save(model, etag=etag)

    def record(self, event: DomainEvent, *, about: object, deliver_at: datetime | None = None) -> None:
        """
        Record an event about an entity, or about a document that this unit of work read or saved. The same commit writes the event and that
        entity or document.
        """
        self._thread.guard(self._unit.record)(event, about=about, deliver_at=deliver_at)

    def after_commit(self, hook: Callable[[Commit], Awaitable[None] | None]) -> None:
        """
        Call `hook(commit)` once, after the next commit that wrote something. The hook runs on the event loop that all threads share, so it
        must not block.
        """
        self._thread.guard(self._unit.after_commit)(hook)

    def commit(self) -> Commit:
        """
        Write all pending entities and their events in one request; see `UnitOfWork.commit`.

        Handlers of events run on the event loop that all threads share, so a handler that blocks makes all threads wait.
        """
        return self._thread.blocking(self._unit.commit)()

    def rollback(self) -> None:
        """Forget all entities of this unit of work, with their changes. Read them again to go on."""
        self._thread.guard(self._unit.rollback)()

    def was_refused(self, error: OutboxError) -> bool:
        """Say whether the last commit raised this error, and no entity was read or created since."""
        return self._unit.was_refused(error)
