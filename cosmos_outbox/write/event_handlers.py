"""
Event handlers: functions that run inside the process, before the commit, for the events that entities recorded.
`consumer/routes.py` chooses the handlers of messages.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from cosmos_outbox.domain.events import DomainEvent
from cosmos_outbox.errors import UsageError
from cosmos_outbox.ports import MAX_BATCH_OPERATIONS
from cosmos_outbox.write.change_tracking import IdentityMap, Tracked

MAX_CHAIN = 16
PublicEvents = DomainEvent | Sequence[DomainEvent] | None
_Handler = tuple[type[DomainEvent], Callable[[Any, Any], Awaitable[None] | None], type[Any]]


class EventHandlers:
    """
    The handlers that run for each type of event, and the mappings from a domain event to the public events that are
    written in its place.

    A handler or mapping of an event class also applies to its subclasses.
    """

    def __init__(self) -> None:
        self.registered: list[_Handler] = []
        self.public: dict[type[DomainEvent], Callable[[Any], PublicEvents]] = {}

    def publishes(self, event_type: type[DomainEvent], mapping: Callable[[Any], PublicEvents]) -> None:
        """
        Have each commit write the result of `mapping(event)` in place of each event of this type. The result is one
        event, several in their order, or None for no event.

        Raises:
            TypeError: the type has a mapping already.
        """
        if (known := self.public.get(event_type)) is not None:
            raise TypeError(
                f"publishes({event_type.__name__}, {_name(mapping)}): {_name(known)} already maps this event; have "
                "one mapping return all the events."
            )
        self.public[event_type] = mapping

    def map_events(self, events: Iterable[DomainEvent]) -> dict[str, tuple[DomainEvent, ...]]:
        """
        Return, by the id of each mapped event, the events that replace it. The first of them gets the id of the mapped
        event. The ids of the others are computed from that id, so that a retry makes the same ids.
        """
        found: dict[str, tuple[DomainEvent, ...]] = {}
        for event in events:
            mapping = next((self.public[kind] for kind in type(event).__mro__ if kind in self.public), None)
            if mapping is not None:
                public = mapping(event)
                several = public if isinstance(public, list | tuple) else () if public is None else (public,)
                found[event.id] = tuple(
                    one.model_copy(update={"id": _id_of(event, place), "created_at": event.created_at})
                    for place, one in enumerate(several)
                )
        return found


class Dispatch:
    """
    Calls the event handlers of one unit of work. Each handler gets each event once, even if the commit is repeated:
    `before` is the Dispatch of the last commit, and knows which events have been handled.
    """

    def __init__(self, handlers: list[_Handler], before: Dispatch | None) -> None:
        self._handlers = handlers
        self.done: set[tuple[str, int]] = set() if before is None else {*before.done}
        # For each event that a handler recorded, by its id: the actions of the events that led to it, in
        # order.
        self.caused_by: dict[str, tuple[str, ...]] = {} if before is None else {**before.caused_by}

    async def run(self, entities: IdentityMap, unit: object) -> None:
        """
        Handle all events that a commit would write, and the events that handlers record meanwhile, until none is left.

        An error of a handler passes through, with a note that names the handler, the event and the entity that recorded
        it.

        Raises:
            UsageError: the handlers of some events record these events again without end; the handlers recorded more
                events than a batch holds; or a handler needs a unit of work of another class.
        """
        known = {event.id for _, event in entities.each_event()}
        most = len(known) + MAX_BATCH_OPERATIONS
        while (task := self._next(entities.each_event())) is not None:
            recorder, event, position = task
            chain = (*self.caused_by.get(event.id, ()), event.action)
            if len(chain) > MAX_CHAIN:
                raise UsageError(
                    f"Event handlers raise events that call each other without end: {' -> '.join(dict.fromkeys(chain))} -> … Let one of "
                    "them raise its event only where it changed something."
                )
            _, handler, unit_kind = self._handlers[position]
            if not isinstance(unit, unit_kind):
                raise UsageError(
                    f"The handler {_name(handler)} of {event.action} {event.id!r} needs a {unit_kind.__name__}, and this unit of "
                    f"work is a {type(unit).__name__}: open it with `outbox.unit_of_work({unit_kind.__name__})`."
                )
            entities.acting = f"{_name(handler)} of {event.action}"
            try:
                answer = handler(event, unit)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:
                error.add_note(
                    f"Raised by the handler {_name(handler)} of {event.action} {event.id!r}, which "
                    f"{recorder} of partition key {recorder.key!r} recorded; the commit sent nothing."
                )
                raise
            finally:
                entities.acting = None
            self.done.add((event.id, position))
            for _, raised in entities.each_event():
                if raised.id not in known:
                    known.add(raised.id)
                    self.caused_by[raised.id] = chain
            if len(known) > most:
                raise UsageError(
                    f"Event handlers raised more than {MAX_BATCH_OPERATIONS} events for one commit, the last of them by "
                    + " -> ".join(chain)
                )

    def _next(
        self, recorded: Iterable[tuple[Tracked, DomainEvent]]
    ) -> tuple[Tracked, DomainEvent, int] | None:
        for tracked, event in recorded:
            for position, (kind, _, _) in enumerate(self._handlers):
                if isinstance(event, kind) and (event.id, position) not in self.done:
                    return tracked, event, position
        return None


def check_handler(handler: Callable[..., object]) -> None:
    """Raise TypeError if a handler does not take an event and a unit of work."""
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        said = f"`on` calls handler(event, unit_of_work), and {_name(handler)} does not take that: {error}."
        raise TypeError(said) from error


def _id_of(event: DomainEvent, place: int) -> str:
    return event.id if place == 0 else str(uuid.uuid5(uuid.NAMESPACE_OID, f"{event.id}/{place}"))


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
