"""
Decoding: bytes of AMQP 1.0 as values of Python.

Whatever the bytes are, the result is a value or a `ProtocolError`, after work in proportion to their number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from cosmos_outbox_amqp.errors import ProtocolError

SMALL_ULONG, _SHORT_TEXTS = 0x53, (0xA1, 0xA3)
_SIZE_AND_COUNT = struct.Struct(">II").unpack_from
_Unpack = Callable[[bytes, int], tuple[Any, ...]]
# What `struct` reads a number by
NUMBERS = {
    code: form
    for form, codes in {
        "B": (0x50, 0x52, 0x53), "b": (0x51, 0x54, 0x55), "H": (0x60,), "h": (0x61,), "I": (0x70,), "i": (0x71,), "f": (0x72,),
        "Q": (0x80,), "q": (0x81, 0x83), "d": (0x82,), "?": (0x56,),
    }.items()
    for code in codes
}  # fmt: skip
_NUMBERS: dict[int, tuple[_Unpack, int]] = {  # with the bytes of a number and its code
    code: ((layout := struct.Struct(">" + form)).unpack_from, 1 + layout.size)
    for code, form in NUMBERS.items()
}
CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_DEEPEST = 32  # of values in values
MALFORMED = (IndexError, KeyError, ValueError, TypeError, struct.error)
_Decoded = tuple[Any, int]
_Decode = Callable[[bytes, int, int], _Decoded]


class Described(NamedTuple):
    """
    A value and what says its meaning: a number of the AMQP specification, or the name that a vendor gave a type of its own.
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
        return decode_at(data, position, 0)
    except MALFORMED as error:
        raise ProtocolError(f"What the peer sent is not AMQP: {error!r:.200}") from error


def decode_at(data: bytes, position: int, depth: int) -> _Decoded:
    return _DECODE[data[position]](data, position + 1, depth)


def _constant(*, value: Any) -> _Decode:
    return lambda data, position, depth: (value, position)


def _number(unpack: _Unpack, size: int) -> _Decode:
    return lambda data, position, depth: (unpack(data, position)[0], position + size - 1)


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
        end = start + int.from_bytes(data[position:start], "big")
        if end > len(data):
            raise IndexError("a value ends behind the end")
        return convert(data[start:end]), end

    return read


def extent(data: bytes, position: int, width: int) -> tuple[int, int, int]:
    """
    Return where the values of a list, a map or an array begin and end, and how many there are.
    """
    if width == 1:
        end, count, position = position + 1 + data[position], data[position + 1], position + 2
    else:
        size, count = _SIZE_AND_COUNT(data, position)
        end, position = position + 4 + size, position + 8
    # Values of a type without bytes are as many as the count says: no more of them than there are bytes.
    if end > len(data) or count > end - position:
        raise IndexError("a value ends behind the end")
    return position, end, count


def _items(width: int) -> _Decode:
    def read(data: bytes, position: int, depth: int) -> _Decoded:
        position, end, count = extent(data, position, width)
        if depth == _DEEPEST:
            raise ValueError("too deep")
        values: list[Any] = []
        append, depth = values.append, depth + 1
        for _ in range(count):
            code = data[position]
            # The most common types are decoded inline, because a call costs more. The end checks that they lie within the bytes.
            if code in _SHORT_TEXTS:
                start = position + 2
                position = start + data[position + 1]
                try:
                    append(data[start:position].decode())
                except UnicodeDecodeError:
                    append(_text(data[start:position]))
            elif code in CONSTANTS:
                append(CONSTANTS[code])
                position += 1
            elif code in _NUMBERS:
                unpack, size = _NUMBERS[code]
                append(unpack(data, position + 1)[0])
                position += size
            else:
                value, position = _DECODE[code](data, position + 1, depth)
                append(value)
        if position != end:
            raise ValueError("values and their size differ")
        return values, end

    return read


def _pairs(width: int) -> _Decode:
    listed = _items(width)

    def read(data: bytes, position: int, depth: int) -> _Decoded:
        values, end = listed(data, position, depth)
        if len(values) % 2:
            raise ValueError("a key without a value")
        one = iter(values)
        return dict(zip(one, one, strict=True)), end

    return read


def _array(width: int) -> _Decode:
    def read(data: bytes, position: int, depth: int) -> _Decoded:
        start, end, count = extent(data, position, width)
        if depth == _DEEPEST:
            raise ValueError("too deep")
        position, descriptors = start, []
        while data[position] == 0:
            descriptor, position = decode_at(data, position + 1, depth + 1)
            descriptors.append(descriptor)
            depth += 1  # each value of the array is in one more `Described`
            if depth == _DEEPEST:
                raise ValueError("too deep")
        # Each descriptor applies to every value: limit their product to the number of bytes.
        if count * len(descriptors) > end - start:
            raise IndexError("more descriptors than bytes")
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
    if data[position] == SMALL_ULONG:
        descriptor, position = data[position + 1], position + 2
    else:
        descriptor, position = decode_at(data, position, depth + 1)
    value, position = _DECODE[data[position]](data, position + 1, depth + 1)
    return Described(descriptor, value), position


_DECODE: dict[int, _Decode] = {
    0x00: _described,
    **{code: _constant(value=value) for code, value in CONSTANTS.items()},
    **{code: _number(*number) for code, number in _NUMBERS.items()},
    0x45: lambda data, position, depth: ([], position),
    0x73: _fixed(4, _char), 0x74: _fixed(4, bytes), 0x84: _fixed(8, bytes), 0x94: _fixed(16, bytes),
    0x98: _fixed(16, lambda raw: UUID(bytes=raw)),
    0xA0: _short(bytes), 0xA1: _short(_text), 0xA3: _short(_text),
    0xB0: _long(bytes), 0xB1: _long(_text), 0xB3: _long(_text),
    0xC0: _items(1), 0xC1: _pairs(1), 0xD0: _items(4), 0xD1: _pairs(4),
    0xE0: _array(1), 0xF0: _array(4),
}  # fmt: skip
