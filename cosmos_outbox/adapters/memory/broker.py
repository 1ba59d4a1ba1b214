"""
MemoryBroker: a topic with duplicate detection in memory, which defines the behavior of the Publisher port.

It is for tests and simulations of programs that use this library. A test can make it fail in every way in which a
remote broker fails.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from cosmos_outbox.errors import BrokerUnavailable, MessageRejected, PublishError, TopicUnavailable
from cosmos_outbox.message_format import OutboundMessage, require_properties_that_fit


class Fault(StrEnum):
    """A fault that a test makes a MemoryBroker have when it receives a batch."""

    LOST = "lost"  # the connection breaks before the broker has the batch
    ACK_LOST = "ack-lost"  # the connection breaks after the broker stored the batch
    LATE = "late"  # the sender gets an error, and the batch arrives after that
    BUSY = "busy"  # the broker refuses the batch for now
    NO_TOPIC = "no-topic"  # the topic is missing or disabled


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message that the broker received, with the time and whether the broker dropped it as a duplicate."""

    message: OutboundMessage
    at: float
    duplicate: bool


class MemoryBroker:
    """
    A topic in memory, and every message that arrived at it.

    Args:
        clock: a function that returns the seconds since 1970, by which duplicates are detected and scheduled messages
            enter the topic. Defaults to the system's clock.
        dedup_window_seconds: how long a message id is remembered; None detects no duplicates. Defaults to 600 s.
        max_message_bytes: the largest message that is accepted, counted roughly as body plus properties. Defaults to
            256 KiB.
        rejects: a function that returns True for a message that the broker never accepts. Defaults to accepting all.

    Attributes:
        chokes: a function that returns True for a message at which the broker reports an internal error. Defaults to
            none.
        faults: what happens to the next batches, one entry per batch; None lets a batch through.
        down: whether the broker refuses everything.
        latency_seconds: how long a batch takes to arrive, and its acknowledgement to come back.
        late_seconds: how long after the sender's error a batch with `Fault.LATE` arrives.
        arrivals: all messages that were received, in order, including duplicates and scheduled messages.
        scheduled: the scheduled messages that have not entered the topic yet. Reading the property `accepted` lets in
            those whose time has come.
        entered: the messages that have entered the topic, in order, without dropped duplicates.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        dedup_window_seconds: float | None = 600.0,
        max_message_bytes: int = 256 * 1024,
        rejects: Callable[[OutboundMessage], bool] = lambda message: False,
    ) -> None:
        self._clock, self._window, self._max_bytes = clock, dedup_window_seconds, max_message_bytes
        self.rejects = rejects
        self.chokes: Callable[[OutboundMessage], bool] = lambda message: False
        self.faults: deque[Fault | None] = deque()
        self.down = False
        self.latency_seconds = 0.0
        self.late_seconds = 1.0
        self.arrivals: list[Arrival] = []
        self.entered: list[OutboundMessage] = []
        self.scheduled: list[OutboundMessage] = []
        self._seen: dict[str, float] = {}

    @property
    def accepted(self) -> list[OutboundMessage]:
        """
        Return the messages that have entered the topic until now, in order, without dropped duplicates. A scheduled
        message enters the topic at the time for which it was scheduled.
        """
        self._let_due_enter()
        return [*self.entered]

    @property
    def duplicates(self) -> int:
        """Return how many messages were dropped as duplicates."""
        return sum(arrival.duplicate for arrival in self.arrivals)

    def publisher(self, *, lanes: int = 8, batch_size: int = 100) -> MemoryPublisher:
        """
        Return a new publisher to this topic. Two publishers send independently of each other, as two processes would.
        """
        return MemoryPublisher(self, lanes=lanes, batch_size=batch_size)

    async def send(self, batch: Sequence[OutboundMessage]) -> None:
        """
        Deliver one batch to the topic, all of its messages or none, and return when it is acknowledged. If a test has
        put a fault into `faults`, that fault happens.
        """
        fault = self.faults.popleft() if self.faults else None
        await asyncio.sleep(self.latency_seconds)
        if self.down or fault in (Fault.LOST, Fault.LATE):
            if fault is Fault.LATE and not self.down:
                loop = asyncio.get_running_loop()
                loop.call_later(self.late_seconds, self._arrive_late, tuple(batch))
            raise BrokerUnavailable
        if fault is Fault.BUSY:
            raise BrokerUnavailable(retry_after=2.0)
        if fault is Fault.NO_TOPIC:
            raise TopicUnavailable
        self._check(batch)
        self._store(batch)
        if fault is Fault.ACK_LOST:
            raise BrokerUnavailable
        await asyncio.sleep(self.latency_seconds)

    def _check(self, batch: Sequence[OutboundMessage]) -> None:
        for message in batch:
            if self.chokes(message):
                raise BrokerUnavailable(condition="amqp:internal-error")
            if self.rejects(message) or _size(message) > self._max_bytes:
                raise MessageRejected
            try:
                require_properties_that_fit(message)
            except ValueError as error:
                raise MessageRejected(str(error)) from error

    def _arrive_late(self, batch: Sequence[OutboundMessage]) -> None:
        with suppress(PublishError):
            self._check(batch)
            self._store(batch)

    def _let_due_enter(self) -> float:
        now, waiting = self._clock(), sorted(self.scheduled, key=_due)
        self.entered += [message for message in waiting if _due(message) <= now]
        self.scheduled = [message for message in waiting if _due(message) > now]
        return now

    def _store(self, batch: Sequence[OutboundMessage]) -> None:
        now = self._let_due_enter()
        for message in batch:
            seen = self._seen.get(message.message_id)
            duplicate = self._window is not None and seen is not None and now - seen < self._window
            self.arrivals.append(Arrival(message=message, at=now, duplicate=duplicate))
            if not duplicate:
                self._seen[message.message_id] = now
                (self.scheduled if _due(message) > now else self.entered).append(message)


class MemoryPublisher:
    """Publishes to a MemoryBroker, through the same interface (the port Publisher) as to Service Bus."""

    def __init__(self, broker: MemoryBroker, *, lanes: int, batch_size: int) -> None:
        self._broker, self._batch_size = broker, batch_size
        self._locks = tuple(asyncio.Lock() for _ in range(lanes))

    @property
    def lanes(self) -> int:
        return len(self._locks)

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        async with self._locks[lane]:
            for start in range(0, len(messages), self._batch_size):
                try:
                    await self._broker.send(messages[start : start + self._batch_size])
                except PublishError as error:
                    error.accepted = start
                    raise


def _due(message: OutboundMessage) -> float:
    return 0.0 if message.deliver_at is None else message.deliver_at.timestamp()


def _size(message: OutboundMessage) -> int:
    return len(message.body) + sum(len(name) + len(str(value)) for name, value in message.properties.items())
