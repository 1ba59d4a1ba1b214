"""
Message: the sections of an encoded message, and the message of the port.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cosmos_outbox.adapters.amqp.decoding import decode_described
from cosmos_outbox.adapters.amqp.errors import ProtocolError
from cosmos_outbox.adapters.amqp.frames import Code
from cosmos_outbox.messages import Message

ENQUEUED_AT, SEQUENCE_NUMBER = "x-opt-enqueued-time", "x-opt-sequence-number"
LOCKED_UNTIL = "x-opt-locked-until"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DELIVERY_COUNT = 4  # field of a header
_PROPERTIES = 13  # fields


class Sections:
    """
    An encoded message, its sections told apart.
    """

    __slots__ = ("annotations", "application_properties", "body", "header", "properties")

    def __init__(self, payload: bytes) -> None:
        """
        Raises:
            ProtocolError: the payload is no message.
        """
        self.header: list[Any] = []
        self.annotations: dict[Any, Any] = {}
        self.properties: list[Any] = [None] * _PROPERTIES
        self.application_properties: dict[Any, Any] = {}
        self.body: list[tuple[int, Any]] = []  # of each section, its code and what is in it
        position, size = 0, len(payload)
        while position < size:
            code, value, position = decode_described(payload, position)
            name, kind = _KINDS.get(code, _UNKNOWN) if isinstance(code, int) else _UNKNOWN
            if not isinstance(value, kind):
                raise ProtocolError(f"Section {code} of a message is malformed.")
            if name == "body":
                self.body.append((code, value))
            elif name == "properties":
                self.properties = value + [None] * (_PROPERTIES - len(value))
            elif name is not None:
                setattr(self, name, value)


_UNKNOWN: tuple[str | None, Any] = None, object
_KINDS: dict[int, tuple[str | None, Any]] = {
    Code.HEADER: ("header", list),
    Code.MESSAGE_ANNOTATIONS: ("annotations", dict),
    Code.PROPERTIES: ("properties", list),
    Code.APPLICATION_PROPERTIES: ("application_properties", dict),
    Code.DATA: ("body", bytes),
    Code.SEQUENCE: ("body", list),
    Code.VALUE: ("body", object),
}


def message_of(sections: Sections) -> Message:
    """
    Return the message of the port.
    """
    properties, annotations, header = sections.properties, sections.annotations, sections.header
    return Message(
        message_id=_id(properties[0]) or "",
        session_id=_text(properties[10]),
        subject=_text(properties[3]) or "",
        body=_body(sections.body),
        content_type=_text(properties[6]),
        correlation_id=_id(properties[5]),
        properties={str(name): _text(value) for name, value in sections.application_properties.items()},
        sequence_number=_number(annotations.get(SEQUENCE_NUMBER)),
        delivery_count=_number(header[_DELIVERY_COUNT] if len(header) > _DELIVERY_COUNT else 0),
        enqueued_at=moment(annotations.get(ENQUEUED_AT)),
    )


def moment(milliseconds: Any) -> datetime | None:
    """
    Return the time of a timestamp of AMQP; None where there is none.
    """
    try:
        return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)
    except (TypeError, OverflowError):  # no time that Python has
        return None


def _body(sections: list[tuple[int, Any]]) -> bytes:
    if len(sections) == 1 and isinstance(data := sections[0][1], bytes):
        return data
    # An AMQP value or sequence is of a sender in another language.
    return b"".join(value if isinstance(value, bytes) else _written(value) for _, value in sections)


def _written(value: Any) -> bytes:
    return b"" if value is None else str(value).encode()


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _id(value: Any) -> str | None:
    # AMQP takes numbers, UUIDs and binary for ids.
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, UUID | int | str):
        return str(value)
    return None
