"""
Messages as azure-servicebus gives them to a subscriber, to test code that receives messages with this SDK.

    await handle(received_message(OrderPaid(), key="o1"))
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cosmos_outbox.domain.events import DomainEvent, utc_now
from cosmos_outbox.message_format import Message, OutboundMessage, message_of
from cosmos_outbox.stored_documents import event_document, stored_event


@dataclass(slots=True, kw_only=True)
class ReceivedMessage:
    """
    Replaces a `ServiceBusReceivedMessage` of a session in tests. As in the SDK, the names and the text values of application properties
    are bytes, and the body is a generator.
    """

    message_id: str
    session_id: str | None
    subject: str
    content: bytes
    application_properties: dict[bytes, Any]
    content_type: str | None = "application/json"
    correlation_id: str | None = None
    delivery_count: int = 0
    sequence_number: int = 1
    enqueued_sequence_number: int = 1
    enqueued_time_utc: datetime = field(default_factory=utc_now)
    lock_token: uuid.UUID = field(default_factory=uuid.uuid4)
    body_type: str = "data"
    state: int = 0  # the SDK's number for "active", neither deferred nor scheduled
    # These fields of a received message are None, because workers do not set them, or because Service Bus sets them only without sessions.
    auto_renew_error: Exception | None = None
    dead_letter_error_description: str | None = None
    dead_letter_reason: str | None = None
    dead_letter_source: str | None = None
    expires_at_utc: datetime | None = None
    locked_until_utc: datetime | None = None
    partition_key: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    scheduled_enqueue_time_utc: datetime | None = None
    time_to_live: Any = None
    to: str | None = None

    @property
    def body(self) -> Iterator[bytes]:
        """Return the body as a generator of its parts, as the SDK does. Each access to the property returns a new generator."""
        return (part for part in (self.content,))

    def __str__(self) -> str:
        return self.content.decode()


def received_message(
    what: DomainEvent | OutboundMessage | Message,
    *,
    key: str = "key",
    delivery_count: int = 0,
    sequence_number: int = 1,
) -> ReceivedMessage:
    """
    Return the message that a subscriber receives for an event, or for a message that the relay sent.

    Args:
        what: an event, or a message such as `relay_all` returns.
        key: the session id for an event, which is also the id of its entity. Defaults to "key".
        delivery_count: how often the message was delivered before. Defaults to 0.
        sequence_number: the sequence number that the broker gave the message. Defaults to 1.
    """
    message = message_of_event(what, key) if isinstance(what, DomainEvent) else what
    return ReceivedMessage(
        message_id=message.message_id,
        session_id=message.session_id,
        subject=message.subject,
        content=message.body,
        content_type=message.content_type,
        application_properties={
            name.encode(): value.encode() if isinstance(value, str) else value
            for name, value in message.properties.items()
        },
        delivery_count=delivery_count,
        sequence_number=sequence_number,
        enqueued_sequence_number=sequence_number,
    )


def message_of_event(event: DomainEvent, key: str) -> OutboundMessage:
    """Return the message that a worker sends for an event. The event is taken as the first one of a new entity."""
    meta = {"entityType": "entity", "entityId": key, "entityVersion": 1, "commitId": "commit"}
    document = event_document(event, key_fields={"partitionKey": key}, meta=meta, sequence=0)
    [stored] = filter(None, [stored_event(document)])
    return message_of(stored)
