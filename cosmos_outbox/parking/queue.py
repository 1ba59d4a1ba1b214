"""
Queue: the events of a parked key sent in order, as far as the broker takes them, and what is kept of them afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from cosmos_outbox.documents import StoredEvent, stored_event
from cosmos_outbox.errors import MessageRejected, PublishError, UsageError
from cosmos_outbox.messages import OutboundMessage
from cosmos_outbox.parking.documents import EventStatus, ParkedEvent
from cosmos_outbox.ports import Publisher, Write
from cosmos_outbox.retries import Backoff

_PUBLISH_ATTEMPTS = 5
_LANE = 0


async def send_in_order(
    publisher: Publisher,
    due: Sequence[ParkedEvent],
    *,
    message_of: Callable[[StoredEvent], OutboundMessage],
    backoff: Backoff,
) -> tuple[int, MessageRejected | None]:
    """
    Send events until one is rejected; return how many places of the queue are done, and the rejection.

    Raises:
        PublishError: the topic did not answer, several times.
        UsageError: what is held is no event.
    """
    held = [place for place, event in enumerate(due) if event.status is EventStatus.HELD]
    messages = [_message(due[place], message_of) for place in held]
    sent, attempt, size = 0, 0, len(messages)
    while sent < len(messages):
        chunk = messages[sent : sent + size]
        try:
            await publisher.publish(_LANE, chunk)
        except PublishError as error:
            sent += error.accepted
            attempt = 1 if error.accepted else attempt + 1
            if isinstance(error, MessageRejected):
                if len(chunk) == 1:
                    return held[sent], error
                size, attempt = 1, 0  # which of them it is, only one at a time tells
            elif not error.retriable or attempt >= _PUBLISH_ATTEMPTS:
                condition = getattr(error, "condition", None)
                if condition is None:
                    raise
                if len(chunk) == 1:
                    said = f"The broker failed {attempt} times with {condition} on this message: {error}"
                    return held[sent], MessageRejected(said)
                size, attempt = 1, 0
            else:
                delay = backoff.delay(attempt, at_least=getattr(error, "retry_after", None))
                await asyncio.sleep(delay)
        else:
            sent, attempt = sent + len(chunk), 0
    return len(due), None


def closings(gone: Sequence[ParkedEvent], *, now: datetime) -> list[Write]:
    """
    Return the writes for events that were sent: an edited one stays as the record of it, the others go.
    """
    writes = []
    for event in gone:
        if event.status is EventStatus.HELD and event.original is not None:
            sent = replace(event, status=EventStatus.SENT, closed_at=now.isoformat())
            writes.append(sent.write())
        elif event.status is EventStatus.HELD:
            writes.append(event.deletion())
    return writes


def _message(parked: ParkedEvent, message_of: Callable[[StoredEvent], OutboundMessage]) -> OutboundMessage:
    event = stored_event(parked.event)
    if event is None:
        raise UsageError(f"Event {parked.event_id!r} in the parked store is none any more; drop it.")
    return message_of(event)
