"""
UnitOfWork: the changes that are written together or not at all; Outbox makes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar, overload

from opentelemetry import trace

from cosmos_outbox.correlation import current_correlation
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import (
    CommitOutcomeUnknown,
    Conflict,
    NotFound,
    OutboxError,
    PreconditionFailed,
    UsageError,
)
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS, Store
from cosmos_outbox.retries import RetryOptions
from cosmos_outbox.write.batch import PendingCommit
from cosmos_outbox.write.commit import WrittenCommit, send
from cosmos_outbox.write.dispatch import Dispatch, EventHandlers
from cosmos_outbox.write.identity_map import ContainerContext, Tracked
from cosmos_outbox.write.repository import Repository

EntityT = TypeVar("EntityT", bound=Entity)
EventT = TypeVar("EventT", bound=DomainEvent)
UnitT = TypeVar("UnitT", bound="UnitOfWork")

_SPAN = "outbox.commit"
# OpenTelemetry's "create" of messages, whose destination only the worker knows; so the span has its operation's name.
_CREATE = {
    "messaging.system": "servicebus",
    "messaging.operation.type": "create",
    "messaging.operation.name": _SPAN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """
    What `commit()` wrote; `id` is None and all else empty where nothing had changed.
    """

    id: str | None = None
    events: tuple[DomainEvent, ...] = ()
    operations: int = 0
    request_charge: float = 0.0
    attempts: int = 0

    def followed_by(self, newer: Commit) -> Commit:
        """
        Return both as one: a commit whose outcome had been unknown, and what was written after it.
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

    `async with outbox.unit_of_work() as uow:`: nothing is written without `await uow.commit()`; leaving the block
    forgets what was not committed. After a commit the unit can be used on; after a failed one everything is still
    pending, with the same event ids, and may be committed again or dropped with `rollback()`.
    """

    def __init__(
        self,
        store: Store,
        *,
        options: RetryOptions,
        handlers: EventHandlers[UnitOfWork],
        tracer: trace.Tracer,
    ) -> None:
        self._store, self._options, self._handlers = store, options, handlers
        self._context = ContainerContext()
        self._dispatch: Dispatch[UnitOfWork] | None = None
        self._in_doubt: tuple[PendingCommit, float] | None = None  # and when it was first sent
        self._lost = False  # what is in doubt will stay so
        self._committing = False
        self._tracer = tracer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.rollback()
        else:
            self._forget()  # also while another task commits: that is not worth hiding the error of the block

    def repository(self, entity_type: type[EntityT]) -> Repository[EntityT]:
        """
        Return the repository of an entity type; all repositories of a unit of work commit together.
        """
        return Repository(entity_type, store=self._store, context=self._context, options=self._options)

    def rollback(self) -> None:
        """
        Forget all entities of this unit; read them anew to go on.

        Raises:
            SharedUnitOfWork: another task uses this unit of work right now.
        """
        self._context.check()
        self._forget()

    def _forget(self) -> None:
        self._context.clear()
        self._dispatch = None
        self._in_doubt, self._lost = None, False

    async def commit(self) -> Commit:
        """
        Write all pending entities and their events in one request, and return when they are known to be stored.

        Where the outcome of the commit before is unknown, that one is settled first, as it was; what was changed since
        follows in a request of its own.

        Raises:
            Conflict, NotFound, PreconditionFailed: somebody else was first; nothing was written (but for a commit before
                whose outcome had been unknown, see above). Everything is still pending, but `read` now fetches that
                entity anew, in place of the object that was refused. To begin from scratch, `rollback()`.
            MixedPartitionKeys, BatchTooLarge: one batch cannot hold it; nothing was sent.
            TooManyRequests, StoreUnavailable: the service was busy for the whole deadline; nothing was written.
            CommitOutcomeUnknown: the answer was lost and could not be found out; commit again to find out. Where the
                error says that it is `final`, nobody ever will: the unit only lets itself be rolled back then.
            SharedUnitOfWork: another task uses this unit of work right now.
        """
        with self._context.exclusively():
            if self._committing:
                raise UsageError(
                    "An event handler called commit(); what it adds to the unit of work is committed anyway."
                )
            if self._lost:
                raise UsageError(
                    "The outcome of the last commit of this unit of work can never be found out; roll back, read the "
                    "entities anew and decide."
                )
            self._committing = True
            try:
                if self._in_doubt is None:
                    return await self._commit_pending() or Commit()
                settled = await self._send(*self._in_doubt)  # before anything newer, which may depend on it
                newer = await self._commit_pending()
                return settled if newer is None else settled.followed_by(newer)
            finally:
                self._committing = False

    async def _commit_pending(self) -> Commit | None:
        if self._handlers:
            if self._dispatch is None:
                self._dispatch = self._handlers.start()
            await self._dispatch.run(self._recorded_events, self, max_raised=MAX_BATCH_OPERATIONS)
        changed = self._context.changed()
        if not changed:
            return None
        span = self._tracer.start_span(_SPAN, kind=trace.SpanKind.PRODUCER)
        if not span.is_recording():  # so the current span stays the caller's
            return await self._send(self._pending(changed, traced=span is not trace.INVALID_SPAN))
        with trace.use_span(span, end_on_exit=True):
            pending = self._pending(changed, traced=True)
            span.set_attributes(
                {
                    "outbox.commit.id": pending.commit_id,
                    "outbox.events": len(pending.events),
                    "db.operation.batch.size": len(pending.writes),
                }
            )
            if pending.events:
                span.set_attributes(_CREATE)
            try:
                commit = await self._send(pending)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                raise
            span.set_attribute("azure.cosmosdb.operation.request_charge", commit.request_charge)
            span.set_attribute("outbox.commit.attempts", commit.attempts)
            return commit

    def _pending(self, changed: list[Tracked], *, traced: bool) -> PendingCommit:
        published = self._handlers.published(self._recorded_events()) if self._handlers.maps else {}
        return self._context.pending_commit(
            changed, correlation=current_correlation(traced=traced), published=published
        )

    async def _send(self, pending: PendingCommit, in_doubt_since: float | None = None) -> Commit:
        was_in_doubt = in_doubt_since is not None
        first_sent_at = asyncio.get_running_loop().time() if in_doubt_since is None else in_doubt_since
        self._in_doubt = pending, first_sent_at
        try:
            written: WrittenCommit = await send(
                self._store, pending, self._options, in_doubt_since=in_doubt_since
            )
        except CommitOutcomeUnknown as unknown:
            self._lost = unknown.final
            raise
        except OutboxError as refusal:
            self._in_doubt = None  # it is known not to be written
            if isinstance(refusal, (Conflict, NotFound, PreconditionFailed)):
                self._context.mark_refused(pending, refusal.document_id)
            raise
        # Whatever else is raised, a cancellation or a fault of a library, may come after it was written.
        self._in_doubt = None
        self._context.mark_written(pending, written.etags, in_doubt=was_in_doubt)
        return Commit(
            id=pending.commit_id,
            events=pending.events,
            operations=len(pending.writes),
            request_charge=written.request_charge,
            attempts=written.attempts,
        )

    def _recorded_events(self) -> Iterator[DomainEvent]:
        return (event for tracked in self._context.changed() for event in tracked.entity.events)


class Outbox:
    """
    The entry point: one per process and container, shared by all tasks.
    """

    def __init__(
        self,
        store: Store,
        *,
        retries: RetryOptions | None = None,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        """
        Commit to a store.

        Args:
            store: where to, `CosmosStore` or `MemoryContainer`.
            retries: how long a read or a commit is tried. Defaults to 10 s.
            tracer_provider: who gets a span a commit. Defaults to OpenTelemetry's global one.
        """
        self._store, self._options = store, retries or RetryOptions()
        self._tracer = trace.get_tracer("cosmos_outbox", tracer_provider=tracer_provider)
        self._handlers: EventHandlers[UnitOfWork] = EventHandlers()

    def on(
        self, event_type: type[EventT], handler: Callable[[EventT, UnitOfWork], Awaitable[None] | None]
    ) -> None:
        """
        Run `handler(event, unit_of_work)` inside the process before such an event is committed.

        What the handler adds to the unit of work is committed in the same batch; events it raises are handled too.
        """
        self._handlers.on(event_type, handler)

    def publishes(self, event_type: type[EventT], mapping: Callable[[EventT], DomainEvent | None]) -> None:
        """
        Tell the world `mapping(event)` in place of such an event, or nothing where it returns None.
        """
        self._handlers.publishes(event_type, mapping)

    @overload
    def unit_of_work(self) -> UnitOfWork: ...
    @overload
    def unit_of_work(self, kind: type[UnitT]) -> UnitT: ...
    def unit_of_work(self, kind: type[UnitOfWork] = UnitOfWork) -> UnitOfWork:
        """
        Return a new unit of work, of a subclass where one is given.
        """
        return kind(self._store, options=self._options, handlers=self._handlers, tracer=self._tracer)
