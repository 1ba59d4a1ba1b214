"""
DomainEvent, the base class of events: something that happened to an entity, published under a name and a schema version.

The class also says how long its stored events live (`ttl`).

This module also has Progress, which keeps the events that a document recorded since its last commit, and the sources of new ids and
times.
"""

from __future__ import annotations

import functools
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from itertools import chain
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import SchemaSerializer
from pydantic_core.core_schema import any_schema, plain_serializer_function_ser_schema

from cosmos_outbox.errors import UsageError, require
from cosmos_outbox.partition_key import bytes_of

DEFAULT_EVENT_TTL = timedelta(days=10)
# The shortest and the longest time to live that Cosmos DB accepts for a document
MIN_TTL, MAX_TTL = timedelta(seconds=1), timedelta(seconds=2**31 - 1)
# A time of delivery is converted to UTC, which `datetime` can do only between these two times.
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
# An etag that matches no document. The library uses it for a stored entity whose etag it does not know. The next commit of that entity
# then fails with PreconditionFailed, instead of overwriting another program's change.
UNKNOWN_ETAG = '"unknown"'
_LOST, _LOSSY, _ANY = "\0lost", (tuple, set, frozenset, Decimal), any_schema()
_ENVELOPE = {"id", "action", "created_at", "createdAt"}
_NESTED = (BaseModel, dict, list, tuple, set, frozenset)
_IMMUTABLE = (str, int, float, bool, type(None), datetime, date, time, timedelta, Decimal, uuid.UUID, Enum)

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]


def _random_id() -> str:
    # This makes the same kind of UUID as `str(uuid.uuid4())` in half the time. A commit needs one id for itself and one for each event.
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{'89ab'[int(digits[16], 16) % 4]}{digits[17:20]}-{digits[20:]}"


# A stack of pairs of functions, which return the time and a new id. The last pair is used. `fixed` adds a
# pair for its block.
_sources: list[tuple[Callable[[], datetime], Callable[[], str]]] = [(lambda: datetime.now(UTC), _random_id)]


def new_id() -> str:
    """Return a random UUID (version 4). Inside a block of `fixed`, as in a test, return the id that the block provides."""
    return _sources[-1][1]()


def utc_now() -> datetime:
    """Return the time in UTC. Inside a block of `fixed`, as in a test, return the time that the block provides."""
    return _sources[-1][0]()


@contextmanager
def fixed(
    *, now: datetime | Callable[[], datetime] | None = None, ids: Callable[[], str] | None = None
) -> Iterator[None]:
    """
    Inside this block, let the entities, events and commits of the process get the given ids and times, so that a test can expect them.

    Args:
        now: the time, or a function that returns it. Defaults to the source that is used outside of the block.
        ids: a function that returns a new id at each call. Defaults to the source that is used outside of the block.
    """
    time, make = _sources[-1]
    read = (lambda: now) if isinstance(now, datetime) else now
    _sources.append((read or time, ids or make))
    try:
        yield
    finally:
        _sources.pop()


