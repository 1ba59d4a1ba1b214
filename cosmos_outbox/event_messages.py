"""
Event messages: the message of an event. A pure function, so every resend by any worker is the same message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos_outbox.documents import StoredEvent, json_bytes
from cosmos_outbox.messages import OutboundMessage, PropertyValue, broker_id, text

_PROPERTIES = {
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
_LEAST_INT, _MOST_INT = -(2**31), 2**31 - 1  # the SDK sends a whole number as a 32-bit AMQP int


def message_of(event: StoredEvent) -> OutboundMessage:
    """
    Return the message that carries an event; it has a property for each known field of the event's `meta`.
    """
    return OutboundMessage(
        message_id=broker_id(event.id),
        session_id=broker_id(event.partition_key),
        subject=text(event.action),
        body=json_bytes(event.data),
        properties=_properties(event.meta),
    )


def content_bytes(data: Mapping[str, Any], meta: Mapping[str, Any]) -> int:
    """
    Return how many bytes the body and the properties of an event's message have; frames and ids come on top.
    """
    properties = _properties(meta).items()
    return len(json_bytes(data)) + sum(len(name) + len(str(value).encode()) for name, value in properties)


def _properties(meta: Mapping[str, Any]) -> dict[str, PropertyValue]:
    properties: dict[str, PropertyValue] = {}
    for key, name in _PROPERTIES.items():
        value = meta.get(key)
        # Nearly all of our own events' without a call
        if type(value) is str and value.isascii():
            if value:
                properties[name] = value
        elif type(value) is int and _LEAST_INT <= value <= _MOST_INT:
            properties[name] = value
        elif value is not None:
            # Other programs write documents too: a value without an AMQP type is sent as JSON.
            properties[name] = text(value) if isinstance(value, str) else json_bytes(value).decode()
    return properties
