"""
Decoding: bytes of AMQP 1.0 as values of Python.

Whatever the bytes are, the result is a value or a `ProtocolError`, after work in proportion to their number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from cosmos_outbox.adapters.amqp.errors import ProtocolError

_NULL, _SMALL_ULONG, _SHORT_TEXTS = 0x40, 0x53, (0xA1, 0xA3)
_DEEPEST = 32  # of values in values
_Decoded = tuple[Any, int]
_Decode = Callable[[bytes, int, int], _Decoded]


class Described(NamedTuple):
    """
    A value and what says its meaning: a number of the AMQP specification, or the name of somebody else's type.
    """

    descriptor: Any
    value: Any


def decode(data: bytes, position: int = 0) -> _Decoded:
    """
    Return the value at a position, and where the next one begins.

    Whole numbers and timestamps (in milliseconds) are int, symbols are str, arrays are lists, decimals stay bytes.

    Raises:
        ProtocolError: there is none, or one that AMQP does not know.
    """
    try:
        return _decode(data, position, 0)
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise ProtocolError(f"What the peer sent is not AMQP: {error!r:.200}") from error


def decode_described(data: bytes, position: int = 0) -> tuple[Any, Any, int]:
    """
    Return the descriptor and the value at a position, as a frame and each section of a message have them, and what is next.

    Raises:
        ProtocolError: there is no such thing.
    """
    if data[position : position + 1] != b"\x00":
        raise ProtocolError("What the peer sent is not AMQP: a value without a descriptor.")
    try:
        if data[position + 1] == _SMALL_ULONG:
            descriptor, position = data[position + 2], position + 3
        else:
            descriptor, position = _decode(data, position + 1, 1)
        value, position = _DECODE[data[position]](data, position + 1, 1)
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise ProtocolError(f"What the peer sent is not AMQP: {error!r:.200}") from error
    return descriptor, value, position


def _decode(data: bytes, position: int, depth: int) -> _Decoded:
    return _DECODE[data[position]](data, position + 1, depth)


def _constant(*, value: Any) -> _Decode:
    return lambda data, position, depth: (value, position)


def _unpacked(code: str) -> _Decode:
    layout = struct.Struct(">" + code)
    unpack, size = layout.unpack_from, layout.size

    def read(data: bytes, position: int, depth: int) -> _Decoded:
        return unpack(data, position)[0], position + size

    return read


def _byte(data: bytes, position: int, depth: int) -> _Decoded:
    return data[position], position + 1


def _fixed(size: int, convert: Callable[[bytes], Any]) -> _Decode:
    def read(data: bytes, position: int, depth: int) -> _Decoded:
        end = position + size
        if end > len(data):
            raise IndexError("a value ends behind the end")
        return convert(data[position:end]), end

    return read


def _text(raw: bytes) -> str:
    # A message with a broken character must not cut the connection again and again.
    return raw.decode("utf-8", "replace")


def _char(raw: bytes) -> str:
    return raw.decode("utf-32-be", "replace")


def _short(convert: Callable[[bytes], Any]) -> _Decode:
    def read(data: bytes, position: int, depth: int) -> _Decoded:
        start = position + 1
        end = start + data[position]
        if end > len(data):
            raise IndexError("a value ends behind the end")
        return convert(data[start:end]), end

    return read


def _long(convert: Callable[[bytes], Any]) -> _Decode:
    def read(data: bytes, position: int, depth: int) -> _Decoded:
        start = position + 4
        end = start + _size(data, position, 4)
        return convert(data[start:end]), end

    return read


def _size(data: bytes, position: int, width: int) -> int:
    """
    Return the length that is written at a position, of what follows it.
    """
    size = int.from_bytes(data[position : position + width], "big")
    if position + width + size > len(data):
        raise IndexError("a value ends behind the end")
    return size


def _items(width: int) -> _Decode:
    def read(data: bytes, position: int, depth: int) -> _Decoded:
        end = position + width + _size(data, position, width)
        count = int.from_bytes(data[position + width : position + 2 * width], "big")
        position += 2 * width
        if depth == _DEEPEST or count > end - position:
            raise ValueError("too deep, or more values than bytes")
        values: list[Any] = []
        append, decoders, depth = values.append, _DECODE, depth + 1
        for _ in range(count):
            code = data[position]
            if (
                code in _SHORT_TEXTS
            ):  # what most values are; that it ends in time shows at the end of the list
                start = position + 2
                position = start + data[position + 1]
                append(data[start:position].decode("utf-8", "replace"))
            elif code == _NULL:
                append(None)
                position += 1
            else:
                value, position = decoders[code](data, position + 1, depth)
                append(value)
        if position != end:
            raise ValueError("values and their size differ")
        return values, end

    return read


def _pairs(width: int) -> _Decode:
    listed = _items(width)

    def read(data: bytes, position: int, depth: int) -> _Decoded:
        values, end = listed(data, position, depth)
        return dict(zip(values[::2], values[1::2], strict=True)), end

    return read


def _array(width: int) -> _Decode:
    def read(data: bytes, position: int, depth: int) -> _Decoded:
        end = position + width + _size(data, position, width)
        count = int.from_bytes(data[position + width : position + 2 * width], "big")
        position += 2 * width
        # Values of a type without bytes are as many as the count says: no more of them than there are bytes.
        if depth == _DEEPEST or count > end - position:
            raise ValueError("too deep, or more values than bytes")
        descriptors = []
        while data[position] == 0:
            descriptor, position = _decode(data, position + 1, depth + 1)
            descriptors.append(descriptor)
            if len(descriptors) > _DEEPEST:
                raise ValueError("too deep")
        read_one, position, values = _DECODE[data[position]], position + 1, []
        for _ in range(count):
            value, position = read_one(data, position, depth + 1)
            for descriptor in reversed(descriptors):
                value = Described(descriptor, value)
            values.append(value)
        if position != end:
            raise ValueError("values and their size differ")
        return values, end

    return read


def _described(data: bytes, position: int, depth: int) -> _Decoded:
    if depth == _DEEPEST:
        raise ValueError("too deep")
    descriptor, position = _decode(data, position, depth + 1)
    value, position = _decode(data, position, depth + 1)
    return Described(descriptor, value), position


def _flag(data: bytes, position: int, depth: int) -> _Decoded:
    return data[position] == 1, position + 1


_DECODE: dict[int, _Decode] = {
    0x00: _described,
    0x40: _constant(value=None), 0x41: _constant(value=True), 0x42: _constant(value=False),
    0x43: _constant(value=0), 0x44: _constant(value=0),
    0x45: lambda data, position, depth: ([], position),
    0x50: _byte, 0x51: _unpacked("b"), 0x52: _byte, 0x53: _byte, 0x54: _unpacked("b"), 0x55: _unpacked("b"), 0x56: _flag,
    0x60: _unpacked("H"), 0x61: _unpacked("h"),
    0x70: _unpacked("I"), 0x71: _unpacked("i"), 0x72: _unpacked("f"), 0x73: _fixed(4, _char), 0x74: _fixed(4, bytes),
    0x80: _unpacked("Q"), 0x81: _unpacked("q"), 0x82: _unpacked("d"), 0x83: _unpacked("q"), 0x84: _fixed(8, bytes),
    0x94: _fixed(16, bytes), 0x98: _fixed(16, lambda raw: UUID(bytes=raw)),
    0xA0: _short(bytes), 0xA1: _short(_text), 0xA3: _short(_text),
    0xB0: _long(bytes), 0xB1: _long(_text), 0xB3: _long(_text),
    0xC0: _items(1), 0xC1: _pairs(1), 0xD0: _items(4), 0xD1: _pairs(4),
    0xE0: _array(1), 0xF0: _array(4),
}  # fmt: skip
