"""Reads and writes AMQP frames and the performatives in them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from cosmos_outbox_emulators.servicebus.conditions import AmqpError
from cosmos_outbox_emulators.servicebus.decoding import DecodeError, decode
from cosmos_outbox_emulators.servicebus.encoding import encode, pack_u32
from cosmos_outbox_emulators.servicebus.primitives import Described, Symbol


class Code(IntEnum):
    OPEN = 0x10
    BEGIN = 0x11
    ATTACH = 0x12
    FLOW = 0x13
    TRANSFER = 0x14
    DISPOSITION = 0x15
    DETACH = 0x16
    END = 0x17
    CLOSE = 0x18
    ERROR = 0x1D
    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    SOURCE = 0x28
    TARGET = 0x29
    COORDINATOR = 0x30
    SASL_MECHANISMS = 0x40
    SASL_INIT = 0x41
    SASL_OUTCOME = 0x44
    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78


AMQP_FRAME, SASL_FRAME = 0, 1
HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"
ACCEPTED = b"\x00\x53\x24\x45"
BATCH_FORMAT = 0x80013700

# Fields that are null at the end of a list are written out. azure-servicebus before 7.15 reads fields by index that a shorter list
# does not have, and every version hangs for ever on an error with fewer than three fields.
_FIELD_COUNTS: dict[int, int] = {
    Code.OPEN: 10, Code.BEGIN: 8, Code.ATTACH: 14, Code.FLOW: 11, Code.TRANSFER: 11, Code.DISPOSITION: 6, Code.DETACH: 3,
    Code.END: 1, Code.CLOSE: 1, Code.ERROR: 3, Code.SOURCE: 11, Code.TARGET: 7, Code.SASL_MECHANISMS: 1, Code.SASL_OUTCOME: 2,
}  # fmt: skip

_Fields = tuple[tuple[type | None, ...], int]
_ANY = None
# For each performative, the types of its fields, and how many of the first fields are mandatory. A frame is checked by them
# before it has any effect.
_READABLE: dict[int, _Fields] = {
    Code.OPEN: ((str, str, int, int, int, _ANY, _ANY, _ANY, _ANY, dict), 1),
    Code.BEGIN: ((int, int, int, int, int, _ANY, _ANY, dict), 0),
    Code.ATTACH: (
        (str, int, bool, int, int, Described, Described, dict, bool, int, int, _ANY, _ANY, dict),
        3,
    ),
    Code.FLOW: ((int, int, int, int, int, int, int, int, bool, bool, dict), 0),
    Code.TRANSFER: ((int, int, bytes, int, bool, bool, int, _ANY, bool, bool, bool), 1),
    Code.DISPOSITION: ((bool, int, int, bool, Described, bool), 2),
    Code.DETACH: ((int, bool, Described), 1),
    Code.END: ((Described,), 0),
    Code.CLOSE: ((Described,), 0),
    Code.SASL_INIT: ((str, bytes, str), 1),
}


def read_performative(body: bytes) -> tuple[int, list[Any], int]:
    """
    Return the code of a performative, its checked fields with None for absent ones, and the position of the payload after it.

    Raises:
        DecodeError: the performative is unknown, a field has a wrong type, or a mandatory field is missing.
    """
    if body[:2] == b"\x00\x53" and len(body) > 3:
        code, position = body[2], 3
    elif body[:1] == b"\x00":
        code, position = decode(body, 1)
    else:
        raise DecodeError("a frame body must start with a described list")
    readable = _READABLE.get(code) if isinstance(code, int) else None
    if readable is None:
        raise DecodeError(f"unknown performative {code!r}")
    fields, position = decode(body, position)
    kinds, mandatory = readable
    if type(fields) is not list or len(fields) > len(kinds):
        raise DecodeError(f"performative 0x{code:02x} must be a list of at most {len(kinds)} fields")
    for value, kind in zip(fields, kinds, strict=False):
        if value is not None and kind is not None and not isinstance(value, kind):
            raise DecodeError(f"performative 0x{code:02x} has a field of a wrong type: {value!r:.80}")
    fields += [None] * (len(kinds) - len(fields))
    if None in fields[:mandatory]:
        raise DecodeError(f"performative 0x{code:02x} lacks a mandatory field")
    return code, fields, position


class Raw(bytes):
    """A value that is already encoded as AMQP bytes."""

    __slots__ = ()


TRUE, FALSE = Raw(b"\x41"), Raw(b"\x42")


def performative(code: int, *fields: Any) -> bytes:
    parts: list[bytes] = [field if type(field) is Raw else encode(field) for field in fields]
    count = max(len(parts), _FIELD_COUNTS.get(code, 0))
    body = b"".join(parts) + b"\x40" * (count - len(parts))
    if len(body) < 255:
        return b"\x00\x53" + bytes((code, 0xC0, len(body) + 1, count)) + body
    return b"\x00\x53" + bytes((code, 0xD0)) + pack_u32(len(body) + 4) + pack_u32(count) + body


def error(failure: AmqpError) -> Raw:
    info = {Symbol(key): value for key, value in failure.info.items()} or None
    return Raw(performative(Code.ERROR, Symbol(failure.condition), failure.description, info))


def encode_rejected(failure: AmqpError) -> bytes:
    return performative(Code.REJECTED, error(failure))


def frame(channel: int, body: bytes, payload: bytes = b"", kind: int = AMQP_FRAME) -> bytes:
    return (
        pack_u32(8 + len(body) + len(payload))
        + bytes((2, kind, channel >> 8, channel & 255))
        + body
        + payload
    )


_ACCEPTED_FRAME: Callable[..., bytes] = struct.Struct(">IBBH6sBBIBIB4sB").pack
_DELIVERY_FRAME: Callable[..., bytes] = struct.Struct(">IBBH6sBIBI2s16sBB6s").pack
_DELIVERY_FRAME_HEAD = 8 + 6 + 5 + 5 + 18 + 2 + 6


def outcome_frame(channel: int, delivery_id: int, outcome: bytes, *, to_sender: bool) -> bytes:
    """Return the frame that settles one delivery with this outcome. `to_sender` says whether the peer sent the delivery."""
    if outcome == ACCEPTED:
        return _ACCEPTED_FRAME(
            31, 2, AMQP_FRAME, channel, b"\x00\x53\x15\xc0\x12\x06",
            0x41 if to_sender else 0x42, 0x70, delivery_id, 0x70, delivery_id, 0x41, ACCEPTED, 0x40,
        )  # fmt: skip
    number = Raw(b"\x70" + pack_u32(delivery_id))
    return frame(channel, performative(Code.DISPOSITION, to_sender, number, number, TRUE, Raw(outcome)))


def transfer_frames(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    payload: bytes,
    *,
    settled: bool,
    max_frame_size: int,
) -> list[bytes]:
    """Return the frame of one delivery, or several frames if the delivery exceeds the peer's frame size."""
    room = max_frame_size - 64
    size = len(payload)
    if size <= room and len(tag) == 16:
        head = _DELIVERY_FRAME(
            _DELIVERY_FRAME_HEAD + size, 2, AMQP_FRAME, channel, b"\x00\x53\x14\xc0\x25\x0b",
            0x70, handle, 0x70, delivery_id, b"\xa0\x10", tag, 0x43, 0x41 if settled else 0x42, b"\x42\x40\x40\x40\x40\x40",
        )  # fmt: skip
        return [head + payload]
    numbers = Raw(b"\x70" + pack_u32(handle)), Raw(b"\x70" + pack_u32(delivery_id))
    fields = (*numbers, tag, Raw(b"\x43"), settled)
    if size <= room:
        return [frame(channel, performative(Code.TRANSFER, *fields, FALSE), payload)]
    frames = [frame(channel, performative(Code.TRANSFER, *fields, TRUE), payload[:room])]
    for start in range(room, size, room):
        more = start + room < size
        body = performative(Code.TRANSFER, numbers[0], None, None, None, None, more)
        frames.append(frame(channel, body, payload[start : start + room]))
    return frames
