"""
A topic, to which messages are sent: its limits, duplicate detection, scheduling, and a copy of each message for each subscription.
`queue.py` keeps and delivers the copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from cosmos_outbox_emulators.servicebus.conditions import AmqpError, Condition
from cosmos_outbox_emulators.servicebus.config import TopicConfig
from cosmos_outbox_emulators.servicebus.message import Message
from cosmos_outbox_emulators.servicebus.noted_containers import NotedDeque, NotedDict
from cosmos_outbox_emulators.servicebus.queue import Queue
from cosmos_outbox_emulators.servicebus.rules import DEFAULT_RULE, Rule
from cosmos_outbox_emulators.servicebus.timers import Timer, Timers


class Attached(Protocol):
    """A client's link to a topic or queue. The link is detached when the topic or queue is disabled or deleted."""

    def revoke(self, failure: AmqpError) -> None: ...


@dataclass(slots=True, kw_only=True)
class Subscription:
    queue: Queue
    rules: dict[str, Rule] = field(default_factory=lambda: {DEFAULT_RULE: Rule(name=DEFAULT_RULE)})

    def takes(self, message: Message) -> bool:
        for rule in self.rules.values():  # noqa: SIM110  # any() with a generator doubles the cost of a publication
            if rule.constant or rule.accepts(message):
                return True
        return False


class Topic:
    """A topic with its subscriptions. A queue is a topic whose only subscription is the queue itself."""

    def __init__(self, config: TopicConfig, subscriptions: dict[str, Subscription], timers: Timers) -> None:
        self.config = config
        self.name = config.name
        self.subscriptions = subscriptions
        self.disabled = False
        self.published = self.duplicates = self.transfers = 0
        self.links: set[Attached] = set()
        self._timers = timers
        self._sequence = 0
        self._seen: set[str] = set()
        self._history: deque[tuple[float, str]] = deque()
        self._history_timer: Timer | None = None
        self._scheduled: dict[int, tuple[Timer, Message]] = {}

    @property
    def remembered(self) -> int:
        """Return how many message ids duplicate detection remembers."""
        return len(self._seen)

    @property
    def scheduled(self) -> int:
        return len(self._scheduled)

    @property
    def largest_message(self) -> int:
        return self.config.max_message_size

    def publish(self, messages: list[Message]) -> None:
        """Store all messages of one transfer. If one of them is refused, store none."""
        self._check(messages)
        now = self._timers.now()
        for message in self._first_copies(messages, now):
            if message.scheduled_at is not None and message.scheduled_at > now:
                self._schedule(message, message.scheduled_at)
            else:
                self._store(message, now)

    def schedule(self, messages: list[Message]) -> list[int]:
        """
        Keep messages until their time, and return the numbers by which they can be cancelled. A duplicate is dropped, but it gets
        a number as well.
        """
        self._check(messages)
        now, numbers = self._timers.now(), []
        for message in messages:
            if message.scheduled_at is None:
                raise AmqpError(Condition.ARGUMENT_ERROR, "A message to schedule must have its enqueue time.")
        for message in messages:
            if self._first_copies([message], now):
                numbers.append(self._schedule(message, message.scheduled_at or now))
            else:
                numbers.append(self._next_number())
        return numbers

    def cancel(self, numbers: list[int]) -> None:
        if any(number not in self._scheduled for number in numbers):
            raise AmqpError(Condition.MESSAGE_NOT_FOUND, "The scheduled message does not exist.")
        for number in numbers:
            self._scheduled.pop(number)[0].cancel()
            if self._own_queue:
                self._own_queue.hide_scheduled(number)

    def _check(self, messages: list[Message]) -> None:
        if self.disabled:
            raise AmqpError(Condition.ENTITY_DISABLED, f"The messaging entity '{self.name}' is disabled.")
        sessions_only = self.config.queue and self.config.queue.requires_session
        if sessions_only and any(message.session_id is None for message in messages):
            raise AmqpError(
                Condition.NOT_ALLOWED,
                "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have session "
                "support enabled can only receive messages that have the SessionId set to a valid value.",
            )

    def _schedule(self, message: Message, when: float) -> int:
        number, queue = self._next_number(), self._own_queue

        def enqueue() -> None:
            del self._scheduled[number]
            if queue:
                queue.hide_scheduled(number)
            self._store(message, self._timers.now(), number)

        self._scheduled[number] = self._timers.at(when, enqueue), message
        if queue:
            queue.show_scheduled(message, number, when)
        return number

    @property
    def _own_queue(self) -> Queue | None:
        return self.subscriptions[""].queue if self.config.queue else None

    def _next_number(self) -> int:
        if self._own_queue:
            return self._own_queue.next_sequence()
        self._sequence += 1
        return self._sequence

    def _store(self, message: Message, now: float, number: int | None = None) -> None:
        if number is None and not self.config.queue:
            number = self._next_number()
        self.published += 1
        for subscription in self.subscriptions.values():
            if subscription.takes(message):
                subscription.queue.put(message, now, number)

    # Duplicate detection

    def _first_copies(self, messages: list[Message], now: float) -> list[Message]:
        window = self.config.dedup_window_s
        if window is None:
            return messages
        self._forget(now - window)
        first = []
        for message in messages:
            identity = message.identity
            if identity in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(identity)
            self._history.append((now, identity))
            first.append(message)
        if self._history and self._history_timer is None:
            self._history_timer = self._timers.at(self._history[0][0] + window, self._sweep)
        return first

    def _forget(self, limit: float) -> None:
        history, seen = self._history, self._seen
        while history and history[0][0] <= limit:
            seen.discard(history.popleft()[1])

    def _sweep(self) -> None:
        # A timer calls this method, so that a topic to which no more messages are sent does not keep its last ids for ever.
        window = self.config.dedup_window_s or 0.0
        now = self._timers.now()
        self._forget(now - window)
        due = max(self._history[0][0] + window, now + window / 10) if self._history else None
        self._history_timer = self._timers.at(due, self._sweep) if due is not None else None

    # These methods restore data that was saved before a restart.

    @property
    def last_sequence(self) -> int:
        return self._sequence

    def restore(self, seen: Iterable[tuple[float, str]], scheduled: Iterable[Message], sequence: int) -> None:
        """
        Take over the remembered ids and scheduled messages that were saved before a restart. The scheduled messages get new
        sequence numbers.
        """
        self._sequence = sequence
        for at, identity in seen:
            self._seen.add(identity)
            self._history.append((at, identity))
        self._sweep()
        for message in scheduled:
            self._schedule(message, message.scheduled_at or 0.0)

    def observe(
        self, seen: Callable[[tuple[float, str]], None], scheduled: Callable[[int, object], None]
    ) -> None:
        """
        Call `seen` with each remembered message id, and `scheduled` with the number of each scheduled message. Ids and messages
        that exist are reported at once. Later, each new id is reported, and each scheduled message that is added or removed.
        """
        for remembered in self._history:
            seen(remembered)
        for number, value in self._scheduled.items():
            scheduled(number, value)
        self._history = NotedDeque(self._history, seen)
        self._scheduled = NotedDict(self._scheduled, scheduled)

    def find_scheduled(self, number: int) -> Message | None:
        return self._scheduled[number][1] if number in self._scheduled else None
