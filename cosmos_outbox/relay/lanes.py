"""
Lanes: one lane's share of a page is sent in order; a message that can never be sent stops only its own partition key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field

from cosmos_outbox.correlation import inside_trace
from cosmos_outbox.errors import MessageRejected, PublishError, TopicRefusesAll, TopicUnavailable
from cosmos_outbox.ports import Publisher
from cosmos_outbox.records import EventRejected, Hook, MessagesPublished, PublishFailed, PublishHalted, Record
from cosmos_outbox.relay.plan import Delivery, EventKey, group_by_key
from cosmos_outbox.retries import Backoff

_ATTEMPTS_BEFORE_POLL = 5  # at the same messages; an operator may have parked their key by hand meanwhile


@dataclass(slots=True)
class Rejection:
    """
    An event whose message the topic will never take.
    """

    delivery: Delivery
    error: MessageRejected
    attempts: int


@dataclass(slots=True)
class LaneResult:
    """
    How far a lane came. Events behind one that stopped, of the same partition key, are in no list.

    doubted: events whose refusal may be the topic's fault.
    parked_by_hand: events whose keys an operator parked while the broker did not answer.
    """

    accepted: set[EventKey] = field(default_factory=set)
    rejected: list[Rejection] = field(default_factory=list)
    doubted: list[tuple[Delivery, TopicRefusesAll]] = field(default_factory=list)
    parked_by_hand: list[Delivery] = field(default_factory=list)


class LaneSender:
    """
    Sends to the topic, backs off while the broker is unavailable, and halves what is refused until the message is found.
    """

    def __init__(self, publisher: Publisher, *, backoff: Backoff, notify: Hook) -> None:
        self.publisher = publisher
        self.took_something = False  # the topic accepted at least one message
        self._backoff, self._notify = backoff, notify

    async def send(
        self, lane: int, due: Sequence[Delivery], *, parked_meanwhile: Callable[[], Awaitable[Container[str]]]
    ) -> LaneResult:
        """
        Send events in order; return when each is accepted or stopped.

        Args:
            lane: the lane.
            due: the events.
            parked_meanwhile: returns the keys that operators have parked by hand; called while the broker keeps failing.
        """
        result = LaneResult()
        stopped: set[str] = set()
        chunks = deque([(list(due), 1)])  # and which attempt at its messages this is
        failures = 0
        clock = asyncio.get_running_loop().time
        while chunks:
            waiting, attempts = chunks.popleft()
            chunk = [delivery for delivery in waiting if delivery.event.partition_key not in stopped]
            if not chunk:
                continue
            started = clock()
            try:
                await self.publisher.publish(lane, [delivery.message for delivery in chunk])
            except PublishError as error:
                self._accepted(result, lane, chunk[: error.accepted], clock() - started)
                rest = chunk[error.accepted :]
                if isinstance(error, TopicRefusesAll):
                    self.report(PublishHalted(lane=lane, error=error), rest)
                    result.doubted += [(stream[0], error) for stream in group_by_key(rest).values()]
                    stopped |= {delivery.event.partition_key for delivery in rest}
                elif error.retriable:
                    # The same messages first: a later one must not enter the topic before them.
                    chunks.appendleft((rest, attempts))
                    failures = 1 if error.accepted else failures + 1
                    await self._back_off(lane, failures, error, rest)
                    if failures >= _ATTEMPTS_BEFORE_POLL:
                        parked = await parked_meanwhile()
                        streams = group_by_key(rest)
                        result.parked_by_hand += [streams[key][0] for key in streams if key in parked]
                        stopped |= {key for key in streams if key in parked}
                elif not isinstance(error, MessageRejected):
                    raise
                elif len(rest) == 1:
                    result.rejected.append(Rejection(rest[0], error, attempts))
                    key, event_id = rest[0].key
                    stopped.add(key)
                    rejected = EventRejected(
                        lane=lane,
                        event_id=event_id,
                        partition_key=key,
                        error=error,
                        correlation_id=rest[0].event.meta.get("correlationId"),
                    )
                    self.report(rejected, rest)
                else:
                    failures, middle = 0, len(rest) // 2
                    chunks.extendleft(((rest[middle:], attempts + 1), (rest[:middle], attempts + 1)))
            else:
                failures = 0
                self._accepted(result, lane, chunk, clock() - started)
        return result

    def report(self, record: Record, deliveries: Sequence[Delivery]) -> None:
        """
        Emit a record about events, inside the trace of the first one's commit.
        """
        with inside_trace(deliveries[0].event.meta if deliveries else {}):
            self._notify(record)

    def _accepted(
        self, result: LaneResult, lane: int, deliveries: Sequence[Delivery], seconds: float
    ) -> None:
        if deliveries:
            self.took_something = True
            result.accepted.update(delivery.key for delivery in deliveries)
            record = MessagesPublished(lane=lane, messages=len(deliveries), seconds=seconds)
            self.report(record, deliveries)

    async def _back_off(
        self, lane: int, failures: int, error: PublishError, waiting: Sequence[Delivery]
    ) -> None:
        delay = self._backoff.delay(failures, at_least=getattr(error, "retry_after", None))
        self.report(PublishFailed(lane=lane, attempt=failures, delay_seconds=delay, error=error), waiting)
        # An expired token looks the same until the next attempt has signed in again.
        if isinstance(error, TopicUnavailable) and failures > 1:
            self.report(PublishHalted(lane=lane, error=error), waiting)
        await asyncio.sleep(delay)
