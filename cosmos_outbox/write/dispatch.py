"""
Dispatch: what a program does inside its own process, before the save, when an entity raised an event.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Generic, Self, TypeVar

from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import EventHandlerCycle

UnitT = TypeVar("UnitT")
MAX_CHAIN = 16


class EventHandlers(Generic[UnitT]):
    """
    Which functions run on which event types, and which public event replaces a domain event.

    Both also apply to subclasses of the type they were registered for.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[type[DomainEvent], Callable[[Any, UnitT], Awaitable[None] | None]]] = []
        self._public: dict[type[DomainEvent], Callable[[Any], DomainEvent | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._handlers)

    def on(
        self, event_type: type[DomainEvent], handler: Callable[[Any, UnitT], Awaitable[None] | None]
    ) -> None:
        """
        Run `handler(event, unit_of_work)` before the commit that writes such an event.
        """
        self._handlers.append((event_type, handler))

    def publishes(self, event_type: type[DomainEvent], mapping: Callable[[Any], DomainEvent | None]) -> None:
        """
        Write `mapping(event)` in place of such an event, or nothing if it returns None.
        """
        self._public[event_type] = mapping

    def published(self, events: Iterable[DomainEvent]) -> dict[str, DomainEvent | None]:
        """
        Return the replacement of each mapped event by the event's id, which it keeps, so that a retry repeats it.
        """
        found: dict[str, DomainEvent | None] = {}
        for event in events if self._public else ():
            mapping = next((self._public[kind] for kind in type(event).__mro__ if kind in self._public), None)
            if mapping is not None:
                public = mapping(event)
                found[event.id] = public and public.model_copy(
                    update={"id": event.id, "created_at": event.created_at}
                )
        return found

    def start(self) -> Dispatch[UnitT]:
        """
        Return a new record of which events were handled.
        """
        return Dispatch(self._handlers)


class Dispatch(Generic[UnitT]):
    """
    The handling of one unit of work's events: each handler gets each event once, also if the commit is repeated.
    """

    def __init__(
        self, handlers: list[tuple[type[DomainEvent], Callable[[Any, UnitT], Awaitable[None] | None]]]
    ) -> None:
        self._handlers = handlers
        self._done: set[tuple[str, int]] = set()
        self._caused_by: dict[str, tuple[str, ...]] = {}  # event id -> actions of the events that led to it

    @property
    def raised(self) -> Collection[str]:
        """
        Return the ids of the events that handlers raised.
        """
        return self._caused_by.keys()

    def copy(self) -> Self:
        """
        Return a record of its own that knows the same events.
        """
        copied = type(self)(self._handlers)
        copied._done, copied._caused_by = set(self._done), dict(self._caused_by)  # noqa: SLF001 - of this class
        return copied

    async def run(
        self, pending: Callable[[], Iterable[DomainEvent]], unit: UnitT, *, max_raised: int
    ) -> None:
        """
        Handle all pending events, and those that the handlers raise, until none is left.

        Raises:
            EventHandlerCycle: an event led to itself again and again, or the handlers raised more than `max_raised`.
        """
        known = {event.id for event in pending()}
        most = len(known) + max_raised
        while (task := self._next(pending())) is not None:
            event, position = task
            chain = (*self._caused_by.get(event.id, ()), event.action)
            if len(chain) > MAX_CHAIN:
                raise EventHandlerCycle(
                    "Event handlers raise events that call each other without end: " + " -> ".join(chain)
                )
            answer = self._handlers[position][1](event, unit)
            if inspect.isawaitable(answer):
                await answer
            self._done.add((event.id, position))
            for raised in pending():
                if raised.id not in known:
                    known.add(raised.id)
                    self._caused_by[raised.id] = chain
            if len(known) > most:
                raise EventHandlerCycle(
                    f"Event handlers raised more than {max_raised} events for one commit, the last of them by "
                    + " -> ".join(chain)
                )

    def _next(self, events: Iterable[DomainEvent]) -> tuple[DomainEvent, int] | None:
        for event in events:
            for position, (kind, _) in enumerate(self._handlers):
                if isinstance(event, kind) and (event.id, position) not in self._done:
                    return event, position
        return None
