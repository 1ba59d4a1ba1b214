"""
Parked messages: store a message of a subscription as a document of the parked store, and read it back. `handling.py` decides which
messages are parked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

from cosmos_outbox.errors import ParkingError
from cosmos_outbox.message_format import Message
from cosmos_outbox.stored_documents import Document, size_on_wire

_EXACT = 2**53  # JSON numbers are 64-bit floats in many programs, which hold every integer up to this
# Properties whose values JSON would change are stored as `{"type": …, "text": …}`. For each type there are two functions: one makes the
# text from a value, the other makes the value from the text.
_TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    int: (str, int),
    float: (repr, float),  # Cosmos DB would return 1.0 as 1, and JSON has no infinity and no NaN
    Decimal: (str, Decimal),
    bytes: (lambda value: base64.b64encode(value).decode(), base64.b64decode),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    UUID: (str, UUID),
}
_READ = {kind.__name__: read for kind, (_, read) in _TEXTS.items()}
# The most bytes of a stored body. A request may have 2 MB, and also contains properties and the parked store's own fields.
_ROOM = 1_800_000
# How many levels of nesting a body may have: a document may have 128, and the parked store's own fields take two of them.
_DEEPEST = 126


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A message of a parked key, in the form in which the parked store keeps it until an operator releases the key."""

    message: Message
    key: str

    @property
    def id(self) -> str:
        return self.message.message_id

    @property
    def document(self) -> Document:
        """
        Return the document that is stored for the message.

        A body that is a JSON object is stored as `data`, which an operator may edit. If `data` would not give back the same bytes, for
        example because the body has spaces, the body is also stored as base64. Any other body is stored as base64 only. So is an object that
        Cosmos DB would refuse or change.
        """
        message = self.message
        return {
            "id": message.message_id,
            "partitionKey": self.key,
            "type": "message",
            **_body_fields(message.body),
            "message": {
                "sessionId": message.session_id,
                "subject": message.subject,
                "contentType": message.content_type,
                "correlationId": message.correlation_id,
                # In a partitioned topic or queue this number may be too large for JSON, because its highest bits name the partition.
                "sequenceNumber": _encode(message.sequence_number),
                "deliveryCount": message.delivery_count,
                "enqueuedAt": message.enqueued_at.isoformat() if message.enqueued_at else None,
                "properties": {name: _encode(value) for name, value in message.properties.items()},
            },
        }


def message_of(document: Mapping[str, Any], *, edited: bool) -> Message:
    """
    Return the message that a document of the parked store holds.

    Args:
        document: the document, as `ParkedMessage` wrote it.
        edited: whether an operator gave the message another payload.

    Raises:
        ParkingError: the document holds no readable message.
    """
    try:
        said = document["message"]
        body = document.get("body")
        content = _compact_json(document["data"]) if body is None or edited else base64.b64decode(body)
        return Message(
            message_id=document["id"],
            session_id=said["sessionId"],
            subject=said["subject"],
            body=content,
            content_type=said["contentType"],
            correlation_id=said["correlationId"],
            properties={name: _decode(value) for name, value in said["properties"].items()},
            sequence_number=_decode(said["sequenceNumber"]),
            delivery_count=said["deliveryCount"],
            enqueued_at=datetime.fromisoformat(said["enqueuedAt"]) if said["enqueuedAt"] else None,
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ParkingError(
            f"The document {document.get('id')!r} in the parked store is no readable message ({error!r}): drop it, or correct it."
        ) from error


def _body_fields(body: bytes) -> Document:
    data = _read_exactly(body)
    raw: Document = {"body": base64.b64encode(body).decode()}
    if not isinstance(data, dict):
        return {"data": {}, **raw}
    readable = {"data": data} if _compact_json(data) == body else {"data": data, **raw}
    # Store a body in the first of these forms that fits. If none fits, choose the smallest: `data` may be larger than base64, because a
    # letter outside of ASCII takes six bytes in it.
    ways: list[Document] = [readable, {"data": {}, **raw}, {"data": data}]
    return next((way for way in ways if size_on_wire(way) <= _ROOM), min(ways, key=size_on_wire))


def _compact_json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _read_exactly(body: bytes) -> Any:
    try:
        data = json.loads(body, parse_int=_exact, parse_float=_finite, parse_constant=_finite)
        # This raises an error if a string has half a surrogate pair, which JSON allows as an escape and UTF-8 cannot encode.
        _compact_json(data)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return data if _fits(data, _DEEPEST) else None


def _fits(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_fits(one, levels - 1) for one in inside)


def _exact(digits: str) -> int:
    if abs(number := int(digits)) > _EXACT:
        raise ValueError(f"Cosmos DB would store {digits} as another number")
    return number


def _finite(digits: str) -> float | int:
    if not isfinite(number := float(digits)):
        raise ValueError(f"{digits} is no number in JSON")
    if Decimal(digits) != Decimal(repr(number)):
        raise ValueError(f"Cosmos DB would store {digits} as another number")
    # Cosmos DB returns 1.0 as 1, so read it as 1 here. The comparison with the body then shows that `data` does not give back the same bytes.
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) <= _EXACT):
        return value
    if (kind := type(value)) not in _TEXTS:
        return str(value)
    return {"type": kind.__name__, "text": _TEXTS[kind][0](value)}


def _decode(stored: Any) -> Any:
    return _READ[stored["type"]](stored["text"]) if isinstance(stored, dict) else stored
