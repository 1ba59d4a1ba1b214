"""
Sending lanes: parse a page once, assign its events to lanes by partition key, and send on all lanes at the same time.

A lane is one ordered stream of messages to the topic. A message that can never be sent stops only its own partition key. The pure
functions, which come first in this module, decide which lane sends which events. `topics_and_refusals.py` decides what a refusal means.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from cosmos_outbox import errors
from cosmos_outbox.correlation import call_inside_trace
from cosmos_outbox.errors import MessageRejected, PublishError, TopicRefusesAll, TopicUnavailable
from cosmos_outbox.message_format import OutboundMessage, message_of
from cosmos_outbox.ports import ChangeBatch, Publisher
from cosmos_outbox.records import EventRejected, Hook, MessagesPublished, PublishFailed, Record, TopicFull
from cosmos_outbox.relay.topics_and_refusals import Refusals, Topics
from cosmos_outbox.retries import Backoff
from cosmos_outbox.stored_documents import Document, StoredEvent, claims_to_be_an_event, stored_event

EventKey = tuple[str, str]  # partition key and id of an event: the id is unique only inside the partition key

# How many bytes of a page one lane sends before a second lane is used. With AMQP's overhead, this is one batch of the Standard tier.
LANE_BYTES = 192 * 1024
_OVERHEAD_BYTES = 512  # about how many bytes a message takes besides its body: ids, properties, encoding
# After this many failures in a row, the sender asks the parked store whether an operator has parked the waiting keys by hand.
_ATTEMPTS_BEFORE_POLL = 5


class Delivery(NamedTuple):
    """
    An event that is to be sent, and its message. A named tuple, because a frozen dataclass takes three times as long to make.

    key: the partition key and the id, which together identify the event in its container.
    document: the document of the event, as the change feed returned it.
    """

    key: EventKey
    event: StoredEvent
    message: OutboundMessage
    document: Document

    @property
    def id(self) -> str:
        """Return the id of the event."""
        return self.event.id


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """
    The events of a page of the change feed. A page is parsed once, and all its handlers share the result.

    events: in the order of their commits, and within one commit in the order in which they were recorded.
    malformed: documents that have the type of an event but cannot be published. Other documents are left out.
    """

    batch: ChangeBatch
    events: tuple[Delivery, ...]
    malformed: tuple[Document, ...]


PageHandler = Callable[[EventPage], Awaitable[None]]


def event_page(batch: ChangeBatch) -> EventPage:
    """Return the events of a page of the change feed, each with the message that is sent for it."""
    events, malformed = [], []
    for document in batch.documents:
        if (event := stored_event(document, batch.key_paths)) is not None:
            events.append(Delivery((event.partition_key, event.id), event, message_of(event), document))
        elif claims_to_be_an_event(document):
            malformed.append(document)
    # Sort the events: documents of one transactional batch share an LSN, and the change feed does not return them in the order in which
    # the events were recorded.
    events.sort(key=lambda delivery: delivery.event.order)
    return EventPage(batch=batch, events=tuple(events), malformed=tuple(malformed))


def group_by_key(
    events: Iterable[Delivery], *, accepted: AbstractSet[EventKey] = frozenset()
) -> dict[str, list[Delivery]]:
    """Group events by partition key, in order. Leave out the events that the topic has accepted already."""
    streams: dict[str, list[Delivery]] = {}
    for delivery in events:
        if delivery.key not in accepted:
            streams.setdefault(delivery.event.partition_key, []).append(delivery)
    return streams


def assign_lanes(
    streams: Collection[list[Delivery]], *, lanes: int, lane_bytes: int = LANE_BYTES
) -> list[list[Delivery]]:
    """
    Return the events that each lane sends, in order. Use at most `lanes` lanes, and give each about `lane_bytes`, or more if the events do
    not fit otherwise.

    All events of a partition key are on one lane, which keeps their order. The next page may put the key on another lane, because it is
    sent only when the topic has all events of this page. Each batch has a cost of its own, so a second lane is used only if the first lane
    has a full batch.
    """
    sizes = [sum(len(delivery.message.body) + _OVERHEAD_BYTES for delivery in stream) for stream in streams]
    share = max(lane_bytes, -(-sum(sizes) // lanes))
    assigned: list[list[Delivery]] = []
    current, before = -1, 0
    for stream, size in zip(streams, sizes, strict=True):
        # Each lane has an equal share of all bytes. The key goes to the lane whose share has the middle of the key's bytes.
        lane = (before + size // 2) // share
        if lane > current:
            current = lane
            assigned.append([])
        assigned[-1].extend(stream)
        before += size
    return assigned


# An event that the topic will never accept, the error that says so, and the number of attempts to send the event.
Rejection = tuple[Delivery, MessageRejected, int]


@dataclass(slots=True)
class LaneResult:
    """
    What became of the events that the lanes sent. Once an event was not accepted, the later events of its key are not sent, and are in
    none of the lists.

    moving: a function that is called each time that the topic accepted some events.
    accepted: the events that the topic has.
    rejected: events that can never be sent.
    doubted: events that were refused, perhaps because the topic is at fault.
    parked_by_hand: the first event of each key that an operator parked while the broker did not answer.
    """

    moving: Callable[[], None] = lambda: None
    accepted: set[EventKey] = field(default_factory=set)
    rejected: list[Rejection] = field(default_factory=list)
    doubted: list[tuple[Delivery, TopicRefusesAll]] = field(default_factory=list)
    parked_by_hand: list[Delivery] = field(default_factory=list)


class LaneSender:
    """
    Sends events to the topics. While the broker is unavailable, it tries again with growing pauses. If a batch is refused, it sends halves
    of the batch until it has found the refused message.
    """

    def __init__(self, publisher: Publisher, believed: int, backoff: Backoff, notify: Hook) -> None:
        self._topics = publisher if isinstance(publisher, Topics) else Topics({"": publisher})
        # Judge each topic separately: what one topic accepts or refuses shows nothing about another topic.
        self._refusals: defaultdict[str, Refusals] = defaultdict(lambda: Refusals(believed=believed))
        self._took_something = False  # whether a topic has accepted a message since this worker began
        self._backoff, self._notify = backoff, notify

    def send(
        self,
        streams: Collection[list[Delivery]],
        *,
        first_lane: int,
        parked: int,
        parked_meanwhile: Callable[[], Awaitable[Container[str]]],
        moving: Callable[[], None],
        group: asyncio.TaskGroup,
    ) -> LaneResult:
        """
        Start to send the events of each partition key in order. When the task group ends, the result says which events were accepted.

        If a batch is refused, its messages are spread over all lanes by partition key, so that no key waits until the topic has refused the
        messages of all other keys.

        Args:
            streams: the events of each partition key.
            first_lane: the number of the lane that sends the first keys; the next lane sends the next keys, and so on.
            parked: how many keys of the lease are parked, or are about to be parked.
            parked_meanwhile: returns the keys that operators have parked by hand; called while the broker keeps failing.
            moving: called each time that some events were accepted.
            group: the task group that runs the lanes.
        """
        result, lanes = LaneResult(moving), self._topics.lanes
        if not streams:
            return result
        batch = self._topics.batch_bytes
        lane_bytes = LANE_BYTES if batch is None else batch * 3 // 4
        shares = assign_lanes(streams, lanes=lanes, lane_bytes=lane_bytes)
        idle = deque((first_lane + number) % lanes for number in range(lanes))
        waiting = deque((share, 1) for share in shares)  # 1 is the number of the attempt to send the share

        def count_parked() -> int:
            return 0 if self._took_something else parked + len(result.rejected)

        def start_lanes() -> None:
            for _ in range(min(len(idle), len(waiting))):
                group.create_task(work_on(idle.popleft()))

        async def work_on(lane: int) -> None:
            while waiting:
                share, attempts = waiting.popleft()
                refused = await self._send(
                    lane, share, attempts, result, parked=count_parked, parked_meanwhile=parked_meanwhile
                )
                parts = assign_lanes(refused, lanes=max(lanes, 2), lane_bytes=1) if refused else ()
                waiting.extendleft((part, attempts + 1) for part in reversed(parts))
                start_lanes()
            idle.append(lane)

        start_lanes()
        return result

    async def _send(
        self,
        lane: int,
        due: Sequence[Delivery],
        attempts: int,
        result: LaneResult,
        *,
        parked: Callable[[], int],
        parked_meanwhile: Callable[[], Awaitable[Container[str]]],
    ) -> Collection[list[Delivery]]:
        """
        Send events in order on one lane. If a batch with messages of several partition keys was refused, return its events by key, so that
        the keys can be sent separately.
        """
        # The events to send, each chunk with the number of its attempt. One chunk becomes two when a refused batch is halved.
        chunks = deque([(list(due), attempts)])
        failures = 0
        clock = asyncio.get_running_loop().time
        while chunks:
            chunk, attempts = chunks.popleft()
            messages = [delivery.message for delivery in chunk[: self._topics.at_once]]
            await self._topics.turn(messages)
            started = clock()
            try:
                await self._topics.publish(lane, messages, self._refusals, parked)
            except PublishError as error:
                self._accept(result, lane, chunk[: error.accepted], clock() - started)
                rest = chunk[error.accepted :]
                if isinstance(error, MessageRejected) and len(rest) == 1:
                    self._reject(result, lane, (rest[0], error, attempts))
                    return ()
                streams = group_by_key(rest)
                if isinstance(error, TopicRefusesAll):
                    result.doubted += [(stream[0], error) for stream in streams.values()]
                    return ()
                if error.retriable:
                    failures = 1 if error.accepted else failures + 1
                    await self._back_off(lane, failures, error, rest)
                    rest = await self._not_parked(rest, failures, result, parked_meanwhile)
                    # Send the failed messages again before any other, because a later message must not enter the topic before them.
                    chunks = deque([(rest, attempts), *chunks] if rest else [])
                elif not isinstance(error, MessageRejected):
                    raise
                elif len(streams) > 1:
                    return streams.values()
                else:
                    failures, middle = 0, len(rest) // 2
                    chunks.extendleft(((rest[middle:], attempts + 1), (rest[:middle], attempts + 1)))
            else:
                failures, sent = 0, len(messages)
                self._accept(result, lane, chunk[:sent], clock() - started)
                if chunk[sent:]:
                    chunks.appendleft((chunk[sent:], attempts))
        return ()

    def report(self, record: Record, deliveries: Sequence[Delivery]) -> None:
        """Emit a record about events, inside the trace of the commit that wrote the first event."""
        call_inside_trace(deliveries[0].event.meta, lambda: self._notify(record))

    def _reject(self, result: LaneResult, lane: int, rejection: Rejection) -> None:
        result.rejected.append(rejection)
        delivery, error, _ = rejection
        key, event_id = delivery.key
        correlation_id = delivery.event.meta.get("correlationId")
        record = EventRejected(
            lane=lane, event_id=event_id, partition_key=key, error=error, correlation_id=correlation_id
        )
        self.report(record, [delivery])

    def _accept(self, result: LaneResult, lane: int, deliveries: Sequence[Delivery], seconds: float) -> None:
        if deliveries:
            self._took_something = True
            result.accepted.update(delivery.key for delivery in deliveries)
            record = MessagesPublished(lane=lane, messages=len(deliveries), seconds=seconds)
            self.report(record, deliveries)
            result.moving()

    async def _back_off(
        self, lane: int, failures: int, error: PublishError, waiting: Sequence[Delivery]
    ) -> None:
        delay = self._backoff.delay(failures, at_least=error.retry_after)
        # Do not report the first failure as halted: the token may only have expired, and the next attempt signs in again.
        halted = isinstance(error, TopicUnavailable) and failures > 1
        kind = (
            TopicFull
            if isinstance(error, errors.TopicFull)
            else partial(PublishFailed, outcome="halted" if halted else "retried")
        )
        self.report(kind(lane=lane, attempt=failures, delay_seconds=delay, error=error), waiting)
        await asyncio.sleep(delay)

    async def _not_parked(
        self,
        due: list[Delivery],
        failures: int,
        result: LaneResult,
        parked_meanwhile: Callable[[], Awaitable[Container[str]]],
    ) -> list[Delivery]:
        """
        Return the events whose keys no operator has parked by hand. After some failures in a row, ask the parked store for such keys; before
        that, return all events.
        """
        if failures < _ATTEMPTS_BEFORE_POLL:
            return due
        by_hand = await parked_meanwhile()
        result.parked_by_hand += [stream[0] for key, stream in group_by_key(due).items() if key in by_hand]
        return [delivery for delivery in due if delivery.key[0] not in by_hand]
