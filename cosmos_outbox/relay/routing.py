"""Routing: which topics a message goes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.message_format import OutboundMessage

Names = tuple[str, ...]  # the names of topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """
    The topics of a message: by the action of the event, else by the type of its entity, else the default ones.

    Raises:
        ConfigurationError: a route has no topic, so its events would be lost, or names one twice.
    """

    default: Names
    actions: Mapping[str, Names] = field(default_factory=dict)
    entity_types: Mapping[str, Names] = field(default_factory=dict)

    def __post_init__(self) -> None:
        routes = {"the default": self.default}
        routes |= {f"action {name!r}": topics for name, topics in self.actions.items()}
        routes |= {f"entity type {name!r}": topics for name, topics in self.entity_types.items()}
        wrong = {"needs at least one topic": [name for name, topics in routes.items() if not topics]}
        wrong["names a topic twice"] = [name for name, found in routes.items() if len({*found}) < len(found)]
        if errors := [f"the route of {name} {what}" for what, names in wrong.items() for name in names]:
            raise ConfigurationError("; ".join(errors) + ".")

    @property
    def topics(self) -> Names:
        """Return every topic once, the default ones first."""
        routes = (self.default, *self.actions.values(), *self.entity_types.values())
        return tuple(dict.fromkeys(topic for route in routes for topic in route))

    def topics_of(self, message: OutboundMessage) -> Names:
        """Return the topics of a message."""
        return self.of(message.subject, str(message.properties.get("entity-type", "")))

    def of(self, action: str, entity_type: str) -> Names:
        """Return the topics of an action of an entity of this type."""
        return self.actions.get(action) or self.entity_types.get(entity_type) or self.default


def parse_routes(text: str, *, default: str) -> Routes:
    """
    Return the routes of a line like `action:ContactDeletedEvent=deletions,events; entity:order=orders`.

    Args:
        default: the topic of all that no route names.

    Raises:
        ConfigurationError: names the part that cannot be read.
    """
    routes: dict[str, dict[str, Names]] = {"action": {}, "entity": {}}
    for part in filter(None, map(str.strip, text.split(";"))):
        subject, equals, topics = part.partition("=")
        kind, colon, name = map(str.strip, subject.partition(":"))
        if not (equals and colon and name and kind in routes):
            raise ConfigurationError(
                f"The route {part!r} must read action:NAME=TOPIC,TOPIC or entity:NAME=TOPIC,TOPIC."
            )
        if name in routes[kind]:
            raise ConfigurationError(f"There are two routes for {kind} {name!r}.")
        routes[kind][name] = tuple(filter(None, map(str.strip, topics.split(","))))
    return Routes(default=(default,), actions=routes["action"], entity_types=routes["entity"])
