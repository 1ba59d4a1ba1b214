"""
Holds the topics and queues of the broker by their paths, with their statistics, the clock and the faults. It knows no network
protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from cosmos_outbox_emulators.keys import KeyPair
from cosmos_outbox_emulators.servicebus import config as configuration
from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition, entity_not_found
from cosmos_outbox_emulators.servicebus.config import (
    BrokerConfig,
    QueueConfig,
    SubscriptionConfig,
    TopicConfig,
)
from cosmos_outbox_emulators.servicebus.faults import Faults
from cosmos_outbox_emulators.servicebus.queue import Queue
from cosmos_outbox_emulators.servicebus.timers import Timers
from cosmos_outbox_emulators.servicebus.topic import Subscription, Topic

_KEY_BYTES = 32
_DEFAULT = {
    "topics": [
        {
            "name": "events",
            "dedup_window_s": 600,
            "subscriptions": [
                {
                    "name": "all",
                    "requires_session": True,
                    "lock_s": 30,
                    "max_delivery_count": 10,
                    "ttl_s": 604_800,
                    "dead_letter_on_expiration": True,
                }
            ],
        }
    ]
}


class Broker:
    """
    A namespace's topics and queues. The broker reads time only from `clock`, so a test can move the time. The server, or a test,
    has to call `timers.run_due()` at the time `timers.next_due`.
    """

    def __init__(
        self, config: BrokerConfig, *, clock: Callable[[], float] = time.time, random: Random | None = None
    ) -> None:
        self.config = config
        self.keys = {name: KeyPair(key, size=_KEY_BYTES) for name, key in config.sas_keys.items()}
        # The number of seconds by which a test has moved the broker's clock ahead of `clock`, which clients also use
        self.ahead_s = 0.0
        self.timers = Timers(lambda: clock() + self.ahead_s)
        self.faults = Faults(self._go_down)
        self.topics: dict[str, Topic] = {}
        self.queues: dict[str, Queue] = {}
        self.connections = self.refused_connections = 0
        self.on_down: Callable[[], None] | None = None
        self.before_output: Callable[[], None] | None = None
        # Called with each new topic, subscription or queue.
        self.made: Callable[[Topic | Queue], None] | None = None
        self._down_until = 0.0
        self._random = random or Random()
        self._owners: dict[str, Topic] = {}
        for topic in config.topics:
            self.create(topic)

    @classmethod
    def from_config(
        cls, value: Any, *, clock: Callable[[], float] = time.time, random: Random | None = None
    ) -> Broker:
        """
        Return a broker with the topics, subscriptions and queues of this configuration.

        Raises:
            ValueError: the configuration has a mistake. The message names the path of the wrong field.
        """
        return cls(configuration.parse(value), clock=clock, random=random)

    @classmethod
    def default(cls) -> Broker:
        """Return a broker with the topic "events", which drops duplicates for 600 s, and its session subscription "all"."""
        return cls.from_config(_DEFAULT)

    @property
    def first_keys(self) -> KeyPair:
        """Return the keys of the first authorization rule, which the connection strings use."""
        return next(iter(self.keys.values()))

    # Entities

    def add_topic(self, value: dict[str, Any]) -> Topic:
        """Create a topic while the broker runs. `value` has the fields of a topic in the configuration."""
        return self.create(configuration.parse_topic(value, "topic"))

    def add_queue(self, value: dict[str, Any]) -> Topic:
        return self.create(configuration.parse_queue(value, "queue"))

    def delete(self, name: str) -> None:
        """Delete a topic or queue with everything in it, and detach its links."""
        topic = self.topic(name)
        del self.topics[name.lower()]
        self._forget([path for path, owner in self._owners.items() if owner is topic])
        self._revoke(topic, entity_not_found(name))

    def delete_subscription(self, topic_name: str, name: str) -> None:
        """
        Delete a subscription with all its messages. All links of its topic are detached, also those of other subscriptions, whose
        clients connect again.
        """
        topic = self.topic(topic_name)
        path = topic.subscriptions.pop(name).queue.path.lower()
        self._forget([own for own in self._owners if own == path or own.startswith(f"{path}/$")])
        self._revoke(topic, entity_not_found(path))

    def _forget(self, paths: list[str]) -> None:
        for path in paths:
            del self._owners[path]
            del self.queues[path]

    def set_disabled(self, name: str, disabled: bool) -> None:
        """Disable a topic or queue for sending and receiving, or enable it again."""
        topic = self.topic(name)
        topic.disabled = disabled
        for subscription in topic.subscriptions.values():
            subscription.queue.disabled = disabled
        if disabled:
            self._revoke(topic, self.disabled_error(name))

    def detach_links(self, name: str, condition: str = Condition.LINK_DETACH_FORCED) -> None:
        """Detach every link to an entity, as the service does if a link is idle."""
        self._revoke(self.topic(name), AmqpError(condition, "The link was force detached by the broker."))

    @staticmethod
    def _revoke(topic: Topic, failure: AmqpError) -> None:
        for link in list(topic.links):
            link.revoke(failure)

    @staticmethod
    def disabled_error(path: str) -> AmqpError:
        return AmqpError(Condition.ENTITY_DISABLED, f"The messaging entity '{path}' is disabled.")

    def topic(self, path: str) -> Topic:
        topic = self.topics.get(path.lower())
        if topic is None:
            raise entity_not_found(path)
        return topic

    def queue(self, path: str) -> Queue:
        queue = self.queues.get(path.lower())
        if queue is None:
            raise entity_not_found(path)
        return queue

    def owner(self, path: str) -> Topic:
        """Return the topic or queue to which the path of a queue or subscription belongs."""
        return self._owners[path.lower()]

    def create(self, config: TopicConfig) -> Topic:
        """
        Create a topic or queue with this configuration.

        Raises:
            ValueError: an entity with this name exists already.
        """
        if config.name.lower() in self.topics:
            raise ValueError(f"{config.name}: an entity of this name exists already")
        subscriptions: dict[str, Subscription] = {}
        topic = Topic(config, subscriptions, self.timers)
        self.topics[config.name.lower()] = topic
        if config.queue:
            subscriptions[""] = Subscription(queue=self._add_queue(topic, config.name, config.queue))
        for item in config.subscriptions:
            self.create_subscription(topic, item)
        if self.made:
            self.made(topic)
        return topic

    def create_subscription(self, topic: Topic, config: SubscriptionConfig) -> Queue:
        queue = self._add_queue(topic, f"{topic.name}/Subscriptions/{config.name}", config.queue)
        topic.subscriptions[config.name] = Subscription(queue=queue)
        return queue

    def _add_queue(self, topic: Topic, path: str, config: QueueConfig) -> Queue:
        holding = QueueConfig(lock_s=config.lock_s)
        limits = [ttl for ttl in (config.ttl_s, topic.config.ttl_s) if ttl is not None]
        config = replace(config, ttl_s=min(limits) if limits else None)
        dead_letters = Queue(f"{path}/$DeadLetterQueue", holding, timers=self.timers, random=self._random)
        transfer = Queue(
            f"{path}/$Transfer/$DeadLetterQueue", holding, timers=self.timers, random=self._random
        )
        queue = Queue(path, config, timers=self.timers, random=self._random, dead_letters=dead_letters)
        for one in (queue, dead_letters, transfer):
            self.queues[one.path.lower()] = one
            self._owners[one.path.lower()] = topic
            if self.made:
                self.made(one)
        return queue

    # Outages

    @property
    def is_down(self) -> bool:
        return self.timers.now() < self._down_until

    def _go_down(self, seconds: float) -> None:
        self._down_until = self.timers.now() + seconds
        if seconds and self.on_down:
            self.on_down()

    # Statistics

    def stats(self) -> dict[str, Any]:
        """Return all counters in a form that can be written as JSON."""
        return {
            "connections": self.connections,
            "refused_connections": self.refused_connections,
            "faults": self.faults.as_list(),
            "topics": {topic.name: _topic_stats(topic) for topic in self.topics.values()},
        }


def _topic_stats(topic: Topic) -> dict[str, Any]:
    return {
        "published": topic.published,
        "duplicates": topic.duplicates,
        "transfers": topic.transfers,
        "scheduled": topic.scheduled,
        "remembered_ids": topic.remembered,
        "subscriptions": {
            name or topic.name: _queue_stats(subscription.queue)
            for name, subscription in topic.subscriptions.items()
        },
    }


def _queue_stats(queue: Queue) -> dict[str, Any]:
    return {
        "active": queue.active,
        "locked": len(queue.locked),
        "dead_lettered": queue.dead_letters.active if queue.dead_letters else 0,
        "completed": queue.completed,
        "sessions": queue.sessions.count if queue.sessions else 0,
    }
