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
from cosmos_outbox.relay.verdict import judged

Topics = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """
    Topics by the event's action, else by the type of its entity, else the default ones.

    Raises:
        ConfigurationError: a route has no topic, so its events would be lost, or names one twice.
    """

    default: Topics
    actions: Mapping[str, Topics] = field(default_factory=dict)
    entity_types: Mapping[str, Topics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        routes = {"the default": self.default}
        routes |= {f"action {name!r}": topics for name, topics in self.actions.items()}
        routes |= {f"entity type {name!r}": topics for name, topics in self.entity_types.items()}
        wrong = {"needs at least one topic": [name for name, topics in routes.items() if not topics]}
        wrong["names a topic twice"] = [name for name, found in routes.items() if len({*found}) < len(found)]
        if errors := [f"the route of {name} {what}" for what, names in wrong.items() for name in names]:
            raise ConfigurationError("; ".join(errors) + ".")

    @property
    def topics(self) -> Topics:
        """
        Return every topic once, the default ones first.
        """
        routes = (self.default, *self.actions.values(), *self.entity_types.values())
        return tuple(dict.fromkeys(topic for route in routes for topic in route))

    def topics_of(self, message: OutboundMessage) -> Topics:
        """
        Return the topics of a message.
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


class RoutedPublisher:
    """
    The Publisher port over several topics: order holds inside each, per session; topics do not wait for one another.

    A message is accepted when all its topics have it. After an error, some topics may have copies of messages that were not
    accepted, also of those behind a rejected one; a topic drops the copy by its id when the message is sent again in time.

    Args:
        routes: which messages go to which topics.
        publishers: one for each topic that the routes name.

    Raises:
        ConfigurationError: a topic has no publisher.
    """

    judged = True  # each topic by itself: what one topic accepts shows nothing about another

    def __init__(self, routes: Routes, publishers: Mapping[str, Publisher]) -> None:
        missing = [topic for topic in routes.topics if topic not in publishers]
        if missing:
            raise ConfigurationError(f"No publisher for topic {', '.join(missing)}.")
        self._routes = routes
        self._publishers = {topic: judged(publisher) for topic, publisher in publishers.items()}
        self.lanes = min(publisher.lanes for publisher in publishers.values())

    @property
    def batch_bytes(self) -> int | None:
        sizes = [getattr(publisher, "batch_bytes", None) for publisher in self._publishers.values()]
        return min((size for size in sizes if size is not None), default=None)

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        positions: dict[str, list[int]] = {}
        for position, message in enumerate(messages):
            for topic in self._routes.topics_of(message):
                positions.setdefault(topic, []).append(position)

        async def send(topic: str) -> tuple[int, PublishError] | None:
            # The error is returned, not raised: a task group would cancel the sends to the other topics.
            try:
                await self._publishers[topic].publish(lane, [messages[number] for number in positions[topic]])
            except PublishError as error:
                return positions[topic][error.accepted], error
            return None

        async with asyncio.TaskGroup() as group:
            sending = [group.create_task(send(topic)) for topic in positions]
        if failures := [failure for task in sending if (failure := task.result()) is not None]:
            # A retriable error comes first: while a topic is away, it is unknown whether it would reject the message.
            _, worst = max(failures, key=lambda failure: (failure[1].retriable, -failure[0]))
            worst.accepted = min(position for position, _ in failures)
            raise worst
