"""
Which events of a page go out, in which order, on which lane: the plan, without any sending.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cosmos_outbox.documents import Document, StoredEvent, stored_event
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.relay.message import message_of

EventKey = tuple[str, str]  # partition key and id: an id is unique only inside its partition key


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """
    An event on its way, and the message that carries it.
    """

    event: StoredEvent
    message: OutboundMessage

    @property
    def key(self) -> EventKey:
        """
        Return what tells this event from all others.
        """
        return self.event.partition_key, self.event.id


def plan(
    documents: Iterable[Document], *, lanes: int, accepted: AbstractSet[EventKey] = frozenset()
) -> dict[int, list[Delivery]]:
    """
    Return what each lane has to send, in order; lanes with nothing to send are left out.

    Documents that are no events cost nothing; neither do events that are known to be accepted. All events of a
    partition key are on one lane, next to each other, in the order they were committed and, inside one commit, raised.
    """
    events = [event for event in map(stored_event, documents) if event is not None]
    # Documents of one transactional batch share an LSN, and the feed does not return them in the order raised.
    events.sort(key=lambda event: event.order)
    by_key: dict[str, list[Delivery]] = {}
    for event in events:
        if (event.partition_key, event.id) not in accepted:
            by_key.setdefault(event.partition_key, []).append(
                Delivery(event=event, message=message_of(event))
            )
    planned: dict[int, list[Delivery]] = {}
    for partition_key, deliveries in by_key.items():
        planned.setdefault(lane_of(partition_key, lanes), []).extend(deliveries)
    return planned


def lane_of(partition_key: str, lanes: int) -> int:
    """
    Return the lane of a partition key: always the same one, or two senders could overtake each other.
    """
    return zlib.crc32(partition_key.encode("utf-8", "surrogatepass")) % lanes
