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

_Decoded = tuple[Any, int]
_Decode = Callable[[bytes, int], _Decoded]
_SIZE_AND_COUNT = struct.Struct(">II").unpack_from
_NUMBERS = {  # for each format of `struct`: the AMQP codes of the numbers that it reads
    "B": (0x50, 0x52, 0x53), "b": (0x51, 0x54, 0x55), "H": (0x60,), "h": (0x61,), "I": (0x70,), "i": (0x71,), "f": (0x72,),
    "Q": (0x80,), "q": (0x81, 0x83), "d": (0x82,), "?": (0x56,),
}  # fmt: skip
_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_BYTES_OF_KIND = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}  # the first half of a code says how its value is sized
_SMALL_KINDS = (0xA, 0xC, 0xE)
_UNKNOWN = 0x01  # no code of a value
# The interpreter's own limit is how deep values in values are read.
MALFORMED = (IndexError, KeyError, ValueError, TypeError, RecursionError, struct.error)


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
        return decode_at(data, position)
    except MALFORMED as error:
        raise ProtocolError(f"What the peer sent is not AMQP: {error!r:.200}") from error


def decode_at(data: bytes, position: int) -> _Decoded:
    """Do as `decode`, but fail with one of `MALFORMED`."""
    return _DECODE[data[position]](data, position + 1)


def end_of(data: bytes, position: int) -> int:
    """Return where the value at a position ends, whatever is in it; fail with one of `MALFORMED`."""
    due = 1
    while due:
        code, position, due = data[position], position + 1, due - 1
        if code == 0:
            due += 2  # its descriptor, and what that describes
        elif code >> 4 in _BYTES_OF_KIND:
            position += _BYTES_OF_KIND[code >> 4]
        else:
            start = position + (1 if code >> 4 in _SMALL_KINDS else 4)
            position = start + int.from_bytes(data[position:start], "big")
    if position > len(data):
        raise IndexError("a value ends behind the end")
    return position


def readable_pairs(data: bytes, position: int) -> dict[Any, Any]:
    """
    Return the pairs of a map; None for a value that is too deep or claims too much, so that the others are read all the same.
    """
    start, end, _ = _extent(data, position + 1, {0xC1: 1, 0xD1: 4}[data[position]])
    found = {}
    while start < end:
        key, start = decode_at(data, start)
        try:
            found[key] = decode_at(data, start)[0]
        except MALFORMED:
            found[key] = None
        start = end_of(data, start)
    return found


def _constant(*, value: Any) -> _Decode:
    return lambda data, position: (value, position)


def _number(form: str) -> _Decode:
    layout = struct.Struct(">" + form)
    unpack, size = layout.unpack_from, layout.size
    return lambda data, position: (unpack(data, position)[0], position + size)


def _raw(convert: Callable[[bytes], Any], size: int = 0, *, width: int = 0) -> _Decode:
    def read(data: bytes, position: int) -> _Decoded:
        start = position + width
        end = start + (int.from_bytes(data[position:start], "big") if width else size)
        if end > len(data):
            raise IndexError("a value ends behind the end")
        return convert(data[start:end]), end

    return read


def _text(raw: bytes) -> str:
    # A message with a broken character must not cut the connection again and again.
    return raw.decode("utf-8", "replace")


def _extent(data: bytes, position: int, width: int) -> tuple[int, int, int]:
    # Where the values of a list, a map or an array begin and end, and how many there are
    if width == 1:
        end, count, position = position + 1 + data[position], data[position + 1], position + 2
    else:
        size, count = _SIZE_AND_COUNT(data, position)
        end, position = position + 4 + size, position + 8
    # Values of a type without bytes are as many as the count says: no more of them than there are bytes.
    if end > len(data) or count > end - position:
        raise IndexError("a value ends behind the end")
    return position, end, count


def _items(width: int, *, alike: bool = False) -> _Decode:
    def read(data: bytes, position: int) -> _Decoded:
        position, end, count = _extent(data, position, width)
        read_one: _Decode = decode_at
        if (
            alike
        ):  # an array; not of described values, for a descriptor of a descriptor would apply to every value
            read_one, position = _DECODE[data[position] or _UNKNOWN], position + 1
        values = []
        for _ in range(count):
            value, position = read_one(data, position)
            values.append(value)
        if position != end:
            raise ValueError("values and their size differ")
        return values, end

    return read


def _pairs(width: int) -> _Decode:
    listed = _items(width)

    def read(data: bytes, position: int) -> _Decoded:
        values, end = listed(data, position)
        one = iter(values)
        return dict(zip(one, one, strict=True)), end

    return read


def _decode_described(data: bytes, position: int) -> _Decoded:
    descriptor, position = decode_at(data, position)
    value, position = decode_at(data, position)
    return Described(descriptor, value), position


_DECODE: dict[int, _Decode] = {
    0x00: _decode_described,
    **{code: _constant(value=value) for code, value in _CONSTANTS.items()},
    **{code: _number(form) for form, codes in _NUMBERS.items() for code in codes},
    0x45: lambda data, position: ([], position),
    0x73: _raw(lambda raw: raw.decode("utf-32-be", "replace"), 4), 0x74: _raw(bytes, 4), 0x84: _raw(bytes, 8),
    0x94: _raw(bytes, 16), 0x98: _raw(lambda raw: UUID(bytes=raw), 16),
    0xA0: _raw(bytes, width=1), 0xA1: _raw(_text, width=1), 0xA3: _raw(_text, width=1),
    0xB0: _raw(bytes, width=4), 0xB1: _raw(_text, width=4), 0xB3: _raw(_text, width=4),
    0xC0: _items(1), 0xC1: _pairs(1), 0xD0: _items(4), 0xD1: _pairs(4),
    0xE0: _items(1, alike=True), 0xF0: _items(4, alike=True),
}  # fmt: skip
