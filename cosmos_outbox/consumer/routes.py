"""
Routes: which handler takes a message, by its subject and schema version, and the event that the handler is given. `handling.py`
calls the handler.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from cosmos_outbox.domain.events import DomainEvent, Upcaster
from cosmos_outbox.errors import MessageUnreadable, UnknownVersion
from cosmos_outbox.message_format import DIGITS, Message
from cosmos_outbox.received_cloudevents import EXTENSIONS, PREFIXES, CloudEvent, inner_json
from cosmos_outbox.stored_documents import first_error, time_of
from cosmos_outbox.write.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """
    A handler, and the types of its arguments.

    version: the schema version that the handler takes; None if it takes all.
    upcasters: for each earlier version, the function that turns its payload into that of the next version.
    permanent: errors after which another attempt would fail again.
    """

    handler: Callable[[Any, Message, Any], Awaitable[None]]
    model: type[BaseModel]
    version: int | None
    upcasters: Mapping[int, Upcaster]
    permanent: tuple[type[Exception], ...]
    kind: type[UnitOfWork]


class Found(NamedTuple):
    """
    The handler of a message, the event that it is given, and when the event was created, if the message says so.
    """

    route: Route
    event: BaseModel
    created_at: datetime | None


def _event_in(message: Message) -> CloudEvent | None:
    """Return the CloudEvent that a message contains, or None. To save time, parse only bodies that have the words of a CloudEvent."""
    says = b"specversion" in message.body or "cloudevents" in (message.content_type or "").lower()
    says = says or any(name.startswith(PREFIXES) for name in message.properties)
    return message.cloud_event if says else None


def unwrap(message: Message) -> Message:
    """
    Return a message as a handler gets it. A message that contains no CloudEvent stays as it is.

    Of a CloudEvent, the type becomes the subject of the message, and the extension attributes become properties that the message lacks. A
    message without an id gets one from the event's `source` and `id`, which the specification makes unique together.
    """
    try:
        event = _event_in(message)
    except MessageUnreadable:
        return message  # leave the message as it is: `find` reads it again and raises the error
    if event is None:
        return message
    extensions = event.extensions
    carried = {name: extensions[other] for name, other in EXTENSIONS.items() if other in extensions}
    return replace(
        message,
        message_id=message.message_id or f"{event.source} {event.id}",
        subject=event.type,
        properties={**carried, **message.properties},
    )


class Routes:
    """The handlers of a consumer, by the subject and schema version of the messages that they take."""

    def __init__(self) -> None:
        self._routes: dict[str, dict[int | None, Route]] = {}

    @property
    def subjects(self) -> frozenset[str]:
        return frozenset(self._routes)

    def __iter__(self) -> Iterator[tuple[str, Route]]:
        """Yield each subject for which there is a handler, with the handler's `Route`. A subject comes once for each schema version."""
        return ((subject, route) for subject, versions in self._routes.items() for route in versions.values())

    def add(self, subject: str, route: Route) -> None:
        """
        Add the handler of a subject, for the schema version that it takes.

        Raises:
            TypeError: the subject already has a handler for this version.
        """
        versions = self._routes.setdefault(subject, {})
        if versions and (route.version in versions or None in (route.version, *versions)):
            raise TypeError(
                f"Another handler already takes the subject {subject!r}, version {route.version or 'any'}."
            )
        versions[route.version] = route

    def find(self, message: Message) -> Found | None:
        """
        Return the handler of a message and the event to give to it; None if no handler takes the subject.

        Raises:
            UnknownVersion: no handler takes the message's schema version, and no upcasters lead from it to a version that a handler takes.
            MessageUnreadable: the body does not fit the event that the handler takes, or the schema version is no number.
        """
        # Read the CloudEvent first: if it cannot be read, the error must say so, and not that its subject has no handler.
        event = _event_in(message)
        if (versions := self._routes.get(message.subject)) is None:
            return None
        payload = _payload(message, event)
        created_at = time_of(payload.get("createdAt"))  # producers without this library do not write this
        version = None if None in versions else _schema_version(message)
        if (route := versions.get(version)) is None:
            route, steps = _next(message, versions)
            for earlier, upcaster in enumerate(steps, (route.version or 1) - len(steps)):
                payload = upcaster(payload)
                if not isinstance(payload, dict):
                    said = f"from version {earlier} returned {payload!r:.20}, and should return the payload, a dict"
                    raise TypeError(f"The upcaster of {message.subject} {said}.")
        return Found(route, _event(route.model, message, payload), created_at)

    def permanent(self, message: Message) -> tuple[type[Exception], ...]:
        """Return the errors that the handlers of a message's subject declare permanent."""
        routes = self._routes.get(message.subject, {}).values()
        return tuple(error for route in routes for error in route.permanent)


def _next(message: Message, versions: Mapping[int | None, Route]) -> tuple[Route, list[Upcaster]]:
    """
    Return a handler for a message of an earlier schema version, and the upcasters that bring its payload to the version of that handler. If
    there are several such handlers, choose the one for the lowest version.

    Raises:
        UnknownVersion: the upcasters lead to no version that a handler takes.
    """
    said, taken = _schema_version(message), sorted(known or 0 for known in versions)
    advice = ""
    for later in (known for known in taken if known > said):
        route, steps = versions[later], range(said, later)
        missing = [step for step in steps if step not in route.upcasters]
        if not missing:
            return route, [route.upcasters[step] for step in steps]
        advice = advice or f", or give {route.model.__name__} an upcaster from version {missing[0]}"
    raise UnknownVersion(
        f"{message.subject} {message.message_id!r} has schema version {said}; this consumer takes "
        f"{', '.join(map(str, taken))}. Deploy a consumer that takes it{advice}."
    )


def _payload(message: Message, event: CloudEvent | None) -> dict[str, Any]:
    """
    Return the JSON object in the body of a message; for a CloudEvent, its data.

    Raises:
        MessageUnreadable: the body holds no JSON object.
    """
    try:
        body = json.loads(message.body) if event is None else event.data
    except (ValueError, RecursionError) as error:
        raise MessageUnreadable(f"The body of {_label(message)} is no JSON: {error}") from error
    if isinstance(body, str):
        body = inner_json(body)
    if not isinstance(body, dict):
        raise MessageUnreadable(
            f"The body of {_label(message)} is no JSON object but {type(body).__name__}: have its sender send one object in each message."
        )
    return body


def _schema_version(message: Message) -> int:
    said = message.properties.get("schema-version")
    if isinstance(said, str) and DIGITS.fullmatch(said):
        return int(said) or 1
    if said is None or (isinstance(said, int) and not isinstance(said, bool)):
        return said or 1
    raise MessageUnreadable(f"The schema version of {_label(message)} is no whole number: {said!r:.100}")


def _event(model: type[BaseModel], message: Message, payload: Mapping[str, Any]) -> BaseModel:
    try:
        if issubclass(model, DomainEvent):
            return model.from_payload(payload)
        return model.model_validate(payload)
    except ValidationError as error:
        field, reason = first_error(error)
        raise MessageUnreadable(
            f"The body of {_label(message)} is no {model.__name__}: {field}: {reason}"
        ) from error


def _label(message: Message) -> str:
    return f"{message.subject or 'a message without subject'} {message.message_id!r}"
