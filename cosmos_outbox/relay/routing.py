"""
Routing: which topics a message goes to, and a publisher that sends it to all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cosmos_outbox.errors import ConfigurationError, PublishError
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import Publisher
from cosmos_outbox.relay.verdict import JudgedPublisher

Topics = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """
    Topics by what happened (the event's action), else by what it happened to, else the default ones.

    Raises:
        ConfigurationError: a route leads nowhere, for its events would be lost.
    """

    default: Topics
    actions: Mapping[str, Topics] = field(default_factory=dict)
    entity_types: Mapping[str, Topics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {"the default": self.default}
        named |= {f"action {name!r}": topics for name, topics in self.actions.items()}
        named |= {f"entity type {name!r}": topics for name, topics in self.entity_types.items()}
        mistakes = [
            f"the route of {name} needs at least one topic" for name, route in named.items() if not route
        ]
        mistakes += [
            f"the route of {name} names a topic twice"
            for name, route in named.items()
            if len(set(route)) < len(route)
        ]
        if mistakes:
            raise ConfigurationError("; ".join(mistakes) + ".")

    @property
    def topics(self) -> Topics:
        """
        Return every topic once, the default ones first.
        """
        routes = (self.default, *self.actions.values(), *self.entity_types.values())
        return tuple(dict.fromkeys(topic for route in routes for topic in route))

    def topics_of(self, message: OutboundMessage) -> Topics:
        """
        Return where a message goes.
        """
        entity_type = str(message.properties.get("entity-type", ""))
        return self.actions.get(message.subject) or self.entity_types.get(entity_type) or self.default


def parse_routes(text: str, *, default: str) -> Routes:
    """
    Return the routes of a line like `action:ContactDeletedEvent=deletions,events; entity:order=orders`.

    Args:
        default: the topic of all that no route names.

    Raises:
        ConfigurationError: names the part that cannot be read.
    """
    routes: dict[str, dict[str, Topics]] = {"action": {}, "entity": {}}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        subject, equals, topics = part.partition("=")
        kind, colon, name = (word.strip() for word in subject.partition(":"))
        if not (equals and colon and name and kind in routes):
            raise ConfigurationError(
                f"The route {part!r} must read action:NAME=TOPIC,TOPIC or entity:NAME=TOPIC,TOPIC."
            )
        if name in routes[kind]:
            raise ConfigurationError(f"There are two routes for {kind} {name!r}.")
        routes[kind][name] = tuple(filter(None, (topic.strip() for topic in topics.split(","))))
    return Routes(default=(default,), actions=routes["action"], entity_types=routes["entity"])


class RoutedPublisher:
    """
    The Publisher port over several topics: order holds inside each, per session; topics do not wait for one another.

    A message is accepted when all its topics have it. After an error its copies may be in some of them: sent again
    inside their window, they are dropped there by their id. That holds for messages behind a rejected one too: they may
    be in other topics when their partition key is parked, and nothing calls them back.

    Args:
        routes: where messages go.
        publishers: one for each topic that the routes name.

    Raises:
        ConfigurationError: a topic has no publisher.
    """

    judged = True  # each topic by itself: what one takes says nothing of another

    def __init__(self, routes: Routes, publishers: Mapping[str, Publisher]) -> None:
        missing = [topic for topic in routes.topics if topic not in publishers]
        if missing:
            raise ConfigurationError(f"No publisher for topic {', '.join(missing)}.")
        self._routes = routes
        self._publishers = {topic: JudgedPublisher(publisher) for topic, publisher in publishers.items()}

    @property
    def lanes(self) -> int:
        return min(publisher.lanes for publisher in self._publishers.values())

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        positions: dict[str, list[int]] = {}
        for position, message in enumerate(messages):
            for topic in self._routes.topics_of(message):
                positions.setdefault(topic, []).append(position)
        async with asyncio.TaskGroup() as group:
            sendings = {
                topic: group.create_task(self._send(topic, lane, [messages[number] for number in numbers]))
                for topic, numbers in positions.items()
            }
        failures = [
            (positions[topic][error.accepted], error)
            for topic, sending in sendings.items()
            if (error := sending.result()) is not None
        ]
        if failures:
            # A fault that passes comes first: while a topic is away, nobody can tell whether it would reject.
            first = min(position for position, _ in failures)
            _, worst = max(failures, key=lambda failure: (failure[1].retriable, -failure[0]))
            worst.accepted = first
            raise worst

    async def _send(self, topic: str, lane: int, messages: Sequence[OutboundMessage]) -> PublishError | None:
        # Returned, not raised: a task group would cancel what is under way to the other topics.
        try:
            await self._publishers[topic].publish(lane, messages)
        except PublishError as error:
            return error
        return None
