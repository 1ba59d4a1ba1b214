"""
Routing: which topics a message is sent to, by the action of its event or the type of its entity (`OUTBOX_ROUTES`).
`topics_and_refusals.py` sends the message to these topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cosmos_outbox.errors import ConfigurationError
from cosmos_outbox.message_format import OutboundMessage

Names = tuple[str, ...]  # the names of topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """
    The rules that give each message its topics. A rule for the action of the event applies before a rule for the type of the entity. A
    message without a rule goes to the default topics.

    Raises:
        ConfigurationError: a route has no topic, so its events would be lost, or names a topic twice.
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
        """Return the topics of all routes, each once, beginning with the default topics."""
        routes = (self.default, *self.actions.values(), *self.entity_types.values())
        return tuple(dict.fromkeys(topic for route in routes for topic in route))

    def topics_of(self, message: OutboundMessage) -> Names:
        """Return the topics to which a message is sent."""
        return self.of(message.subject, str(message.properties.get("entity-type", "")))

    def of(self, action: str, entity_type: str) -> Names:
        """Return the topics to which events with this action, of entities of this type, are sent."""
        return self.actions.get(action) or self.entity_types.get(entity_type) or self.default


def parse_routes(text: str, *, default: str) -> Routes:
    """
    Return the routes of a line like `action:ContactDeletedEvent=deletions,events; entity:order=orders`.

    Args:
        text: the routes.
        default: the topic of all events for which there is no route.

    Raises:
        ConfigurationError: a part of the text cannot be read; the message names it.
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
