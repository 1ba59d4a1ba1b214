"""Routing: which topics a message goes to, and what sends it to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from cosmos_outbox.errors import ConfigurationError, PublishError
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.ports import Publisher
from cosmos_outbox.relay.refusals import Send
from cosmos_outbox.relay.spans import Around

Names = tuple[str, ...]  # of topics
Shape = Callable[[OutboundMessage], OutboundMessage]
Through = Callable[[str, Send, Sequence[OutboundMessage]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """
    Topics by the event's action, else by the type of its entity, else the default ones.

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


class Topics:
    """
    All topics of a relay as one Publisher: each message is shaped, then sent to the topics of its route, all side by side.

    Order holds inside each topic, per session; topics do not wait for one another. A message is accepted when all its topics
    have it. After an error, some topics may have copies of messages that were not accepted, also of those behind a rejected
    one; a topic drops the copy by its id when the message is sent again in time.

    Args:
        publishers: by topic, one for each that the routes name.
        routes: which messages go to which topics. Defaults to all to the only one.
        shape: makes of a message what leaves. Defaults to the message as it is.
        around: surrounds each send to a topic. Defaults to nothing.

    Raises:
        ConfigurationError: a topic has no publisher.
    """

    def __init__(
        self,
        publishers: Mapping[str, Publisher],
        routes: Routes | None = None,
        *,
        shape: Shape | None = None,
        around: Around = lambda topic, messages: nullcontext(),
    ) -> None:
        self._routes = routes or Routes(default=tuple(publishers))
        missing = [topic for topic in self._routes.topics if topic not in publishers]
        if missing:
            raise ConfigurationError(f"No publisher for topic {', '.join(missing)}.")
        self._publishers, self._shape, self._around = dict(publishers), shape, around
        self.lanes = min(publisher.lanes for publisher in publishers.values())

    @property
    def batch_bytes(self) -> int | None:
        sizes = [getattr(publisher, "batch_bytes", None) for publisher in self._publishers.values()]
        return min((size for size in sizes if size is not None), default=None)

    async def publish(
        self, lane: int, messages: Sequence[OutboundMessage], through: Through | None = None
    ) -> None:
        """Send messages as the port says; `through` calls what sends to one topic."""
        positions: dict[str, list[int]] = {}
        for position, message in enumerate(messages):
            for topic in self._routes.topics_of(message):
                positions.setdefault(topic, []).append(position)
        shaped = messages if self._shape is None else [self._shape(message) for message in messages]

        async def send(topic: str) -> tuple[int, PublishError] | None:
            # The error is returned, not raised: a task group would cancel the sends to the other topics.
            send_now, due = partial(self._send, topic, lane), [shaped[number] for number in positions[topic]]
            try:
                await (send_now(due) if through is None else through(topic, send_now, due))
            except PublishError as error:
                return positions[topic][error.accepted], error
            return None

        if len(positions) == 1:
            outcomes = [await send(*positions)]
        else:
            async with asyncio.TaskGroup() as group:
                sending = [group.create_task(send(topic)) for topic in positions]
            outcomes = [task.result() for task in sending]
        if failures := [outcome for outcome in outcomes if outcome is not None]:
            # A retriable error comes first: while a topic is away, it is unknown whether it would reject the message.
            _, worst = max(failures, key=lambda failure: (failure[1].retriable, -failure[0]))
            worst.accepted = min(position for position, _ in failures)
            raise worst

    async def _send(self, topic: str, lane: int, messages: Sequence[OutboundMessage]) -> None:
        with self._around(topic, messages):
            await self._publishers[topic].publish(lane, messages)
