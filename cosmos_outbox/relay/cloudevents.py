"""
CloudEvents 1.0: the same messages in the envelope of the CNCF, by its AMQP binding, structured or binary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from cosmos_outbox.messages import OutboundMessage, PropertyValue, text
from cosmos_outbox.ports import Publisher

SPEC_VERSION = "1.0"
STRUCTURED_CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
# The binding allows "cloudEvents:" too, which JMS selectors and SQL filters of subscriptions cannot name.
BINARY_PREFIX = "cloudEvents_"

# Extension attributes have lower-case letters and digits only.
_EXTENSIONS = {
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "entity-type": "entitytype",
    "entity-version": "entityversion",
    "commit-id": "commitid",
    "sequence": "commitsequence",  # `sequence` is an extension of the specification with another meaning
    "schema-version": "schemaversion",
    "correlation-id": "correlationid",
    "causation-id": "causationid",
}


class ContentMode(StrEnum):
    """
    Where the attributes are.
    """

    STRUCTURED = "structured"  # with the data in one JSON object, the body
    BINARY = "binary"  # in application properties; the body is the data as ever


def as_cloud_event(message: OutboundMessage, *, source: str, mode: ContentMode) -> OutboundMessage:
    """
    Return the message as a CloudEvent; ids, session, subject and properties stay, so brokers and filters see no change.

    A pure function, so that a resend is the same message.

    Args:
        source: what the events come from, a URI reference; `source` and `id` together are unique.
    """
    attributes = _attributes(message, source)
    if mode is ContentMode.BINARY:
        prefixed = {f"{BINARY_PREFIX}{name}": value for name, value in attributes.items()}
        return replace(message, properties={**message.properties, **prefixed})
    attributes["datacontenttype"] = message.content_type
    envelope = json.dumps(attributes, ensure_ascii=False, separators=(",", ":")).encode()
    # The data is JSON already: parsing it only to write it again could change it.
    body = envelope[:-1] + b',"data":' + message.body + b"}"
    return replace(message, body=body, content_type=STRUCTURED_CONTENT_TYPE)


def _attributes(message: OutboundMessage, source: str) -> dict[str, PropertyValue]:
    properties = message.properties
    attributes: dict[str, PropertyValue] = {
        "specversion": SPEC_VERSION,
        "id": message.message_id,
        "source": source,
        "type": message.subject
        or "event",  # must not be empty, and other programs write events without action
    }
    entity_id = properties.get("entity-id")
    if entity_id:
        attributes["subject"] = str(entity_id)
    if (created_at := _created_at(message.body)) is not None:
        attributes["time"] = created_at
    attributes["partitionkey"] = message.session_id
    attributes |= {name: properties[key] for key, name in _EXTENSIONS.items() if key in properties}
    return attributes


def _created_at(body: bytes) -> str | None:
    data: Any = json.loads(body)
    created_at = data.get("createdAt") if isinstance(data, dict) else None
    return text(created_at) if isinstance(created_at, str) and created_at else None


class CloudEventsPublisher:
    """
    The Publisher port around another one: what passes is sent as CloudEvents.
    """

    def __init__(self, publisher: Publisher, *, source: str, mode: ContentMode | str) -> None:
        self._publisher, self._source, self._mode = publisher, source, ContentMode(mode)

    @property
    def lanes(self) -> int:
        return self._publisher.lanes

    @property
    def judged(self) -> bool:
        return getattr(self._publisher, "judged", False)

    async def publish(self, lane: int, messages: Sequence[OutboundMessage]) -> None:
        await self._publisher.publish(
            lane, [as_cloud_event(message, source=self._source, mode=self._mode) for message in messages]
        )
