"""Frames: build and parse the frames of AMQP, each of which has a performative such as open, attach or transfer."""

from __future__ import annotations

import struct
from typing import Any, Final

from cosmos_outbox_amqp.decoding import Described, decode
from cosmos_outbox_amqp.encoding import encode
from cosmos_outbox_amqp.errors import AmqpError, ProtocolError

_HEAD = struct.Struct(">IBBH").pack
_FIELDS = 14  # the longest performative, an attach, has this many fields
RECEIVING, SENDING = True, False  # the role of this side on a link
SETTLED, CLOSED = True, True  # flags: `settled` of a disposition, `closed` of a detach


class Code:
    """
    The descriptors of the AMQP specification that this library reads or writes.

    They are plain numbers and not members of an enumeration, because each frame is compared with several of them, and looking up a
    member takes ten times as long.
    """

    OPEN: Final = 0x10
    BEGIN: Final = 0x11
    ATTACH: Final = 0x12
    FLOW: Final = 0x13
    TRANSFER: Final = 0x14
    DISPOSITION: Final = 0x15
    DETACH: Final = 0x16
    END: Final = 0x17
    CLOSE: Final = 0x18
    ERROR: Final = 0x1D
    ACCEPTED: Final = 0x24
    REJECTED: Final = 0x25
    MODIFIED: Final = 0x27
    SOURCE: Final = 0x28
    TARGET: Final = 0x29
    SASL_MECHANISMS: Final = 0x40
    SASL_INIT: Final = 0x41
    SASL_OUTCOME: Final = 0x44
    HEADER: Final = 0x70
    MESSAGE_ANNOTATIONS: Final = 0x72
    PROPERTIES: Final = 0x73
    APPLICATION_PROPERTIES: Final = 0x74
    DATA: Final = 0x75
    SEQUENCE: Final = 0x76
    VALUE: Final = 0x77


def performative(code: int, *fields: Any) -> bytes:
    return encode(Described(code, [*fields]))


def frame(channel: int, body: bytes, *, sasl: bool = False) -> bytes:
    return _HEAD(8 + len(body), 2, sasl, channel) + body


def read_performative(data: bytes, position: int = 0) -> tuple[int, list[Any], int]:
    """
    Parse the performative that begins at a position. Return its code, its fields, and the position at which its payload begins.

    Fields that the peer left out are None.

    Raises:
        ProtocolError: there is no performative at this position.
    """
    value, position = decode(data, position)
    fields = fields_of(value)
    if not isinstance(value, Described) or not isinstance(value.descriptor, int) or value.value is not fields:
        raise ProtocolError("A frame of the peer has no performative.")
    if len(fields) < _FIELDS:
        fields.extend([None] * (_FIELDS - len(fields)))
    return value.descriptor, fields, position


def read_error(value: Any) -> AmqpError | None:
    """Return the error in a field of a performative or of an outcome. Return None if the field has no error."""
    fields = fields_of(value)
    if not fields:
        return None
    condition, description = (*fields, None)[:2]
    return AmqpError(str(condition), "" if description is None else str(description))


def fields_of(value: Any) -> list[Any]:
    """Return the list of fields of a described value, such as an outcome or a source. Return an empty list for any other value."""
    return value.value if isinstance(value, Described) and isinstance(value.value, list) else []
