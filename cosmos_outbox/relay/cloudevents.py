"""
CloudEvents 1.0: the same messages in the envelope of the CNCF, by its AMQP binding, structured or binary.
"""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from typing import Any

from cosmos_outbox.message_format import OutboundMessage, PropertyValue, text
from cosmos_outbox.received_cloudevents import EXTENSIONS, PREFIXES

STRUCTURED_CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


class ContentMode(StrEnum):
    """Where a message carries the attributes of its CloudEvent."""

    STRUCTURED = "structured"  # in the body: one JSON object that also has the data
    BINARY = "binary"  # in application properties; the body is the data


def as_cloud_event(message: OutboundMessage, *, source: str, mode: ContentMode) -> OutboundMessage:
    """
    Return the message as a CloudEvent. Ids, session, subject and properties stay as they are, and a resend gives an equal message.

    Args:
        source: where the events come from, a URI reference; `source` and `id` together are unique.
    """
    attributes = _attributes(message, source)
    if mode is ContentMode.BINARY:
        prefixed = {f"{PREFIXES[-1]}{name}": value for name, value in attributes.items()}
        return replace(message, properties={**message.properties, **prefixed})
    attributes["datacontenttype"] = message.content_type
    envelope = json.dumps(attributes, ensure_ascii=False, separators=(",", ":")).encode()
    # The data is JSON already; parsing and writing it again could change it.
    body = envelope[:-1] + b',"data":' + message.body + b"}"
    return replace(message, body=body, content_type=STRUCTURED_CONTENT_TYPE)


def _attributes(message: OutboundMessage, source: str) -> dict[str, PropertyValue]:
    properties = message.properties
    attributes: dict[str, PropertyValue] = {
        "specversion": "1.0",
        "id": message.message_id,
        "source": source,
        # the type must not be empty; other programs write events without an action
        "type": message.subject or "event",
    }
    if entity_id := properties.get("entity-id"):
        attributes["subject"] = str(entity_id)
    data: Any = json.loads(message.body)
    created_at = data.get("createdAt") if isinstance(data, dict) else None
    if isinstance(created_at, str) and created_at:
        attributes["time"] = text(created_at)
    attributes["partitionkey"] = message.session_id
    attributes |= {name: properties[key] for key, name in EXTENSIONS.items() if key in properties}
    return attributes
