"""
OutboundMessage: what leaves for Service Bus, free of any SDK type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_ID_LENGTH = 128  # of message and session ids, in UTF-16 units, as Service Bus counts

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
