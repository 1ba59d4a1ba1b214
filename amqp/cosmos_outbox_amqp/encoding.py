"""
Encode single Python values as AMQP 1.0 data, for the receiver. `cosmos_outbox.adapters.servicebus.encoding` encodes messages that are sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from cosmos_outbox_amqp.decoding import Described

_BYTE = 0x100
_U32 = struct.Struct(">I").pack


class Symbol(str):
    """An AMQP symbol: a text of ASCII characters, such as the name of a property that the protocol defines."""

    __slots__ = ()


class Encoded(bytes):
    """
    A value of an AMQP type that Python does not have, such as a ubyte, in encoded form. Functions such as `ubyte` create it.
    """

    __slots__ = ()


def ubyte(value: int) -> Encoded:
    return Encoded(b"\x50" + value.to_bytes(1, "big"))


def ushort(value: int) -> Encoded:
    return Encoded(b"\x60" + value.to_bytes(2, "big"))


def timestamp(milliseconds: int) -> Encoded:
    return Encoded(b"\x83" + milliseconds.to_bytes(8, "big", signed=True))


def encode(value: Any) -> bytes:
    """
    Return the AMQP encoding of a value. An int is encoded as a uint, and the descriptor of a described value as a number.
    """
    return _ENCODE[type(value)](value)


def _with_size(short: bytes, long: bytes, raw: bytes) -> bytes:
    size = len(raw)
    return short + bytes((size,)) + raw if size < _BYTE else long + _U32(size) + raw


def _compound(short: bytes, long: bytes, items: Sequence[Any]) -> bytes:
    raw, count = b"".join([_ENCODE[type(item)](item) for item in items]), len(items)
    if count < _BYTE and len(raw) + 1 < _BYTE:
        return short + bytes((len(raw) + 1, count)) + raw
    return long + _U32(len(raw) + 4) + _U32(count) + raw


_ENCODE: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    int: lambda value: b"\x70" + _U32(value),
    bytes: lambda value: _with_size(b"\xa0", b"\xb0", value),
    str: lambda value: _with_size(b"\xa1", b"\xb1", value.encode()),
    Symbol: lambda value: _with_size(b"\xa3", b"\xb3", value.encode("ascii")),
    UUID: lambda value: b"\x98" + value.bytes,
    list: lambda value: _compound(b"\xc0", b"\xd0", value),
    dict: lambda value: _compound(b"\xc1", b"\xd1", [part for pair in value.items() for part in pair]),
    Described: lambda value: b"\x00\x53" + value.descriptor.to_bytes(1, "big") + encode(value.value),
    Encoded: bytes,
}
