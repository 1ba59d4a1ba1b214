"""
Which events of a page go out, in which order, on which lane: the plan, without any sending.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cosmos_outbox.documents import Document, StoredEvent, stored_event
from cosmos_outbox.messages import OutboundMessage, message_of

EventKey = tuple[str, str]  # partition key and id: an id is unique only inside its partition key


LANE_BYTES = 192 * 1024  # a lane's share of a page: with what AMQP adds, one batch of the Standard tier
_OVERHEAD_BYTES = 512  # ids, properties and encoding of a message, roughly


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """
    An event on its way, and the message that carries it.
    """

    event: StoredEvent
    message: OutboundMessage
    document: Document

    @property
    def id(self) -> str:
        """
        Return the event's id.
        """
        return self.event.id

    @property
    def key(self) -> EventKey:
        """
        Return what tells this event from all others.
        """
        return self.event.partition_key, self.event.id


def streams_of(
    documents: Iterable[Document], *, accepted: AbstractSet[EventKey] = frozenset()
) -> dict[str, list[Delivery]]:
    """
    Return the deliveries of each partition key, in the order they were committed and, inside one commit, raised.

    Documents that are no events cost nothing; neither do events that are known to be accepted.
    """
    events = [
        (event, document)
        for document in documents
        if (event := stored_event(document)) is not None and (event.partition_key, event.id) not in accepted
    ]
    # Documents of one transactional batch share an LSN, and the feed does not return them in the order raised.
    events.sort(key=lambda pair: pair[0].order)
    streams: dict[str, list[Delivery]] = {}
    for event, document in events:
        delivery = Delivery(event=event, message=message_of(event), document=document)
        streams.setdefault(event.partition_key, []).append(delivery)
    return streams


def share_out(
    streams: Collection[list[Delivery]], *, lanes: int, lane_bytes: int = LANE_BYTES
) -> list[list[Delivery]]:
    """
    Return what to send on lanes side by side, each in order: at most `lanes`, each of `lane_bytes` if that suffices.

    All events of a partition key are on one lane, next to each other. The next page may put the key on another lane:
    by then all of this page is in the topic. A batch costs the sender as much as some messages, so a second lane is
    worth it only once the first has a full one.
    """
    sizes = [sum(len(delivery.message.body) + _OVERHEAD_BYTES for delivery in stream) for stream in streams]
    share = max(lane_bytes, -(-sum(sizes) // lanes))
    shared: list[list[Delivery]] = []
    current, before = -1, 0
    for stream, size in zip(streams, sizes, strict=True):
        lane = (before + size // 2) // share  # a stream belongs to the lane that its middle falls into
        if lane > current:
            current = lane
            shared.append([])
        shared[-1].extend(stream)
        before += size
    return shared
