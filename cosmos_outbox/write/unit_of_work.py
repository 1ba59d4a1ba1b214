"""
UnitOfWork: changes to entities that are written together or not at all.

`commit_batch.py` assembles the writes, and `commit.py` sends them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, overload

from opentelemetry import trace

from cosmos_outbox import errors
from cosmos_outbox.correlation import current_correlation, trace_create
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.partition_key import broker_id
from cosmos_outbox.ports import Store
from cosmos_outbox.retries import RetryOptions
from cosmos_outbox.write.application_documents import DocumentMapper, Documents, JsonMapper
from cosmos_outbox.write.change_tracking import IdentityMap
from cosmos_outbox.write.commit import Submission
from cosmos_outbox.write.commit_batch import CommitBatch, CommitRecord, assemble
from cosmos_outbox.write.event_handlers import Dispatch, EventHandlers
from cosmos_outbox.write.event_sizes import EventSizes
from cosmos_outbox.write.repository import Repository

EntityT = TypeVar("EntityT", bound=Entity)
ModelT = TypeVar("ModelT")

_logger = logging.getLogger("cosmos_outbox.unit_of_work")
_SPAN = "outbox.commit"

# The name of the part of the library that commits for the code that runs now, such as a consumer for its
# handler. While this variable is set, that code may not call `commit`.
committer: ContextVar[str | None] = ContextVar("cosmos_outbox.committer", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The result of `commit()`. If nothing was changed, `id` is None and all other fields are empty."""

    id: str | None = None
    events: tuple[DomainEvent, ...] = ()
    operations: int = 0
    request_charge: float = 0.0
    attempts: int = 0

    def followed_by(self, newer: Commit) -> Commit:
        """
        Return one result for two commits: this one, whose outcome was unknown at first, and the newer commit that the
        same call of `commit()` wrote after it.
        """
        return Commit(
            id=newer.id,
            events=self.events + newer.events,
            operations=self.operations + newer.operations,
            request_charge=self.request_charge + newer.request_charge,
            attempts=self.attempts + newer.attempts,
        )


