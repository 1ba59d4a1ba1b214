"""
Outbox: the entry point of an application, which makes units of work. `unit_of_work.py` has what they do, and `domain/events.py` how long
events live.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, TypeVar, overload

from opentelemetry import trace

from cosmos_outbox.correlation import tracer_of
from cosmos_outbox.domain.entities import Entity
from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import PreconditionFailed, UsageError, require
from cosmos_outbox.partition_key import KeyPaths
from cosmos_outbox.ports import Store
from cosmos_outbox.retries import RetryOptions
from cosmos_outbox.write.event_handlers import EventHandlers, PublicEvents, check_handler
from cosmos_outbox.write.event_sizes import EventSizes
from cosmos_outbox.write.unit_of_work import UnitOfWork

EventT = TypeVar("EventT", bound=DomainEvent)
UnitT = TypeVar("UnitT", bound=UnitOfWork)
ResultT = TypeVar("ResultT")
DEFAULT_ATTEMPTS = 10


class Outbox:
    """
    The entry point of an application. Make one for each process and container; all tasks share it.

    Args:
        store: where to commit: a `CosmosStore` or a `MemoryContainer`.
        retries: for how long a read or a commit is tried. Defaults to 10 s.
        sizes: the rules for large events. Defaults to refusing a message of more than 256 KB, as Service Bus Standard
            does.
        tracer_provider: gets a span for each commit. Defaults to OpenTelemetry's global provider.
        create_spans_for: the broker's name in OpenTelemetry, such as `servicebus`. Each event then gets a span `create`
            of its own, which its message continues. Defaults to none: the events of a commit share its span.
    """

    def __init__(
        self,
        store: Store,
        *,
        retries: RetryOptions | None = None,
        sizes: EventSizes | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        create_spans_for: str | None = None,
    ) -> None:
        said = f"Outbox needs a store, and a {type(store).__name__} is none: pass `await open_store(client, database, container)`."
        require(hasattr(store, "commit"), said, TypeError)
        self._store, self.retries = store, retries or RetryOptions()
        self._sizes = sizes or EventSizes()
        self._tracer, self._create_spans_for = tracer_of(tracer_provider), create_spans_for
        self._handlers = EventHandlers()
        self._kinds: dict[str, type[Entity]] = {}

    @property
    def key_paths(self) -> KeyPaths:
        """Return the paths at which the container's documents have their partition key."""
        return self._store.key_paths

    def over(self, wrapped: Callable[[Store], Store]) -> Outbox:
        """
        Return a copy of this outbox with its store wrapped by `wrapped`. A test uses it to observe the calls of the
        store.
        """
        other = copy(self)
        other._store = wrapped(self._store)  # noqa: SLF001 - of ours
        return other

    @overload
    def on(
        self, event_type: type[EventT], handler: Callable[[EventT, UnitOfWork], Awaitable[None] | None]
    ) -> None: ...
    @overload
    def on(
        self,
        event_type: type[EventT],
        handler: Callable[[EventT, UnitT], Awaitable[None] | None],
        *,
        kind: type[UnitT],
    ) -> None: ...
    def on(
        self,
        event_type: type[EventT],
        handler: Callable[[EventT, Any], Awaitable[None] | None],
        *,
        kind: type[UnitOfWork] = UnitOfWork,
    ) -> None:
        """
        Have `handler(event, unit_of_work)` run in this process before an event of this type is committed.

        The changes that the handler makes in the unit of work are committed in the same batch, and events that it records are
        handled too. An error that it raises passes through `commit`, with a note that names the handler, the event and the
        entity. If the handler needs a subclass of UnitOfWork, pass that as `kind`. The commit of a unit of another class then
        raises UsageError.

        Raises:
            TypeError: the handler does not take these two arguments.
        """
        check_handler(handler)
        self._handlers.registered.append((event_type, handler, kind))

    def publishes(self, event_type: type[EventT], mapping: Callable[[EventT], PublicEvents]) -> None:
        """
        Publish the result of `mapping(event)` in place of each event of a type: one event, several in their order, or None for
        nothing.

        Raises:
            TypeError: the type has a mapping already.
        """
        self._handlers.publishes(event_type, mapping)

    @overload
    def unit_of_work(self) -> UnitOfWork: ...
    @overload
    def unit_of_work(self, kind: type[UnitT]) -> UnitT: ...
    def unit_of_work(self, kind: type[UnitOfWork] = UnitOfWork) -> UnitOfWork:
        """Return a new unit of work, or one of the given subclass."""
        return kind(
            self._store,
            options=self.retries,
            handlers=self._handlers,
            kinds=self._kinds,
            sizes=self._sizes,
            tracer=self._tracer,
            create_spans_for=self._create_spans_for,
        )

    @overload
    async def run(
        self, work: Callable[[UnitOfWork], Awaitable[ResultT]], *, attempts: int = ...
    ) -> ResultT: ...
    @overload
    async def run(
        self, work: Callable[[UnitT], Awaitable[ResultT]], *, kind: type[UnitT], attempts: int = ...
    ) -> ResultT: ...
    async def run(
        self,
        work: Callable[[Any], Awaitable[ResultT]],
        *,
        kind: type[UnitOfWork] = UnitOfWork,
        attempts: int = DEFAULT_ATTEMPTS,
    ) -> ResultT:
        """
        Run `work(unit_of_work)`, commit, and return the result of `work`. If another program wrote first, do this again.

        Each attempt has a unit of work of its own, so `work` reads everything again. There is a pause between two attempts, as
        `retries` says. `work` may commit itself, as its last step.

        Args:
            work: reads and changes entities. It runs once for each attempt, so its effects outside of Cosmos DB are repeated.
            kind: the subclass of UnitOfWork that `work` gets.
            attempts: how often `work` runs at most. Defaults to 10.

        Raises:
            UsageError: `attempts` is less than 1; or `work` is no function, or returned nothing to await.
            PreconditionFailed: another program was first in each attempt; or `work` raised this error itself, which ends the
                attempts.
            OutboxError: any other error of `work` or of `UnitOfWork.commit`. It ends the attempts.
        """
        require(attempts >= 1, f"Work needs at least one attempt, not {attempts}.")
        if not callable(work):
            said = "`run` calls its work: pass the function itself, `run(work)` and not `run(work(…))`"
            raise UsageError(f"{said}; {work!r:.50} is no function.")
        attempt = 0
        while True:
            attempt += 1
            async with self.unit_of_work(kind) as unit:
                try:
                    answer = work(unit)
                    if not inspect.isawaitable(answer):
                        said = f"`run` awaits its work, and {work!r:.100} returned {answer!r:.50}"
                        raise UsageError(f"{said}: make it an `async def`.")
                    result = await answer
                    await unit.commit()
                except PreconditionFailed as refusal:
                    if not unit.was_refused(refusal) or is_last(attempt, attempts, refusal):
                        raise
                else:
                    return result
            await asyncio.sleep(self.retries.backoff.delay(attempt))


def is_last(attempt: int, attempts: int, refusal: PreconditionFailed) -> bool:
    """
    Return whether this attempt is the last one. If it is, add a note to its error (`refusal`) that says what to do.
    """
    if attempt >= attempts:
        refusal.overtaken = attempts > 1
        refusal.add_note(
            f"Each of the {attempts} attempts of `run` was refused: other programs write the same document at the same time. Call it "
            "again later, or with more `attempts`."
        )
    return attempt >= attempts
