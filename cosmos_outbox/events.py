"""
DomainEvent: something that happened to an entity, told to the rest of the world by its name and schema version.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cosmos_outbox.identifiers import new_id

DEFAULT_EVENT_TTL = timedelta(days=10)


class DomainEvent(BaseModel):
    """
    Base of all events: immutable, with an id that stays the same through every retry and resend.

    Subclasses may set, as class variables:

    action          the name consumers see as the message's subject; default: the class name.
    schema_version  the version of the payload's shape; default: 1.
    ttl             how long the stored event lives; default: 10 days.
    coalesce        True: a later event of the same action replaces the earlier one inside one commit.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid")

    action: ClassVar[str]
    schema_version: ClassVar[int] = 1
    ttl: ClassVar[timedelta] = DEFAULT_EVENT_TTL
    coalesce: ClassVar[bool] = False

    id: str = Field(default_factory=new_id)
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "action" not in cls.__dict__:
            cls.action = cls.__name__
        _register(cls)

    def payload(self) -> dict[str, Any]:
        """
        Return the event's `data` as it is stored and sent: camelCase, JSON types, with its action.
        """
        # what model_dump() does, without the second that its wrapper takes for each of a million events
        data: dict[str, Any] = self.__pydantic_serializer__.to_python(self, mode="json", by_alias=True)
        return {"id": data.pop("id"), "action": self.action, "createdAt": data.pop("createdAt"), **data}


_types: dict[str, type[DomainEvent]] = {}


def _register(event_type: type[DomainEvent]) -> None:
    known = _types.get(event_type.action)
    same_class = known is not None and _qualified_name(known) == _qualified_name(event_type)
    if known is not None and not same_class:
        raise TypeError(
            f"Two event types are named {event_type.action!r}: {_qualified_name(known)} and "
            f"{_qualified_name(event_type)}. Give one of them another `action`."
        )
    _types[event_type.action] = event_type


def _qualified_name(event_type: type[DomainEvent]) -> str:
    return f"{event_type.__module__}.{event_type.__qualname__}"


def event_type_named(action: str) -> type[DomainEvent] | None:
    """
    Return the event type registered under an action name, or None.
    """
    return _types.get(action)
