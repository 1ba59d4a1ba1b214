"""
Outbox: the entry point of an application, which makes units of work.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from opentelemetry import trace

from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import PreconditionFailed, UsageError
from cosmos_outbox.partition_key import KeyPaths
from cosmos_outbox.ports import Store
from cosmos_outbox.retries import RetryOptions
from cosmos_outbox.write.dispatch import EventHandlers, PublicEvents
from cosmos_outbox.write.event_size import EventSizes
from cosmos_outbox.write.unit_of_work import UnitOfWork

EventT = TypeVar("EventT", bound=DomainEvent)
UnitT = TypeVar("UnitT", bound=UnitOfWork)
ResultT = TypeVar("ResultT")
DEFAULT_ATTEMPTS = 10


class Outbox:
    """
    The entry point: one per process and container, shared by all tasks.

    Args:
        store: where to commit, `CosmosStore` or `MemoryContainer`.
        retries: how long a read or a commit is tried. Defaults to 10 s.
        sizes: what becomes of large events. Defaults to refusing a message of more than 256 KB, as Service Bus Standard does.
        tracer_provider: receives a span for each commit. Defaults to OpenTelemetry's global one.
    """

    def __init__(
        self,
        store: Store,
        *,
        retries: RetryOptions | None = None,
        sizes: EventSizes | None = None,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        if not callable(getattr(store, "commit", None)):
            raise TypeError(
                f"Outbox needs a store, and a {type(store).__name__} is none: pass `await open_store(client, database, container)` "
                "of cosmos_outbox.adapters.cosmos, or a MemoryContainer in tests."
            )
        _check_option("retries", retries, RetryOptions, of="deadline_seconds")
        _check_option("sizes", sizes, EventSizes, of="max_message_bytes")
        self._store, self.retries = store, retries or RetryOptions()
        self._sizes = sizes or EventSizes()
        self._tracer = trace.get_tracer("cosmos_outbox", tracer_provider=tracer_provider)
        self._handlers: EventHandlers[UnitOfWork] = EventHandlers()

    @property
    def key_paths(self) -> KeyPaths:
        """
        Return where the container's documents keep their partition key.
        """
        return self._store.key_paths

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
        Run `handler(event, unit_of_work)` in this process before such an event is committed.

        What the handler adds to the unit of work is committed in the same batch; events it raises are handled too. What it
        raises passes through `commit`, with a note that names the handler, the event and the entity. A handler that needs a
        subclass of UnitOfWork names it as `kind`; a commit of another kind of unit raises UsageError then.

        Raises:
            TypeError: that is no event type, or the handler does not take these two arguments.
            UsageError: `kind` is no UnitOfWork.
        """
        check_kind(kind, UnitOfWork)
        self._handlers.on(event_type, handler, kind)

    def publishes(self, event_type: type[EventT], mapping: Callable[[EventT], PublicEvents]) -> None:
        """
        Publish what `mapping(event)` returns in place of such an event: one event, several in their order, or None for nothing.

        Raises:
            TypeError: that is no event type, it has a mapping already, or the mapping does not take one argument.
        """
        self._handlers.publishes(event_type, mapping)

    @overload
    def unit_of_work(self) -> UnitOfWork: ...
    @overload
    def unit_of_work(self, kind: type[UnitT]) -> UnitT: ...
    def unit_of_work(self, kind: type[UnitOfWork] = UnitOfWork) -> UnitOfWork:
        """
        Return a new unit of work, or one of the given subclass.

        Raises:
            UsageError: `kind` is no UnitOfWork.
        """
        check_kind(kind, UnitOfWork)
        return kind(
            self._store,
            options=self.retries,
            handlers=self._handlers,
            sizes=self._sizes,
            tracer=self._tracer,
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
        Run `work(unit_of_work)`, commit, and return what it returned; while another program writes first, run it again.

        Each attempt has a unit of work of its own, so `work` reads everything anew. Between two attempts it waits, as
        `retries` says. `work` may commit itself, as its last step.

        Args:
            work: reads and changes entities. It runs once for each attempt, so what it does elsewhere it does again.
            kind: the subclass of UnitOfWork to give it.
            attempts: how often to run it at most. Defaults to 10.

        Raises:
            UsageError: `work` is no function, or returned nothing to await, so it is no coroutine function.
            PreconditionFailed: another program was first each time; or `work` raised it, then there was no further attempt.
            OutboxError: what else `work` or `UnitOfWork.commit` raises, at once.
        """
        check_work(work, attempts)
        attempt = 0
        while True:
            attempt += 1
            async with self.unit_of_work(kind) as unit:
                try:
                    if not inspect.isawaitable(answer := work(unit)):
                        raise UsageError(
                            f"`run` awaits its work, and {work!r:.100} returned {answer!r:.100}: make it an `async def`. A "
                            "BlockingOutbox runs plain functions."
                        )
                    result = await answer
                    await unit.commit()
                except PreconditionFailed as refusal:
                    if not unit.was_refused(refusal):
                        raise
                    if attempt >= attempts:
                        refusal.add_note(exhausted(attempts))
                        raise
                else:
                    return result
            await asyncio.sleep(self.retries.backoff.delay(attempt))


def check_work(work: object, attempts: int) -> None:
    """
    Check what `run` is asked for.

    Raises:
        UsageError: there is nothing to call, or no attempt.
    """
    if attempts < 1:
        raise UsageError(f"Work needs at least one attempt, not {attempts}.")
    if not callable(work):
        if inspect.iscoroutine(work):
            work.close()
        raise UsageError(
            f"`run` calls its work with a new unit of work for each attempt, and {work!r:.100} cannot be called: pass the function "
            "itself, `run(work)` and not `run(work(…))`."
        )


def exhausted(attempts: int) -> str:
    """
    Return what to add to the refusal of the last attempt of `run`.
    """
    return (
        f"Each of the {attempts} attempts of `run` was refused: other programs write the same document at the same time. Call it again "
        "later, or with more `attempts`."
    )


def check_kind(kind: object, base: type) -> None:
    """
    Check that a kind of unit of work is one.

    Raises:
        UsageError: it does not derive from `base`.
    """
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise UsageError(
            f"{kind!r:.100} is no kind of unit of work: pass a class that derives from {base.__name__}."
        )


def _check_option(name: str, given: object, kind: type, *, of: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise TypeError(
            f"Outbox takes {name}=… as {kind.__name__}, and {given!r:.100} is none: pass for example "
            f"`{name}={kind.__name__}({of}=…)`."
        )
