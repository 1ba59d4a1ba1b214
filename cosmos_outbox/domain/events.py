"""DomainEvent: something that happened to an entity, published under its name and schema version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cosmos_outbox.domain.sources import new_id, utc_now

DEFAULT_EVENT_TTL = timedelta(days=10)
MIN_TTL, MAX_TTL = timedelta(seconds=1), timedelta(seconds=2**31 - 1)  # what Cosmos DB takes
_ENVELOPE = {"id", "action", "created_at", "createdAt"}
_IMMUTABLE = (str, int, float, bool, type(None), datetime, date, time, timedelta, Decimal, UUID, Enum)


class DomainEvent(BaseModel):
    """
    Base of all events: immutable, with an id that stays the same through every retry and resend.

    The topic drops duplicates by the id, over all partition keys: leave it to its default, or make it unique in the container.

    Subclasses may set, as class variables:

    action          the name consumers see as the message's subject; default: the class name.
    schema_version  the version of the payload's shape; default: 1.
    ttl             how long the stored event lives; default: 10 days.
    coalesce        True: a later event of the same action replaces the earlier one inside one commit.
    implied_by_creation
                    True: the created event already contains it, so the commit that creates the entity omits it.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid")

    action: ClassVar[str]
    schema_version: ClassVar[int] = 1
    ttl: ClassVar[timedelta] = DEFAULT_EVENT_TTL
    coalesce: ClassVar[bool] = False
    implied_by_creation: ClassVar[bool] = False

    id: str = Field(default_factory=new_id)
    created_at: datetime = Field(default_factory=utc_now)

    def __init__(self, /, **data: Any) -> None:
        super().__init__(**data)
        # A payload may have such times. Pydantic calls this for none, except where a subclass has an `__init__` of its own.
        if not type(self).__pydantic_custom_init__ and (naive := next(found(self.__dict__, _is_naive), None)):
            raise ValueError(
                f"The time {naive!r} of {type(self).__name__} has no UTC offset, and is another one elsewhere: make it as datetime.now(UTC)."
            )

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        refuse_taken_names(cls, DomainEvent)
        for name, field in (cls.model_fields | cls.model_computed_fields).items():
            inherited = DomainEvent.model_fields.get(name)
            if inherited and getattr(field, "default_factory", None) is inherited.default_factory:
                continue
            kinds = "alias", "validation_alias", "serialization_alias"
            if taken := _ENVELOPE & names_in(name, *(getattr(field, kind, None) for kind in kinds)):
                raise TypeError(
                    f"{cls.__name__} cannot have a field named {max(taken)!r} of its own, nor read or write {name!r} under that "
                    "name: each event has one, by which it is recognized when it comes again. Give the field another "
                    "name, in the payload too."
                )
        if "action" not in cls.__dict__:
            cls.action = cls.__name__
        if not cls.action or cls.schema_version < 1 or not MIN_TTL <= cls.ttl <= MAX_TTL:
            raise TypeError(
                f"{cls.__name__} needs an action that is not empty, a schema_version of 1 or more and a ttl of 1 s to "
                f"{MAX_TTL.days} days, not {cls.action!r}, {cls.schema_version} and {cls.ttl}."
            )

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """
        Return the event of a message's body, as `payload` wrote it.

        Raises:
            pydantic.ValidationError: it is the payload of another event, or of another version of its shape.
        """
        fields = dict(payload)
        if fields.get("action") == cls.action:
            del fields["action"]
        return cls.model_validate(fields)

    def frozen(self) -> Self:
        """
        Return the event with values of its own, so that it stays as it is when the caller changes those it was made of.
        """
        if all(map(_is_immutable, self.__dict__.values())):
            return self
        return self.model_copy(deep=True)

    def payload(self) -> dict[str, Any]:
        """Return the event's `data` as it is stored and sent: camelCase, JSON types, with its action."""
        data = self.model_dump(mode="json", by_alias=True)
        return {"id": data.pop("id"), "action": self.action, "createdAt": data.pop("createdAt"), **data}


def found(value: Any, wanted: Callable[[Any], bool], *path: str) -> Iterator[str]:
    """Yield the paths, inside of a model, dict or list, of the values that are wanted."""
    if isinstance(value, BaseModel):  # it may iterate over something else than its fields
        value = {**value.__dict__, **(value.__pydantic_extra__ or {})}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in parts:
        if wanted(part):
            yield ".".join((*path, str(name)))
        elif isinstance(part, BaseModel | dict | list | tuple | set | frozenset):
            yield from found(part, wanted, *path, str(name))


def names_in(*aliases: Any) -> set[Any]:
    """Return the names that aliases stand for; of a path, the first."""
    choices = (one for alias in aliases for one in getattr(alias, "choices", [alias]))
    return {getattr(one, "path", [one])[0] for one in choices}


def refuse_taken_names(cls: type[BaseModel], base: type[BaseModel]) -> None:
    """
    Refuse fields that hide what the base class has under their names.

    Raises:
        TypeError: there is one; the message names it.
    """
    of_base = base.__private_attributes__
    private = {name for name, one in cls.__private_attributes__.items() if of_base.get(name) is not one}
    used = {*vars(base), *base.__annotations__} - base.model_fields.keys()
    if taken := used & (cls.model_fields.keys() | private):
        name = min(taken)
        advice = "Give the field another name, and an alias if the document needs this one."
        if name in base.__class_vars__:
            advice = (
                "That is a property of the type: declare it as a ClassVar, or give the field another name."
            )
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