class DomainEvent(BaseModel):
    """
    Base of all events: immutable, with an id that stays the same through every retry and resend.

    The topic drops a second message with the same id, whatever its partition key. So leave the id to its default, or make it unique in
    the container.

    Subclasses may set, as class variables:

    action          the name consumers see as the message's subject; default: the class name.
    schema_version  the version of the payload's shape; default: 1.
    upcasters       for each earlier schema version, the function that turns its payload into that of the next version. Every consumer of
                    the event uses these functions. Default: none.
    ttl             how long the stored event lives; default: 10 days.
    coalesce        True: if one commit has several events of this action, the latest replaces the others.
    implied_by_creation
                    True: the event from `Entity.created_event` already says the same, so the commit that creates the entity leaves
                    this event out.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid")

    action: ClassVar[str]
    schema_version: ClassVar[int] = 1
    upcasters: ClassVar[Mapping[int, Upcaster]] = {}
    ttl: ClassVar[timedelta] = DEFAULT_EVENT_TTL
    coalesce: ClassVar[bool] = False
    implied_by_creation: ClassVar[bool] = False

    id: str = Field(default_factory=new_id)
    created_at: datetime = Field(default_factory=utc_now)

    def __init__(self, /, **data: Any) -> None:
        refuse_unknown(type(self), data)
        super().__init__(**data)
        # Refuse a time without a UTC offset if application code creates the event. A received payload may
        # contain one, and pydantic reads it without this method. A subclass with an `__init__` of its own is
        # not checked, because pydantic calls it for payloads too.
        if not type(self).__pydantic_custom_init__ and (naive := next(find(self.__dict__, _is_naive), None)):
            raise ValueError(
                f"The time {naive!r} of {type(self).__name__} has no UTC offset, so another machine may read it as another moment. Use a time with an offset, such as datetime.now(UTC)."
            )

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        refuse_taken_names(cls, DomainEvent)
        for name, said in (cls.model_fields | cls.model_computed_fields).items():
            inherited = DomainEvent.model_fields.get(name)
            if inherited and getattr(said, "default_factory", None) is inherited.default_factory:
                continue
            kinds = "alias", "validation_alias", "serialization_alias"
            if taken := _ENVELOPE & names_in(name, *(getattr(said, kind, None) for kind in kinds)):
                raise TypeError(
                    f"{cls.__name__} cannot have a field {name!r} that is named {max(taken)!r} in Python or in the "
                    "payload: every event has a field of that name, which identifies it when it is delivered again. Give "
                    "the field another name, in the payload too."
                )
        if "action" not in cls.__dict__:
            cls.action = cls.__name__
        text = f"{cls.__name__}.ttl has to be a timedelta of 1 s to {MAX_TTL.days} days, such as timedelta(days=1), not {cls.ttl!r}."
        require(isinstance(cls.ttl, timedelta) and MIN_TTL <= cls.ttl <= MAX_TTL, text, TypeError)
        text = f"{cls.__name__}.schema_version has to be a whole number from 1, such as 2, not {cls.schema_version!r}."
        require(isinstance(cls.schema_version, int) and cls.schema_version >= 1, text, TypeError)
        text = f"{cls.__name__}.action has to be a text that is not empty, such as 'OrderPaid', not {cls.action!r}."
        require(isinstance(cls.action, str) and cls.action, text, TypeError)
        check_upcasters(cls.__name__, cls.upcasters, leading_to=cls.schema_version)

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """
        Return the event whose payload is in the body of a message, as `payload` wrote it.

        Raises:
            pydantic.ValidationError: the payload is that of another type of event, or of another schema version.
        """
        fields = dict(payload)
        if fields.get("action") == cls.action:
            del fields["action"]
        return cls.model_validate(fields)

    def frozen(self) -> Self:
        """
        Return the event in a form that stays the same if the caller later changes a list or dict in it: the event itself if all its values
        are immutable, else a deep copy.
        """
        return self if all(map(_is_immutable, self.__dict__.values())) else self.model_copy(deep=True)

    def payload(self) -> dict[str, Any]:
        """Return the payload as it is stored in `data` and sent: JSON types under camelCase names, with id, action and time of creation."""
        data = self.model_dump(mode="json", by_alias=True)
        return {"id": data.pop("id"), "action": self.action, "createdAt": data.pop("createdAt"), **data}


def check_upcasters(model: str, upcasters: Mapping[int, Upcaster], *, leading_to: int) -> None:
    """
    Check that each upcaster starts at an earlier schema version than the one that the model takes.

    Raises:
        TypeError: an upcaster does not start at an earlier version, so it would never be called.
    """
    if unused := upcasters.keys() - range(1, leading_to):
        raise TypeError(
            f"{model} takes schema version {leading_to}, so its upcasters start at earlier versions, not at "
            f"{max(unused, key=str)!r}. Name the version that the class takes, and raise it with each change of its fields."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEvents:
    """
    The events that a commit writes, and in `settled` the ids of the recorded events that no later commit has to write.

    An event that the commit leaves out, because the creation of the entity implies it, is also in `settled`.
    """

    events: tuple[DomainEvent, ...] = ()
    settled: frozenset[str] = frozenset()


@dataclass(slots=True)
class Progress:
    """
    The state of a document between commits: its etag, its stored form and its recorded events.

    An entity holds this object itself. For a document of the application's own shape, the unit of work holds it beside the document.
    """

    version: int = 0
    etag: str | None = None  # the etag under which the document may be replaced; None before the first commit
    stored: Mapping[str, Any] | None = None  # the document as it was last read or written
    recorded: list[DomainEvent] = field(default_factory=list)
    created: DomainEvent | None = None
    closed: str | None = None  # why no commit writes this object any more; None while a commit may write it
    # by the id of each recorded event: the time at which consumers get the event; None means at once
    deliver_at: dict[str, datetime | None] = field(default_factory=dict)
    # a weak reference to the unit of work that writes the document
    tracked_by: Callable[[], Any] | None = field(default=None, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Leave out `tracked_by`: a copy or a pickle belongs to no unit of work, and a weak reference cannot be pickled.
        kept = self.version, self.etag, self.stored, list(self.recorded), self.created, self.closed
        return Progress, (*kept, {**self.deliver_at})

    @property
    def shown_etag(self) -> str | None:
        """Return the etag of the stored document; None if the etag is not known, or there is no document yet."""
        return None if self.etag == UNKNOWN_ETAG else self.etag

    def record(
        self, event: DomainEvent, *, kind: str, document_id: str, deliver_at: datetime | None = None
    ) -> None:
        """
        Record that something happened to the document of this type and id.

        Raises:
            UsageError: `event` is no DomainEvent; no commit writes this object any more; or `deliver_at` has no UTC offset, or lies outside
                of the years 1 to 9999.
        """
        if not isinstance(event, DomainEvent):
            raise UsageError(f"`record` takes a DomainEvent such as OrderPaid(...), not {event!r:.100}.")
        if self.closed is not None:
            raise UsageError(
                f"{kind} {document_id!r} {self.closed}, so no commit would write {event.action}: read it again and change that "
                "object."
            )
        timed = isinstance(deliver_at, datetime) and not _is_naive(deliver_at)
        if deliver_at is not None and not (timed and _FIRST <= deliver_at <= _LAST):
            raise UsageError(
                f"{event.action} cannot be delivered at {deliver_at!r}: that is no time with a UTC offset within the "
                "years 1 to 9999. Give one such as datetime.now(UTC) + timedelta(hours=1)."
            )
        event = event.frozen()
        self.deliver_at[event.id] = deliver_at
        if event.coalesce:
            for position, earlier in enumerate(self.recorded):
                if earlier.action == event.action:
                    self.recorded[position] = event
                    return
        self.recorded.append(event)

    def take(self, created_event: Callable[[], DomainEvent | None] | None) -> CommitEvents:
        """Return the events that a commit would write now. For a new document, the event from `created_event` comes first."""
        settled = frozenset([event.id for event in self.recorded])
        created = created_event() if created_event and self.version == 0 else None
        if created is None:
            return CommitEvents(events=tuple(self.recorded), settled=settled)
        created = created.frozen()
        if (first := self.created) is not None:
            # An earlier attempt at this commit may have written the event, so a repeated attempt must use the same id and time.
            created = created.model_copy(update={"id": first.id, "created_at": first.created_at})
        self.created = created
        # The created event replaces the events that the creation implies, except those that are delivered later.
        rest = (one for one in self.recorded if not one.implied_by_creation or self.deliver_at.get(one.id))
        return CommitEvents(events=(created, *rest), settled=settled)

    def note_commit(
        self,
        *,
        version: int,
        etag: str | None,
        taken: CommitEvents = CommitEvents(),
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        """Update the state after a successful commit: drop the events that the commit settled, and keep those that were recorded since."""
        self.recorded = [event for event in self.recorded if event.id not in taken.settled]
        self.deliver_at = {event.id: self.deliver_at.get(event.id) for event in self.recorded}
        self.version, self.etag, self.stored, self.created = version, etag, stored, None


def find(value: Any, wanted: Callable[[Any], bool], *path: str) -> Iterator[str]:
    """Yield the path, such as `lines.0.price`, of each value inside a model, dict or list for which `wanted` returns True."""
    # read the fields of a model, because a model may define an `__iter__` that yields other things
    if isinstance(value, BaseModel):
        value = {**value.__dict__, **(value.__pydantic_extra__ or {})}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in parts:
        if wanted(part):
            yield ".".join((*path, str(name)))
        elif not isinstance(part, _IMMUTABLE) and isinstance(part, _NESTED):
            yield from find(part, wanted, *path, str(name))


def find_lost_part(event: DomainEvent) -> str | None:
    """
    Return the path of a value of an event that JSON would change without an error, such as a tuple; None if there is none.

    Only fields that accept any type can hold such a value.
    """
    marking = _marking(type(event))
    said = marking.to_python(event, mode="json", warnings=False) if marking else {}
    said |= _mark(event.__pydantic_extra__ or {})
    return next(find(said, lambda part: part == _LOST), None) if said else None


def has_no_json(value: Any) -> bool:
    """Say whether JSON cannot hold a value: a text that UTF-8 cannot encode, or a number that is infinite or NaN."""
    if isinstance(value, str):
        return bytes_of(value) is None
    return isinstance(value, float) and not math.isfinite(value)


def is_rounded(value: Any) -> bool:
    """Say whether a value is an integer of more than 64 bits, which Cosmos DB would round."""
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return False
    try:
        number = float(value)
    except OverflowError:
        return True
    # Cosmos DB stores the nearest float, and returns the shortest decimal digits that name this float. So the integer is unchanged if it
    # equals the float, or the number that these digits name.
    return value not in (int(number), int(Decimal(repr(number))))


def _mark(value: Any) -> Any:
    """Return a copy of a value that has `_LOST` in place of each part that JSON would change or could not hold."""
    if isinstance(value, dict):
        return {str(name): _mark(one) if isinstance(name, str) else _LOST for name, one in value.items()}
    if isinstance(value, list):
        return [_mark(one) for one in value]
    return _LOST if isinstance(value, _LOSSY) or has_no_json(value) else value


@functools.cache
def _marking(kind: type[DomainEvent]) -> SchemaSerializer | None:
    """
    Return a serializer for events of a class. In fields that accept any type, it writes `_LOST` in place of values that JSON would change.
    Return None if the class has no such field.
    """
    if "'type': 'any'" not in str(schema := kind.__pydantic_core_schema__):
        return None
    try:
        return SchemaSerializer(_with_marks(schema), _use_prebuilt=False)
    except TypeError:
        # Pydantic before 2.12 does not know `_use_prebuilt`. There, a value inside a nested model is not marked as one that JSON would change.
        return SchemaSerializer(_with_marks(schema))


def _with_marks(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return (tuple if isinstance(schema, tuple) else list)(map(_with_marks, schema))
    if not isinstance(schema, dict) or "serialization" in schema:  # the field has a serializer of its own
        return schema
    if schema.get("type") == "any" or schema.get("keys_schema") == schema.get("values_schema") == _ANY:
        return {**schema, "serialization": plain_serializer_function_ser_schema(_mark)}
    return {name: _with_marks(part) for name, part in schema.items()}


def names_in(*aliases: Any) -> set[Any]:
    """Return the names under which input may hold a field that has these aliases. Of an AliasPath, return the first part."""
    choices = (one for alias in aliases for one in getattr(alias, "choices", [alias]))
    return {getattr(one, "path", [one])[0] for one in choices}


def refuse_unknown(kind: type[BaseModel], data: Mapping[str, Any]) -> None:
    """Raise TypeError if a constructor gets an argument that its class does not have."""
    if (taken := _arguments(kind)) and (unknown := data.keys() - taken):
        near = " or ".join(get_close_matches(min(unknown), kind.model_fields, n=1) or kind.model_fields)
        raise TypeError(f"{kind.__name__} has no field {min(unknown)!r}. Did you mean {near}?")


@functools.cache
def _arguments(kind: type[BaseModel]) -> frozenset[Any]:
    """
    Return the names that a constructor accepts: fields, their aliases, and computed fields, which `model_dump` returns. Return an empty
    set if the class has a validator, an `__init__` or a setting of its own, so that it may accept other names.
    """
    validators = kind.__pydantic_decorators__.model_validators.values()
    takes_any = any(validator.info.mode != "after" for validator in validators)
    if takes_any or kind.model_config.get("extra", "forbid") != "forbid" or kind.__pydantic_custom_init__:
        return frozenset()
    aliases = (field.validation_alias for field in kind.model_fields.values())
    computed = ((name, field.alias) for name, field in kind.model_computed_fields.items())
    return frozenset(names_in(*kind.model_fields, *chain(*computed), *aliases))


def refuse_taken_names(cls: type[BaseModel], base: type[BaseModel]) -> None:
    """
    Check that no field of a class has the name of a method or property of its base class.

    Raises:
        TypeError: a field hides a member of the base class; the message names the field.
    """
    of_base = base.__private_attributes__
    private = {name for name, one in cls.__private_attributes__.items() if of_base.get(name) is not one}
    used = {*vars(base), *base.__annotations__} - base.model_fields.keys()
    if taken := used & (cls.model_fields.keys() | private):
        name = min(taken)
        advice = "Give the field another name, and an alias if the document needs this one."
        if name in base.__class_vars__:
            advice = "It is a property of the type: declare it as a ClassVar, or give the field another name."
        raise TypeError(
            f"{cls.__name__} cannot have a field named {name!r}: {base.__name__} uses that name. {advice}"
        )


def _is_immutable(value: object) -> bool:
    if isinstance(value, _IMMUTABLE):
        return True
    if isinstance(value, BaseModel):
        return value.model_config.get("frozen") is True and all(map(_is_immutable, value.__dict__.values()))
    return isinstance(value, tuple) and all(map(_is_immutable, value))


def _is_naive(value: Any) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is None
