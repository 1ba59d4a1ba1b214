"""Decodes AMQP 1.0 bytes to typed Python values, and refuses malformed input."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from cosmos_outbox_emulators.servicebus import primitives

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_i8 = struct.Struct(">b").unpack_from
_i16 = struct.Struct(">h").unpack_from
_i32 = struct.Struct(">i").unpack_from
_i64 = struct.Struct(">q").unpack_from
_f32 = struct.Struct(">f").unpack_from
_f64 = struct.Struct(">d").unpack_from

# Null and boolean elements of an array take no bytes. Without this limit, an array of 10 bytes could declare 2^32 elements.
MAX_ZERO_WIDTH_ELEMENTS = 4096


class DecodeError(ValueError):
    """The bytes are not valid AMQP 1.0. The connection answers with an error, and nothing in the bytes takes effect."""


Decoder = Callable[[bytes, int], tuple[Any, int]]


def decode(data: bytes, position: int = 0) -> tuple[Any, int]:
    """Return the value that starts at this position, and the position after the value."""
    try:
        value, end = _DECODERS[data[position]](data, position + 1)
    except (IndexError, struct.error, ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"malformed AMQP value: {error}") from error
    if end > len(data):
        raise DecodeError("an AMQP value is longer than the data")
    return value, end


def skip(data: bytes, position: int) -> int:
    """Return the position after the value that starts at this position, without decoding the value."""
    try:
        code = data[position]
        while code == 0:
            position = skip(data, position + 1)
            code = data[position]
        family = code >> 4
        if family in (0xA, 0xC, 0xE):
            end = position + 2 + data[position + 1]
        elif family in (0xB, 0xD, 0xF):
            end = position + 5 + int(_u32(data, position + 1)[0])
        else:
            end = position + _SKIP_FIXED[family]
    except (IndexError, KeyError, struct.error, RecursionError) as error:
        raise DecodeError(f"malformed AMQP value: {error}") from error
    if end > len(data):
        raise DecodeError("an AMQP value is longer than the data")
    return end


_SKIP_FIXED = {0x4: 1, 0x5: 2, 0x6: 3, 0x7: 5, 0x8: 9, 0x9: 17}


def _unknown(data: bytes, position: int) -> tuple[Any, int]:
    raise DecodeError(f"unknown AMQP constructor 0x{data[position - 1]:02x}")


def _decode_described(data: bytes, position: int) -> tuple[Any, int]:
    descriptor, position = _DECODERS[data[position]](data, position + 1)
    value, position = _DECODERS[data[position]](data, position + 1)
    return primitives.Described(descriptor, value), position


def _constant(value: Any) -> Decoder:
    return lambda data, position: (value, position)


def _empty_list(data: bytes, position: int) -> tuple[Any, int]:
    return [], position


def _scalar(width: int, read: Callable[[bytes, int], tuple[Any, ...]], kind: Callable[[Any], Any]) -> Decoder:
    return lambda data, position: (kind(read(data, position)[0]), position + width)


def _opaque(code: int, width: int) -> Decoder:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        end = position + width
        # A slice beyond the end of the data would only be shorter, without an error. Without this check, an array could declare
        # 2^32 empty elements.
        if end > len(data):
            raise DecodeError("an AMQP value is longer than the data")
        return primitives.Opaque(bytes((code,)) + data[position:end]), end

    return read


def _boolean(data: bytes, position: int) -> tuple[Any, int]:
    return data[position] == 1, position + 1


def _uuid(data: bytes, position: int) -> tuple[Any, int]:
    return uuid.UUID(bytes=data[position : position + 16]), position + 16


def _small(read: Callable[[bytes], Any]) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        end = position + 1 + data[position]
        return read(data[position + 1 : end]), end

    return decoder


def _large(read: Callable[[bytes], Any]) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        end = position + 4 + _u32(data, position)[0]
        return read(data[position + 4 : end]), end

    return decoder


def _string(raw: bytes) -> str:
    return str(raw, "utf-8")


def _symbol(raw: bytes) -> primitives.Symbol:
    return primitives.Symbol(str(raw, "ascii"))


def _bounds(data: bytes, position: int, *, large: bool) -> tuple[int, int, int]:
    if large:
        return _u32(data, position + 4)[0], position + 8, position + 4 + _u32(data, position)[0]
    return data[position + 1], position + 2, position + 1 + data[position]


def _list8(data: bytes, position: int) -> tuple[Any, int]:
    count, start, end = data[position + 1], position + 2, position + 1 + data[position]
    return _elements(data, start, count, end)


def _list32(data: bytes, position: int) -> tuple[Any, int]:
    count, start, end = _bounds(data, position, large=True)
    return _elements(data, start, count, end)


def _elements(data: bytes, position: int, count: int, end: int) -> tuple[list[Any], int]:
    decoders = _DECODERS
    out: list[Any] = []
    add = out.append
    for _ in range(count):
        code = data[position]
        if code == 0x40:  # checked first, because most fields of a list are null
            add(None)
            position += 1
        else:
            value, position = decoders[code](data, position + 1)
            add(value)
    if position != end:
        raise DecodeError("the size of an AMQP list does not match its elements")
    return out, end


def _map(large: bool) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        count, position, end = _bounds(data, position, large=large)
        if count % 2:
            raise DecodeError("an AMQP map has a key without a value")
        flat, end = _elements(data, position, count, end)
        return dict(zip(flat[::2], flat[1::2], strict=True)), end

    return decoder


def _array(large: bool) -> Decoder:
    def decoder(data: bytes, position: int) -> tuple[Any, int]:
        count, position, end = _bounds(data, position, large=large)
        out = primitives.Array()
        if count == 0:
            return out, end
        described, descriptor = data[position] == 0, None
        if described:
            descriptor, position = _DECODERS[data[position + 1]](data, position + 2)
        code = data[position]
        if code >> 4 == 4 and count > MAX_ZERO_WIDTH_ELEMENTS:
            raise DecodeError("an AMQP array declares too many elements that take no bytes")
        position += 1
        read = _DECODERS[code]
        for _ in range(count):
            value, position = read(data, position)
            out.append(primitives.Described(descriptor, value) if described else value)
        if position != end:
            raise DecodeError("the size of an AMQP array does not match its elements")
        return out, end

    return decoder


def _decoder_table() -> list[Decoder]:
    table: list[Decoder] = [_unknown] * 256
    table[0x00] = _decode_described
    table[0x40], table[0x41], table[0x42] = _constant(None), _constant(value=True), _constant(value=False)
    table[0x43], table[0x44] = _constant(primitives.UInt(0)), _constant(primitives.ULong(0))
    table[0x45], table[0x56] = _empty_list, _boolean
    table[0x50] = lambda data, position: (primitives.UByte(data[position]), position + 1)
    table[0x51] = _scalar(1, _i8, primitives.Byte)
    table[0x52] = lambda data, position: (primitives.UInt(data[position]), position + 1)
    table[0x53] = lambda data, position: (primitives.ULong(data[position]), position + 1)
    table[0x54], table[0x55] = _scalar(1, _i8, primitives.Int), _scalar(1, _i8, primitives.Long)
    table[0x60], table[0x61] = _scalar(2, _u16, primitives.UShort), _scalar(2, _i16, primitives.Short)
    table[0x70], table[0x71], table[0x72] = (
        _scalar(4, _u32, primitives.UInt),
        _scalar(4, _i32, primitives.Int),
        _scalar(4, _f32, primitives.Float),
    )
    table[0x73], table[0x74] = _opaque(0x73, 4), _opaque(0x74, 4)
    table[0x80], table[0x81], table[0x82] = (
        _scalar(8, _u64, primitives.ULong),
        _scalar(8, _i64, primitives.Long),
        _scalar(8, _f64, float),
    )
    table[0x83] = _scalar(8, _i64, primitives.Timestamp)
    table[0x84], table[0x94] = _opaque(0x84, 8), _opaque(0x94, 16)
    table[0x98] = _uuid
    table[0xA0], table[0xA1], table[0xA3] = _small(bytes), _small(_string), _small(_symbol)
    table[0xB0], table[0xB1], table[0xB3] = _large(bytes), _large(_string), _large(_symbol)
    table[0xC0], table[0xC1], table[0xE0] = _list8, _map(large=False), _array(large=False)
    table[0xD0], table[0xD1], table[0xF0] = _list32, _map(large=True), _array(large=True)
    return table


_DECODERS = _decoder_table()
