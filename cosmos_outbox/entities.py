"""
Entity: a domain object that records the events its methods cause, until a commit writes both.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

from cosmos_outbox.events import DomainEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenEvents:
    """
    The events a commit writes, and the ids of those recorded ones that it settles (a Created event settles them all).
    """

    events: tuple[DomainEvent, ...] = ()
    settled: frozenset[str] = frozenset()


class Entity(BaseModel):
    """
    Base of all entities: a pydantic model whose methods change its state and call `self.record(SomeEvent(...))`.

    Subclasses set `entity_type` (the stored `type`), may override `partition_key` (default: the id) and
    `created_event`, which makes a new entity raise that event alone, with the state it has at commit.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, validate_assignment=True, extra="ignore"
    )

    entity_type: ClassVar[str]

    id: str = Field(default_factory=lambda: str(uuid.uuid4()), frozen=True)

    _version: int = PrivateAttr(default=0)
    _etag: str | None = PrivateAttr(default=None)
    _events: list[DomainEvent] = PrivateAttr(default_factory=list)
    _created: DomainEvent | None = PrivateAttr(default=None)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "entity_type" not in cls.__dict__:
            cls.entity_type = cls.__name__[:1].lower() + cls.__name__[1:]

    @classmethod
    def restore(cls, data: dict[str, Any], *, version: int, etag: str | None) -> Self:
        """
        Return an entity as it was stored, with nothing recorded.
        """
        entity = cls.model_validate(data)
        entity.mark_committed(version=version, etag=etag, taken=TakenEvents())
        return entity

    @property
    def partition_key(self) -> str:
        """
        Return the value of the document's `partitionKey`; entities that must change together share it.
        """
        return self.id

    @property
    def version(self) -> int:
        """
        Return how many commits wrote this entity; 0 before the first.
        """
        return self._version

    @property
    def etag(self) -> str | None:
        """
        Return the etag of the stored document; None before the first commit.
        """
        return self._etag

    @property
    def is_new(self) -> bool:
        """
        Say whether the entity was never committed.
        """
        return self._version == 0

    def created_event(self) -> DomainEvent | None:
        """
        Return the event that tells of a new entity's whole state, or None to raise only what was recorded.
        """
        return None

    def record(self, event: DomainEvent) -> None:
        """
        Record that something happened; the next commit writes the event together with the entity.
        """
        if event.coalesce:
            for position, earlier in enumerate(self._events):
                if earlier.action == event.action:
                    self._events[position] = event
                    return
        self._events.append(event)

    @property
    def events(self) -> tuple[DomainEvent, ...]:
        """
        Return the events that the next commit will write, in order, with the ids they will have.
        """
        return self.take_events().events

    def take_events(self) -> TakenEvents:
        """
        Return what a commit writes now; the events stay recorded until `mark_committed`, so a retry writes them again.
        """
        settled = frozenset(event.id for event in self._events)
        created = self.created_event() if self.is_new else None
        if created is None:
            return TakenEvents(events=tuple(self._events), settled=settled)
        if (
            self._created is not None
        ):  # a repeated commit must write the id that the first attempt may have written
            created = created.model_copy(
                update={"id": self._created.id, "created_at": self._created.created_at}
            )
        self._created = created
        return TakenEvents(events=(created,), settled=settled)

    def mark_committed(self, *, version: int, etag: str | None, taken: TakenEvents) -> None:
        """
        Take note of a successful commit: the events it settled are dropped, those recorded since stay.
        """
        self._events = [event for event in self._events if event.id not in taken.settled]
        self._version, self._etag, self._created = version, etag, None
