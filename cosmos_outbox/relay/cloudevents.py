"""
CloudEvents 1.0: put the messages of the relay into the CNCF's envelope, in the structured or the binary mode of its AMQP binding.
`message_format.py` makes these messages and their ids. `received_cloudevents.py` reads CloudEvents for consumers.
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

    STRUCTURED = "structured"  # the attributes are in the body, in one JSON object with the data
    BINARY = "binary"  # the attributes are in application properties; the body is the data alone


def as_cloud_event(message: OutboundMessage, *, source: str, mode: ContentMode) -> OutboundMessage:
    """
    Return the message as a CloudEvent. Its ids, session, subject and properties stay as they are. The same message always gives an equal
    CloudEvent, so the topic's duplicate detection works.

    Args:
        source: where the events come from, a URI reference; `source` and `id` together are unique.
    """
    attributes = _attributes(message, source)
    if mode is ContentMode.BINARY:
        prefixed = {f"{PREFIXES[-1]}{name}": value for name, value in attributes.items()}
        return replace(message, properties={**message.properties, **prefixed})
    attributes["datacontenttype"] = message.content_type
    envelope = json.dumps(attributes, ensure_ascii=False, separators=(",", ":")).encode()
    # Insert the body as it is: parsing the JSON and writing it again could change it.
    body = envelope[:-1] + b',"data":' + message.body + b"}"
    return replace(message, body=body, content_type=STRUCTURED_CONTENT_TYPE)


def _attributes(message: OutboundMessage, source: str) -> dict[str, PropertyValue]:
    properties = message.properties
    attributes: dict[str, PropertyValue] = {
        "specversion": "1.0",
        "id": message.message_id,
        "source": source,
        # CloudEvents forbids an empty type, but other programs write events without an action: call those "event".
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
