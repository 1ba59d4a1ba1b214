"""
Message format: what is sent to Service Bus and received from it, without SDK types; the message of an event, and what Service Bus takes.

The message of an event is a pure function of it, so every resend by any worker is the same message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cosmos_outbox.errors import MessageUnreadable
from cosmos_outbox.partition_key import broker_id, bytes_of
from cosmos_outbox.received_cloudevents import CloudEvent, cloud_event_of
from cosmos_outbox.stored_documents import StoredEvent, json_bytes, time_of

# The limits of one property, and of all together with their names. Beyond them, Service Bus answers as if it had a fault.
MAX_PROPERTY_BYTES, MAX_PROPERTIES_BYTES = 32 * 1024, 64 * 1024
# How long after it took a message the broker surely still knows its id: half of the default window of duplicate detection.
REMEMBERED_FOR = timedelta(minutes=5)

# The application properties of an event's message, each by its field of the event's `meta`.
PROPERTIES = {
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "entityType": "entity-type",
    "entityId": "entity-id",
    "entityVersion": "entity-version",
    "commitId": "commit-id",
    "sequence": "sequence",
    "schemaVersion": "schema-version",
    "correlationId": "correlation-id",
    "causationId": "causation-id",
    "claimCheck": "claim-check",
}
DIGITS = re.compile("[0-9]{1,9}")  # a number as text: some clients send all properties as text
_LEAST_INT, _MOST_INT = -(2**31), 2**31 - 1  # the SDK sends an integer as a 32-bit AMQP int

PropertyValue = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundMessage:
    """
    One message. A resend of the same event is equal in every field, so the broker can drop it by its id.

    deliver_at: until when the broker keeps it before anything receives it; None, or a time that has passed, where it does not.
    """

    message_id: str
    session_id: str
    subject: str
    body: bytes
    content_type: str = "application/json"
    properties: Mapping[str, PropertyValue]
    deliver_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """
    One message as a subscription or a queue delivers it.

    session_id: None where the sender set none.
    subject: as it was delivered; to a consumer's handler, the type of the CloudEvent that the message is.
    sequence_number: grows with the order in which the broker took its messages.
    delivery_count: how often it was delivered before; 0 at the first delivery.
    idempotency_key: the same at each delivery to one consumer, and of no other message or consumer: for calls of services that
        carry a request out once for each key. Empty outside of a consumer.
    """

    message_id: str
    session_id: str | None = None
    subject: str = ""
    body: bytes = b""
    content_type: str | None = "application/json"
    correlation_id: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    sequence_number: int = 0
    delivery_count: int = 0
    enqueued_at: datetime | None = None
    idempotency_key: str = ""

    @property
    def entity_version(self) -> int | None:
        """Return the version that the event's commit gave the entity; None if the message does not say it."""
        said = str(self.properties.get("entity-version"))
        return int(said) if DIGITS.fullmatch(said) else None

    @property
    def cloud_event(self) -> CloudEvent | None:
        """
        Return the CloudEvent that the message contains, in any form of the AMQP binding; None if it contains none.

        Raises:
            MessageUnreadable: the message says that it is one, and is not.
        """
        try:
            return cloud_event_of(self.content_type, self.properties, self.body)
        except ValueError as error:
            raise MessageUnreadable(
                f"The message {self.message_id!r} says that it is a CloudEvent, and cannot be read as one: {error}."
            ) from error


def message_of(event: StoredEvent) -> OutboundMessage:
    """Return the message of an event. It has a property for each known field of the event's `meta`."""
    return OutboundMessage(
        subject=text(event.action),
        properties=_properties(event.meta),
        message_id=broker_id(event.id),
        session_id=broker_id(event.partition_key),
        body=json_bytes(event.data),
        deliver_at=time_of(event.meta["deliverAt"]) if "deliverAt" in event.meta else None,
    )


def content_bytes(data: Mapping[str, Any], meta: Mapping[str, Any]) -> int:
    """Return the size in bytes of the body and the properties of an event's message; frames and ids come on top."""
    properties = _properties(meta).items()
    return len(json_bytes(data)) + sum(len(name) + len(str(value).encode()) for name, value in properties)


def _properties(meta: Mapping[str, Any]) -> dict[str, PropertyValue]:
    properties: dict[str, PropertyValue] = {}
    for key, name in PROPERTIES.items():
        value = meta.get(key)
        # A fast path without a call, for nearly all of our own events
        if type(value) is str and value.isascii():
            if value:
                properties[name] = value
        elif type(value) is int and _LEAST_INT <= value <= _MOST_INT:
            properties[name] = value
        elif value is not None:
            # Other programs write event documents, too. A value that has no AMQP type is sent as JSON.
            properties[name] = text(value) if isinstance(value, str) else json_bytes(value).decode()
    return properties


def require_properties_that_fit(message: OutboundMessage) -> None:
    """
    Refuse properties that Service Bus does not accept.

    Raises:
        ValueError: names the property.
    """
    sizes = {name: len(name) + _most_bytes(value) for name, value in message.properties.items()}
    if sum(sizes.values()) <= MAX_PROPERTY_BYTES:
        return  # true of nearly all messages; to measure each value would cost as much as to send it
    total = 0
    for name, value in message.properties.items():
        size = len(name) + (len(value.encode()) if isinstance(value, str) else 8)
        if size > MAX_PROPERTY_BYTES:
            raise ValueError(
                f"its property {name!r} has {size} bytes; Service Bus takes {MAX_PROPERTY_BYTES}"
            )
        total += size
    if total > MAX_PROPERTIES_BYTES:
        raise ValueError(
            f"its properties have {total} bytes in all; Service Bus takes {MAX_PROPERTIES_BYTES}"
        )


def _most_bytes(value: PropertyValue) -> int:
    return 4 * len(value) if isinstance(value, str) else 8  # a character takes at most four bytes in UTF-8


def amqp_text(value: Any) -> Any:
    """Return a value of AMQP in plain types: binary becomes text, because the SDK returns text as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def amqp_id(value: Any) -> str | None:
    """Return an AMQP id as text: an id may be text, a number, a UUID or binary. Return None for other types."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return str(value) if isinstance(value, (UUID, int)) else None


def text(value: str) -> str:
    """Return a string that UTF-8 can encode: half a surrogate pair, which JSON allows, becomes a replacement character."""
    if value.isascii() or bytes_of(value) is not None:
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
