"""
Decoding: decode AMQP 1.0 data to Python values.

Any input gives a value or a `ProtocolError`. The time to decode it grows only in proportion to the number of bytes, so a peer
cannot block this process with a small frame.
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
# The first half of a type code says how many bytes the value has.
_BYTES_OF_KIND = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
_SMALL_KINDS = (0xA, 0xC, 0xE)
_UNKNOWN = 0x01  # AMQP gives this code to no value
# The errors that malformed data can cause while it is decoded. RecursionError is among them: values that are nested too deep are
# malformed.
MALFORMED = (IndexError, KeyError, ValueError, TypeError, RecursionError, struct.error)


class Described(NamedTuple):
    """
    A value of AMQP with a descriptor that says what it means.

    descriptor: a number of the AMQP specification, or the name of a type that a vendor has defined.
    value: the value.
    """

    descriptor: Any
    value: Any


def decode(data: bytes, position: int = 0) -> _Decoded:
    """
    Decode the value that begins at a position. Return the value, and the position at which the next value begins.

    Whole numbers and timestamps (in milliseconds) become int, symbols str, and arrays lists. Decimals stay bytes.

    Raises:
        ProtocolError: there is no value at this position, or it has a type that AMQP does not define.
    """
    try:
        return decode_at(data, position)
    except MALFORMED as error:
        raise ProtocolError(f"The peer sent data that is not valid AMQP: {error!r:.200}") from error


def decode_at(data: bytes, position: int) -> _Decoded:
    """Decode a value like `decode`, but for malformed data raise one of the errors in `MALFORMED` and not a ProtocolError."""
    return _DECODE[data[position]](data, position + 1)


def end_of(data: bytes, position: int) -> int:
    """
    Return the position after the value that begins at a position, without decoding the value. For malformed data, raise one of the
    errors in `MALFORMED`.
    """
    due = 1
    while due:
        code, position, due = data[position], position + 1, due - 1
        if code == 0:
            due += 2  # the descriptor, and the value that it describes
        elif code >> 4 in _BYTES_OF_KIND:
            position += _BYTES_OF_KIND[code >> 4]
        else:
            start = position + (1 if code >> 4 in _SMALL_KINDS else 4)
            position = start + int.from_bytes(data[position:start], "big")
    if position > len(data):
        raise IndexError("the data ends before the end of a value")
    return position


def readable_pairs(data: bytes, position: int) -> dict[Any, Any]:
    """
    Decode a map even if some of its values are malformed, such as values that are nested too deep. A malformed value becomes
    None.
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
            raise IndexError("the data ends before the end of a value")
        return convert(data[start:end]), end

    return read


def _text(raw: bytes) -> str:
    # Replace invalid characters: an error would end the connection, and again each time the broker delivers the message.
    return raw.decode("utf-8", "replace")


def _extent(data: bytes, position: int, width: int) -> tuple[int, int, int]:
    # Return where the items of a list, a map or an array begin and end, and the number of items.
    if width == 1:
        end, count, position = position + 1 + data[position], data[position + 1], position + 2
    else:
        size, count = _SIZE_AND_COUNT(data, position)
        end, position = position + 4 + size, position + 8
    # Allow no more items than there are bytes: items of a type that needs no bytes would let a small frame declare millions of items.
    if end > len(data) or count > end - position:
        raise IndexError("the data ends before the end of a value")
    return position, end, count


def _items(width: int, *, alike: bool = False) -> _Decode:
    def read(data: bytes, position: int) -> _Decoded:
        position, end, count = _extent(data, position, width)
        read_one: _Decode = decode_at
        # The values of an array share one type code; described values in an array are not supported.
        if alike:
            read_one, position = _DECODE[data[position] or _UNKNOWN], position + 1
        values = []
        for _ in range(count):
            value, position = read_one(data, position)
            values.append(value)
        if position != end:
            raise ValueError("the elements of a list, map or array do not fill its declared size")
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