class UnitOfWork:
    """
    One task's changes to entities of one partition key.

    `async with outbox.unit_of_work() as uow:` opens a unit of work. Nothing is written without `await uow.commit()`. At
    the end of the block the unit forgets all changes that were not committed, and ends. A unit of work can also be used
    without such a block; it then forgets nothing by itself.

    After a commit the unit can be used further. If the store refuses a commit because another program wrote first, the
    commit is undone (see `commit`). After any other failure the caller's changes are still pending, with the same event
    ids. The caller may commit them again, or drop them with `rollback()`. The changes of a handler that failed are
    undone, and handlers run again at the next commit.
    """

    def __init__(
        self,
        store: Store,
        *,
        options: RetryOptions,
        handlers: EventHandlers,
        kinds: dict[str, type[Entity]],
        sizes: EventSizes,
        tracer: trace.Tracer,
        create_spans_for: str | None = None,
    ) -> None:
        self._store, self._options, self._handlers, self._tracer = store, options, handlers, tracer
        self._create_spans_for = create_spans_for
        self._sizes = sizes
        self._entities = IdentityMap(kinds)
        self._dispatch: Dispatch | None = None
        # The commit that was sent last, as long as it is unknown whether it was written
        self._unresolved: Submission | None = None
        self._entered = False
        self._after_commit: list[Callable[[Commit], Awaitable[None] | None]] = []

    async def __aenter__(self) -> Self:
        self._entities.check()
        if self._entered:
            raise errors.UsageError(
                "This unit of work is open already, and a second `async with` would end it. In a handler, use it "
                "without `async with`: the caller of the handler commits it."
            )
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._entities.check()
            self._entities.warn_of_what_is_left("await uow.commit()")
        # Do not check here whether another task commits: such an error would hide the error of the block.
        self._entities.end()

    if not TYPE_CHECKING:  # hides `__enter__` from type checkers, so that they report a plain `with`

        def __enter__(self) -> Never:
            raise errors.UsageError("A unit of work is entered by `async with`, not by `with`.")

        def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """
        Forget all entities of this unit of work for good. Any further use of them raises UsageError. The end of the
        `async with` block does the same.
        """
        self._entities.end()

    def repository(self, entity_type: type[EntityT]) -> Repository[EntityT]:
        """
        Return the repository of an entity type. The changes of all repositories of a unit of work are committed
        together.

        Raises:
            UsageError: the type is no class of entities, or the outbox has another class with the same stored type.
        """
        return Repository(entity_type, store=self._store, entities=self._entities, options=self._options)

    @overload
    def documents(self) -> Documents[dict[str, Any]]: ...
    @overload
    def documents(
        self, model_type: type[ModelT], mapper: DocumentMapper[ModelT] | None = None
    ) -> Documents[ModelT]: ...
    def documents(self, model_type: type[Any] = dict, mapper: DocumentMapper[Any] | None = None) -> Any:
        """
        Return an object that reads and writes documents of the application's own shape: dicts, or instances of a dataclass or
        model.

        Args:
            model_type: the type that a read returns. Defaults to dict.
            mapper: converts the model to its document and back. Defaults to its JSON.

        Raises:
            UsageError: the type is no dict, dataclass or pydantic model, and no mapper is given.
        """
        return Documents(
            model_type,
            mapper=mapper or JsonMapper(model_type),
            store=self._store,
            entities=self._entities,
            options=self._options,
        )

    def save(self, model: ModelT, *, etag: str | None = None) -> ModelT:
        """
        Have the next commit write a dict, dataclass or model that is no `Entity` of this library; see `Documents.save`.
        """
        return self.documents(type(model)).save(model, etag=etag)

    def record(self, event: DomainEvent, *, about: object, deliver_at: datetime | None = None) -> None:
        """
        Record an event about an entity, or about a document that was read or saved in this unit of work. The next
        commit writes the event together with the entity or document.

        Args:
            event: the event, which says what happened.
            about: the entity or document that the event is about.
            deliver_at: when consumers get the event, outside of the order of its key; see `Entity.record`. Defaults to
                at once.

        Raises:
            UsageError: `about` was neither read nor saved in this unit of work; or `deliver_at` has no UTC offset.
        """
        if isinstance(about, Entity):
            about.record(event, deliver_at=deliver_at)
        else:
            tracked = self._entities.require(about)
            kind, document_id = tracked.kind, tracked.id
            tracked.progress.record(event, kind=kind, document_id=document_id, deliver_at=deliver_at)

    def after_commit(self, hook: Callable[[Commit], Awaitable[None] | None]) -> None:
        """
        Have `hook(commit)` called once, after the next commit that wrote something. If that commit is refused, or after
        a rollback, the hook is dropped.

        An error of a hook is logged, and the commit stays written. The process may end before a hook runs. So if work
        must not be lost, do it in an event handler or in a consumer.
        """
        self._after_commit.append(hook)

    def rollback(self) -> None:
        """
        Forget all entities of this unit of work and their changes. To go on, read the entities again.

        Raises:
            SharedUnitOfWork: another task uses this unit of work right now.
            UsageError: an event handler called this method.
        """
        self._entities.check()
        if self._entities.committing:
            raise errors.UsageError(
                "An event handler called rollback(): the commit that runs the handler would write nothing, and report "
                "success. Raise an error instead: the commit then fails with it, and writes nothing."
            )
        self._entities.clear()
        self._dispatch = self._unresolved = None
        self._after_commit.clear()

    def was_refused(self, error: errors.OutboxError) -> bool:
        """Return whether the last commit raised this error because it was refused, and nothing was read or created since."""
        return self._entities.refusal is error

    async def commit(self) -> Commit:
        """
        Write all pending entities and their events in one request. Return when they are known to be stored.

        If the outcome of the previous commit is unknown, that commit is sent again first, unchanged. Changes that were made
        later follow in a request of their own.

        Raises:
            Conflict, NotFound, PreconditionFailed: another program was first, and nothing was written (except a previous commit
                whose outcome had been unknown, see above). The unit of work forgets everything, including the changes of
                handlers. Read all entities again and repeat the whole change, as `Outbox.run` does. Until then each commit
                raises this error again.
            MixedPartitionKeys, BatchTooLarge: one batch cannot hold the changes; nothing was sent.
            UnstorableValue: a value of an entity or event would be read back as another value; nothing was sent.
            TooManyRequests, StoreUnavailable: the service was busy for the whole deadline; nothing was written.
            CommitOutcomeUnknown: the answer was lost, and the outcome could not be found out. Commit again within a minute to
                find it out. If no event proves the commit, or its events may be deleted by now, the outcome stays unknown:
                call `rollback()`, read the entities again and decide.
            SharedUnitOfWork: another task uses this unit of work right now.
            UsageError: the unit of work has ended with its block; or a handler called commit().
        """
        if (owner := committer.get()) is not None:
            raise errors.UsageError(
                f"A handler called commit(). {owner} commits the unit of work that the handler receives, in one batch with the "
                "record that it was handled. Changes that another unit of work commits would take effect again with each "
                "delivery or repetition. Remove the call, and use the unit of work of the handler."
            )
        return await self._commit(None)

    async def _commit(self, record: CommitRecord | None) -> Commit:
        with self._entities.alone(commits=True):
            settled = None
            try:
                # first send the commit whose outcome is unknown, because newer changes may depend on it
                if self._unresolved is not None:
                    settled = await self._submit(self._unresolved.commit)
                newer = await self._commit_changes(record)
            except BaseException:
                self._entities.failed = True
                raise
        self._entities.failed = False
        if (commit := settled.followed_by(newer) if settled and newer else settled or newer) is None:
            return Commit()
        if self._after_commit:
            await self._run_hooks(commit)
        return commit

    async def _run_hooks(self, commit: Commit) -> None:
        hooks, self._after_commit = self._after_commit, []
        for hook in hooks:
            try:
                answer = hook(commit)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # the hook is the application's code, and the commit is written already
                _logger.exception("commit.hook_failed", extra={"commit": commit.id})

    async def _commit_changes(self, record: CommitRecord | None) -> Commit | None:
        if self._entities.refusal is not None:
            raise self._entities.refusal.with_traceback(None)
        if self._handlers.registered:
            await self._run_handlers()
            # If a handler closed the unit of work, there would be no changes left, and the commit would
            # silently write nothing. Raise an error instead.
            self._entities.check()
        changed, paths = self._entities.changes(), self._store.key_paths
        if not changed and record is None:
            return None
        # This span is about the commit, so it has no attributes of messages: only the worker knows to which
        # topic a message goes.
        span = self._tracer.start_span(_SPAN)
        # If no tracer records spans, the caller's span stays the current span.
        with trace.use_span(span, end_on_exit=True) if span.is_recording() else nullcontext():
            parts = [tracked.part(paths) for tracked in changed]
            recorded = [event for part in parts for event in part.taken.events]
            pending = assemble(
                parts,
                record=record,
                correlation=current_correlation(traced=span is not trace.INVALID_SPAN) if recorded else {},
                created=self._trace_create if self._create_spans_for else None,
                published=self._handlers.map_events(recorded) if self._handlers.public else {},
                sizes=self._sizes,
                paths=paths,
            )
            span.set_attributes(
                {
                    "outbox.commit.id": pending.commit_id,
                    "outbox.events": len(pending.events),
                    "db.operation.batch.size": len(pending.writes),
                }
            )
            try:
                commit = await self._submit(pending)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                raise
            span.set_attribute("azure.cosmosdb.operation.request_charge", commit.request_charge)
            span.set_attribute("outbox.commit.attempts", commit.attempts)
            return commit

    def _trace_create(self, event: DomainEvent, correlation: Mapping[str, str]) -> Mapping[str, str]:
        return trace_create(self._tracer, self._create_spans_for or "", broker_id(event.id), correlation)

    async def _run_handlers(self) -> None:
        before, hooks = self._entities.snapshot(), list(self._after_commit)
        dispatch = Dispatch(self._handlers.registered, self._dispatch)
        try:
            await dispatch.run(self._entities, self)
        except BaseException:  # after any error of a handler, the next commit runs all handlers again
            self._entities.put_back(before)
            self._after_commit = hooks
            raise
        self._dispatch = dispatch

    async def _submit(self, pending: CommitBatch) -> Commit:
        submission = self._unresolved or Submission(self._store, pending, self._options)
        self._unresolved = submission
        try:
            await submission.send()
        except errors.CommitOutcomeUnknown:
            raise
        except errors.OutboxError as refusal:
            self._unresolved = None  # the commit is known not to be written
            if isinstance(refusal, errors.REFUSALS):
                self._entities.undo(refusal, self._dispatch.caused_by if self._dispatch else ())
                self._dispatch = None
                self._after_commit.clear()
            raise
        # A cancellation, or an error that is not of this library, skips this line. The commit may have been
        # written by then, so it stays unresolved, and the next commit finds out.
        self._unresolved = None
        self._entities.mark_written(pending.parts, pending.partition_key, submission.etags)
        return Commit(
            id=pending.commit_id,
            events=pending.events,
            operations=len(pending.writes),
            request_charge=submission.request_charge,
            attempts=submission.attempts,
        )


