"""Message: decode an AMQP message, and convert it to the `Message` that the library's handlers get."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from cosmos_outbox.adapters.servicebus.receiving import body_bytes
from cosmos_outbox.message_format import Message, amqp_id, amqp_text
from cosmos_outbox_amqp.decoding import MALFORMED, decode_at, end_of, readable_pairs
from cosmos_outbox_amqp.errors import ProtocolError
from cosmos_outbox_amqp.frames import Code

ENQUEUED_AT, SEQUENCE_NUMBER = "x-opt-enqueued-time", "x-opt-sequence-number"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DELIVERY_COUNT = 4  # the index of the delivery count among the fields of the header section
_FIELDS = 13  # the number of fields of the properties section
_MAPS = (Code.MESSAGE_ANNOTATIONS, Code.APPLICATION_PROPERTIES)
_BODY: dict[int, type] = {Code.DATA: bytes, Code.SEQUENCE: list, Code.VALUE: object}
_READ: dict[int, type] = {Code.HEADER: list, Code.PROPERTIES: list, **dict.fromkeys(_MAPS, dict), **_BODY}


class Sections:
    """The decoded sections of an AMQP message: header, annotations, properties, application properties and body."""

    __slots__ = ("annotations", "application_properties", "body", "header", "properties")

    def __init__(self, payload: bytes) -> None:
        """
        Decode a message.

        Raises:
            ProtocolError: the payload is not an encoded message.
        """
        self.body: list[Any] = []  # one value for each section of the body
        found: dict[int, Any] = {}
        position = 0
        try:
            while position < len(payload):
                code, value, position = _section(payload, position)
                if not isinstance(value, _READ.get(code, object)):
                    raise ProtocolError(f"Section {code} of a message is malformed.")
                if code in _BODY:
                    self.body.append(value)
                else:
                    found[code] = value
        except MALFORMED as error:
            raise ProtocolError(f"The peer's payload is not a message: {error!r:.200}") from error
        self.header: list[Any] = found.get(Code.HEADER) or []
        self.annotations: dict[Any, Any] = found.get(Code.MESSAGE_ANNOTATIONS) or {}
        properties: list[Any] = found.get(Code.PROPERTIES) or []
        self.properties = properties + [None] * (_FIELDS - len(properties))
        self.application_properties: dict[Any, Any] = found.get(Code.APPLICATION_PROPERTIES) or {}


def _section(payload: bytes, position: int) -> tuple[int, Any, int]:
    if payload[position] != 0:
        raise ValueError("a section of the message has no descriptor")
    code, start = decode_at(payload, position + 1)
    if not isinstance(code, int):
        raise TypeError(f"A section of the message has the descriptor {code!r:.80}, which is no integer.")
    if code not in _READ:  # a section that this client does not need, such as delivery annotations
        return code, None, end_of(payload, start)
    try:
        return code, *decode_at(payload, start)
    except MALFORMED:
        if code not in _MAPS:
            raise
        return code, readable_pairs(payload, start), end_of(payload, start)


def message_of(sections: Sections) -> Message:
    """Convert the sections of an AMQP message to the `Message` that handlers get."""
    properties, annotations, header = sections.properties, sections.annotations, sections.header
    return Message(
        message_id=amqp_id(properties[0]) or "",
        session_id=amqp_text(properties[10]),
        subject=amqp_text(properties[3]) or "",
        body=body_bytes(sections.body),
        content_type=amqp_text(properties[6]),
        correlation_id=amqp_id(properties[5]),
        properties={str(name): amqp_text(value) for name, value in sections.application_properties.items()},
        sequence_number=_number(annotations.get(SEQUENCE_NUMBER)),
        delivery_count=_number(header[_DELIVERY_COUNT] if len(header) > _DELIVERY_COUNT else 0),
        enqueued_at=moment(annotations.get(ENQUEUED_AT)),
    )


def moment(milliseconds: Any) -> datetime | None:
    """
    Convert an AMQP timestamp, in milliseconds since 1970, to a datetime. Return None if there is no timestamp, or if it is out of
    the range of a datetime.
    """
    try:
        return None if milliseconds is None else _EPOCH + timedelta(0, 0, 0, milliseconds)
    except (TypeError, ValueError, OverflowError):  # no number, or a time that a datetime cannot hold
        return None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
