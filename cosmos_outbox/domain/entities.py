"""
Entity: a domain object that records the events its methods cause. A commit writes the entity together with these events.
`write/change_tracking.py` finds out which entities a commit has to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

from cosmos_outbox.domain.events import (
    MAX_TTL,
    MIN_TTL,
    DomainEvent,
    Progress,
    new_id,
    refuse_taken_names,
    refuse_unknown,
)
from cosmos_outbox.errors import UsageError, require
from cosmos_outbox.partition_key import MOST_LEVELS, KeyPart, PartitionKey

EntityT = TypeVar("EntityT", bound="Entity")
# The values of `type` in the library's own documents. No entity may use them: for example, the relay would publish an entity of type
# EVENT_TYPE as an event.
EVENT_TYPE, PAYLOAD_TYPE = "domainEvent", "eventPayload"
INBOX_TYPE, ANSWER_TYPE = "inboxRecord", "requestAnswer"
RESERVED_TYPES = frozenset({EVENT_TYPE, PAYLOAD_TYPE, INBOX_TYPE, ANSWER_TYPE, "parkedKey", "parkedEvent"})


class Entity(BaseModel):
    """
    Base of all entities: a pydantic model whose methods change its state and call `self.record(SomeEvent(...))`.

    Subclasses may set, as class variables:

    entity_type     the stored `type`; default: the name of the class, with a small first letter.
    key_fields      the names of the fields that make the partition key, in its order; default: the id. If no field holds the key, override
                    the property `partition_key` instead.
    ttl             how long Cosmos DB keeps an entity after its last write; default: for ever.

    A subclass may override `created_event`. The commit of a new entity then writes that event first, with the state that the entity has at
    the commit. The recorded events follow, except those whose class sets `implied_by_creation`.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, validate_assignment=True)

    entity_type: ClassVar[str]
    key_fields: ClassVar[tuple[str, ...]] = ("id",)
    ttl: ClassVar[timedelta | None] = None
    _marked_when_deleted: ClassVar[bool] = False  # True for SoftDeletable

    id: str = Field(default_factory=new_id, frozen=True)

    _progress: Progress = PrivateAttr(default_factory=Progress)

    def __init__(self, /, **data: Any) -> None:
        # Refuse unknown fields if application code creates the entity. A stored document may have them, and
        # pydantic reads it without this method. If a subclass has an `__init__` of its own, pydantic calls it
        # for documents too, so `refuse_unknown` then accepts all.
        refuse_unknown(type(self), data)
        super().__init__(**data)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for base in cls.__mro__[1:]:
            if base.__module__ == __name__:
                refuse_taken_names(cls, base)
        if cls._marked_when_deleted:
            _check_mark(cls)
        elif hasattr(cls, "delete"):
            raise TypeError(
                f"{cls.__name__} has a method `delete`, which no repository would call: `repository.delete()` removes the document. Rename "
                "the method; or derive the class from SoftDeletable, and the document stays, marked as deleted."
            )
        said = f"{cls.__name__}.ttl has to be None or a timedelta of 1 s to {MAX_TTL.days} days, such as timedelta(days=1), not {cls.ttl!r}."
        lives = isinstance(cls.ttl, timedelta) and MIN_TTL <= cls.ttl <= MAX_TTL
        require(cls.ttl is None or lives, said, TypeError)
        if "entity_type" not in cls.__dict__:
            cls.entity_type = cls.__name__[:1].lower() + cls.__name__[1:]
        _check_type(cls)
        _check_key_fields(cls)

    @classmethod
    def key_of(cls, *parts: KeyPart, **named: KeyPart) -> PartitionKey:
        """
        Return the partition key that these values of the `key_fields` make: `Order.key_of("t1", user="ada")`.

        The values are given in the order of the fields, or by name.

        Raises:
            UsageError: there is not exactly one value for each field; or the class defines `partition_key` itself, so no fields make it.
        """
        fields = cls.key_fields if cls.partition_key is Entity.partition_key else ()
        by_name = fields[len(parts) :]
        if not fields or len(parts) > len(fields) or named.keys() != set(by_name):
            given = ", ".join([*map(repr, parts), *(f"{name}={value!r}" for name, value in named.items())])
            how = "one value for each, in this order or by name"
            how = how if fields else "that, or name the fields as `key_fields`"
            raise UsageError(
                f"The partition key of {cls.__name__} is made of {', '.join(fields) or 'what its `partition_key` says'}: give {how}, not ({given})."
            )
        key = (*parts, *(named[name] for name in by_name))
        return key if len(key) > 1 else key[0]

    @classmethod
    def restore(
        cls, data: dict[str, Any], *, version: int, etag: str | None, stored: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the entity that a document holds in its `data`, without recorded events. `stored` is the whole document."""
        entity = cls.model_validate(data)
        progress_of(entity).note_commit(version=version, etag=etag, stored=stored)
        return entity

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied._progress = copy(progress_of(self))  # noqa: SLF001 - an object of this class
        return copied

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy that records its own events. A copy with another id or partition key counts as a new entity, without events."""
        copied = super().model_copy(update=update, deep=deep)
        if (copied.id, copied.partition_key) != (self.id, self.partition_key):
            copied._progress = Progress()  # noqa: SLF001 - an object of this class
        return copied

    @property
    def partition_key(self) -> PartitionKey:
        """
        Return the partition key of the document: one value, or a tuple with one for each level of a hierarchical key.

        Only entities with the same partition key can be changed in one commit.
        """
        key: tuple[KeyPart, ...] = tuple([getattr(self, name) for name in self.key_fields])
        return key if len(key) > 1 else key[0]

    @property
    def version(self) -> int:
        """Return how many commits have written this entity; 0 before its first commit."""
        return progress_of(self).version

    @property
    def etag(self) -> str | None:
        """
        Return the etag of the stored document; None before the first commit.

        It is also None after a commit whose answer was lost, if the library then could not read the document, or found that another
        program had changed it.
        """
        return progress_of(self).shown_etag

    @property
    def stored(self) -> Mapping[str, Any] | None:
        """Return the whole document, with fields of other programs, as this process last read or wrote it. None for a new entity."""
        return progress_of(self).stored

    @property
    def is_new(self) -> bool:
        """Say whether the entity was never committed."""
        return progress_of(self).version == 0

    def created_event(self) -> DomainEvent | None:
        """
        Return the event that reports a new entity with its whole state, or None for no such event.

        The commit of a new entity calls this method, and writes the event before all recorded events. The default returns None.
        """
        return None

    def record(self, event: DomainEvent, *, deliver_at: datetime | None = None) -> None:
        """
        Record that something happened. The next commit writes the event, as it is now, together with the entity.

        Args:
            event: what happened, or what a consumer is to check later, such as a deadline.
            deliver_at: the time at which consumers get the event, with a UTC offset. The topic keeps the message until then, so events of
                the same key that are recorded later may arrive earlier. Defaults to at once, which a time in the past also means.

        Raises:
            UsageError: no unit of work writes this object any more, for example because its commit was refused; or `deliver_at` has no UTC
                offset.
        """
        progress_of(self).record(event, kind=self.entity_type, document_id=self.id, deliver_at=deliver_at)

    @property
    def events(self) -> tuple[DomainEvent, ...]:
        """Return the events that the next commit will write, in order, with the ids they will have."""
        return progress_of(self).take(self.created_event).events


def progress_of(entity: Entity) -> Progress:
    """Return the progress of an entity's document: its etag, its stored form and its recorded events."""
    # Bypass pydantic, whose access to a private attribute takes 5 us. A commit reads the progress ten times.
    progress: Progress = (entity.__pydantic_private__ or {})["_progress"]
    return progress


def find_altered_field(entity: Entity, data: Mapping[str, Any]) -> str | None:
    """
    Return the name of a field whose value changes when the stored `data` is read back; None if there is none.

    Raises:
        pydantic.ValidationError: `data` cannot be read back at all.
    """
    read = type(entity).model_validate(data)
    fields = () if entity.__dict__ == read.__dict__ else type(entity).model_fields
    return next((name for name in fields if not _is_same(entity, read, name)), None)


def _is_same(entity: Entity, read: Entity, name: str) -> bool:
    mine, stored = getattr(entity, name), getattr(read, name)
    if mine is stored or mine == stored:
        return True
    # Two values may be unequal although nothing was lost: models that differ only in private attributes, or values that Python cannot
    # compare. They count as equal if `model_dump` returns the same for both.
    shown = [one.model_dump(include={name}, serialize_as_any=True, warnings=False) for one in (entity, read)]
    return name in shown[0] and shown[0] == shown[1]


def kinds_of(kind: type[EntityT], known: dict[str, type[Entity]]) -> dict[str, type[EntityT]]:
    """
    Return a class and its subclasses by the `type` of their documents, and add them to `known`.

    If a subclass keeps the type of its base class, documents of that type are read as the base class. A class with the module and name of a
    known class replaces it, because it is the same class, defined again.

    Raises:
        UsageError: an unrelated class is stored with one of the types.
    """
    other = known.setdefault(kind.entity_type, kind)
    again = (kind.__module__, kind.__qualname__) == (other.__module__, other.__qualname__)
    if again or issubclass(other, kind):
        known[kind.entity_type] = kind
    elif not issubclass(kind, other):
        raise UsageError(
            f"{kind.__qualname__} and {other.__qualname__} are both stored with the type {kind.entity_type!r}, so a read could "
            "not tell them apart: give one of them another `entity_type`, or derive one from the other."
        )
    found: dict[str, type[EntityT]] = {}
    for subclass in kind.__subclasses__():
        found |= kinds_of(subclass, known)
    return found | {kind.entity_type: kind}


def _check_type(cls: type[Entity]) -> None:
    name: object = cls.entity_type
    if isinstance(name, str) and name in RESERVED_TYPES:
        raise TypeError(
            f"A {cls.__name__} cannot be stored with the type {name!r}, which this library gives to documents of its own: "
            "the library would take it for one of them. Give the class another `entity_type`."
        )
    said = f"{cls.__name__}.entity_type has to be a text that is not empty, such as 'order', not {name!r}."
    # A class may define `entity_type` as a property. Then each of its objects has a type of its own.
    require(name and isinstance(name, str | property), said, TypeError)


def _check_key_fields(cls: type[Entity]) -> None:
    names: object = cls.key_fields
    of_fields = isinstance(names, tuple) and all(name in cls.model_fields for name in names)
    one_key = names == Entity.key_fields or cls.partition_key is Entity.partition_key
    if not (of_fields and one_key and 1 <= len(cls.key_fields) <= MOST_LEVELS):
        raise TypeError(
            f"{cls.__name__}.key_fields is {names!r}. It has to be a tuple of 1 to {MOST_LEVELS} field names, in the order of "
            "the container's partition key, and the class must not define `partition_key` as well."
        )


def _check_mark(cls: type[Entity]) -> None:
    field = cls.model_fields["deleted"]
    if field.annotation is not bool or (field.serialization_alias or "deleted") != "deleted":
        raise TypeError(
            f'The store recognizes a deleted {cls.__name__} by `"deleted": true` in its document: `deleted` must '
            "be a field of type bool that is stored under that name."
        )


class SoftDeletable(Entity):
    """
    Base of entities that stay in the store when they are deleted, with `deleted` set. Reads and lists then omit them.

    Subclasses override `delete` to also record an event about the deletion.
    """

    _marked_when_deleted: ClassVar[bool] = True

    deleted: bool = False

    def delete(self) -> None:
        """Mark the entity as deleted; `repository.delete()` calls this."""
        self.deleted = True


def is_deleted(entity: Entity) -> bool:
    """Say whether an entity is marked as deleted."""
    return isinstance(entity, SoftDeletable) and entity.deleted
