"""
Message format: the messages that are sent to Service Bus and received from it, without SDK types, and the limits of Service Bus.

The message of an event depends on nothing but the event, so every resend by any worker is the same message.
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

# The most bytes of one property, and of all properties, with their names. The limits are checked before a
# message is sent: if a message exceeds them, Service Bus answers as if the service itself had failed.
MAX_PROPERTY_BYTES, MAX_PROPERTIES_BYTES = 32 * 1024, 64 * 1024
# After the broker accepted a message, it certainly remembers the message's id for this time: half of the default window of duplicate
# detection.
REMEMBERED_FOR = timedelta(minutes=5)

# The application properties of an event's message: for each field of the event's `meta`, the name of the property.
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
    A message to send. A resend of the same event is equal in every field, so the broker can drop it by its id.

    deliver_at: the time before which the broker delivers the message to no receiver. None, or a time in the past, means at once.
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
    A message as a subscription or a queue delivers it.

    session_id: the session; None if the sender set none.
    subject: the subject as it was delivered. If the message contains a CloudEvent, a consumer's handler gets the type of that event.
    sequence_number: a number that grows in the order in which the broker accepted its messages.
    delivery_count: how often the message was delivered before; 0 at the first delivery.
    idempotency_key: a key for calls of services that carry out a request once for each key. It is the same at each delivery of the message
        to one consumer, and different for every other message or consumer. Empty outside of a consumer.
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
        """Return the version that the entity got in the commit of the event; None if the message does not say it."""
        said = str(self.properties.get("entity-version"))
        return int(said) if DIGITS.fullmatch(said) else None

    @property
    def cloud_event(self) -> CloudEvent | None:
        """
        Return the CloudEvent that the message contains, in any form of the AMQP binding; None if it contains none.

        Raises:
            MessageUnreadable: the message says that it contains a CloudEvent, but the event cannot be read.
        """
        try:
            return cloud_event_of(self.content_type, self.properties, self.body)
        except ValueError as error:
            raise MessageUnreadable(
                f"The message {self.message_id!r} says that it is a CloudEvent, but cannot be read as one: {error}."
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
    """Return the bytes of the body and the properties of an event's message. The ids and the frames of AMQP are not included."""
    properties = _properties(meta).items()
    return len(json_bytes(data)) + sum(len(name) + len(str(value).encode()) for name, value in properties)


def _properties(meta: Mapping[str, Any]) -> dict[str, PropertyValue]:
    properties: dict[str, PropertyValue] = {}
    for key, value in meta.items():
        if (name := PROPERTIES.get(key)) is None:
            continue
        # The first two branches handle nearly all values of the library's own events. They call no function of
        # this module, because that would be slower.
        if type(value) is str and value.isascii():
            if value:
                properties[name] = value
        elif type(value) is int and _LEAST_INT <= value <= _MOST_INT:
            properties[name] = value
        elif value is not None:
            # Events of other programs may have other values here. A value that has no AMQP type is sent as JSON.
            properties[name] = text(value) if isinstance(value, str) else json_bytes(value).decode()
    return properties


def require_properties_that_fit(message: OutboundMessage) -> None:
    """
    Check that Service Bus accepts the properties of a message.

    Raises:
        ValueError: the properties are too large; the message names the property.
    """
    sizes = {name: len(name) + _most_bytes(value) for name, value in message.properties.items()}
    if sum(sizes.values()) <= MAX_PROPERTY_BYTES:
        # This rough estimate is enough for nearly all messages. To measure each value would take as much CPU
        # as to send the message.
        return
    total = 0
    for name, value in message.properties.items():
        size = len(name) + (len(value.encode()) if isinstance(value, str) else 8)
        if size > MAX_PROPERTY_BYTES:
            raise ValueError(
                f"its property {name!r} has {size} bytes; Service Bus takes at most {MAX_PROPERTY_BYTES}"
            )
        total += size
    if total > MAX_PROPERTIES_BYTES:
        raise ValueError(
            f"its properties have {total} bytes in all; Service Bus takes at most {MAX_PROPERTIES_BYTES}"
        )


def _most_bytes(value: PropertyValue) -> int:
    return 4 * len(value) if isinstance(value, str) else 8  # a character takes at most four bytes in UTF-8


def amqp_text(value: Any) -> Any:
    """Return a value that the SDK received over AMQP, with bytes decoded: the SDK returns AMQP strings as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def amqp_id(value: Any) -> str | None:
    """Return an id that was received over AMQP as text. It may be text, a number, a UUID or binary; return None for other types."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return str(value) if isinstance(value, (UUID, int)) else None


def text(value: str) -> str:
    """Return a string in a form that UTF-8 can encode. Half a surrogate pair, which JSON allows, becomes a replacement character."""
    if value.isascii() or bytes_of(value) is not None:
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