async def run_event_handlers(uow: UnitOfWork) -> None:
    """
    Run the handlers of the events that a unit of work has recorded so far, as its commit would. The commit runs the
    handlers of events that are recorded later. An error of a handler passes through.

    Raises:
        UsageError: a handler called `commit()` or `rollback()`.
        SharedUnitOfWork: another task uses the unit of work right now.
    """
    if uow._handlers.registered and uow._entities.refusal is None:  # noqa: SLF001 - of this module
        with uow._entities.alone(commits=True):  # noqa: SLF001
            await uow._run_handlers()  # noqa: SLF001


async def commit_with(uow: UnitOfWork, record: CommitRecord) -> Commit:
    """
    Commit a unit of work together with a record that says which message or request it handles. The record is written
    even if nothing else changed.

    Raises:
        Conflict: a document with the record's id exists already; the error names the id, and nothing was written.
        OutboxError: see `UnitOfWork.commit`.
    """
    return await uow._commit(record)  # noqa: SLF001 - of this module


def version_after_commit(uow: UnitOfWork, entity: Entity) -> int:
    """Return the version that an entity will have after the next commit of a unit of work."""
    return entity.version + uow._entities.awaits_commit_of(entity)  # noqa: SLF001 - of this module


def warn_of_what_is_left(uow: UnitOfWork, *, commit: str) -> None:
    """
    Log a warning if a unit of work has changes that no commit wrote. The warning names `commit`, the call by which the
    caller commits.
    """
    uow._entities.warn_of_what_is_left(commit)  # noqa: SLF001 - of this module
