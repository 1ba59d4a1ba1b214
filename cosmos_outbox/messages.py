"""
OutboundMessage: what leaves for Service Bus, free of any SDK type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_ID_LENGTH = 128  # of message and session ids, in UTF-16 units, as Service Bus counts
# What Service Bus takes of one property and of all of them, names included. Beyond it the service answers as if it had a
# fault of its own.
MAX_PROPERTY_BYTES, MAX_PROPERTIES_BYTES = 32 * 1024, 64 * 1024

PropertyValue = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundMessage:
    """
    One message; a resend of the same event is equal in every field, so the broker can drop it by its id.
    """

    message_id: str
    session_id: str
    subject: str
    body: bytes
    content_type: str = "application/json"
    properties: Mapping[str, PropertyValue]


def require_properties_that_fit(message: OutboundMessage) -> None:
    """
    Refuse properties that Service Bus does not take.

    Raises:
        ValueError: names the property.
    """
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
