"""
The plan of a page: its events, parsed once; which of them go out, in which order, on which lane. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cosmos_outbox.documents import Document, StoredEvent, claims_to_be_an_event, stored_event
from cosmos_outbox.messages import OutboundMessage, message_of
from cosmos_outbox.ports import ChangeBatch

EventKey = tuple[str, str]  # partition key and id: an id is unique only inside its partition key

LANE_BYTES = 192 * 1024  # a lane's share of a page: with what AMQP adds, one batch of the Standard tier
_OVERHEAD_BYTES = 512  # ids, properties and encoding of a message, roughly


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """
    An event on its way, and the message that carries it.

    id: of the event.
    key: what identifies it in its container.
    """

    id: str
    key: EventKey
    event: StoredEvent
    message: OutboundMessage
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """
    A page of the change feed as events: parsed once, then shared by all that handle it.

    events: in the order in which they were committed and, inside one commit, raised.
    malformed: documents that call themselves events but cannot be published. Other documents are left out.
    """

    batch: ChangeBatch
    events: tuple[Delivery, ...]
    malformed: tuple[Document, ...]


PageHandler = Callable[[EventPage], Awaitable[None]]


def event_page(batch: ChangeBatch) -> EventPage:
    """Parse a page of the change feed."""
    events, malformed = [], []
    for document in batch.documents:
        if (event := stored_event(document, batch.key_paths)) is not None:
            key, message = (event.partition_key, event.id), message_of(event)
            events.append(Delivery(id=event.id, key=key, event=event, message=message, document=document))
        elif claims_to_be_an_event(document):
            malformed.append(document)
    # Documents of one transactional batch share an LSN, and the feed does not return them in the order raised.
    events.sort(key=lambda delivery: delivery.event.order)
    return EventPage(batch=batch, events=tuple(events), malformed=tuple(malformed))


def group_by_key(
    events: Iterable[Delivery], *, accepted: AbstractSet[EventKey] = frozenset()
) -> dict[str, list[Delivery]]:
    """Return the events of each partition key in their order, without those that are accepted already."""
    streams: dict[str, list[Delivery]] = {}
    for delivery in events:
        if delivery.key not in accepted:
            streams.setdefault(delivery.event.partition_key, []).append(delivery)
    return streams


def assign_lanes(
    streams: Collection[list[Delivery]], *, lanes: int, lane_bytes: int = LANE_BYTES
) -> list[list[Delivery]]:
    """
    Return what to send on each lane, in order: at most `lanes` of them, each of `lane_bytes` if that suffices.

    All events of a partition key are on one lane, next to each other. The next page may put the key on another lane:
    by then the topic has all of this page. A batch costs the sender as much as some messages, so a second lane pays
    only once the first has a full batch.
    """
    sizes = [sum(len(delivery.message.body) + _OVERHEAD_BYTES for delivery in stream) for stream in streams]
    share = max(lane_bytes, -(-sum(sizes) // lanes))
    assigned: list[list[Delivery]] = []
    current, before = -1, 0
    for stream, size in zip(streams, sizes, strict=True):
        lane = (before + size // 2) // share  # a stream belongs to the lane that its middle falls into
        if lane > current:
            current = lane
            assigned.append([])
        assigned[-1].extend(stream)
        before += size
    return assigned
