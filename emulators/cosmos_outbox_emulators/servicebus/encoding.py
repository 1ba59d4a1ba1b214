"""Encodes typed Python values to AMQP 1.0 bytes. `decoding.py` reads such bytes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from cosmos_outbox_emulators.servicebus import primitives

pack_u32 = struct.Struct(">I").pack
pack_i64 = struct.Struct(">q").pack


def encode(value: Any) -> bytes:
    """Encode a value by its exact type. A plain int becomes a long, and a plain float a double."""
    return _ENCODERS[type(value)](value)


def _encode_sized(data: bytes, small: int, large: int) -> bytes:
    size = len(data)
    return bytes((small, size)) + data if size < 256 else bytes((large,)) + pack_u32(size) + data


def _compound(data: bytes, count: int, small: int, large: int) -> bytes:
    if len(data) < 255 and count < 256:
        return bytes((small, len(data) + 1, count)) + data
    return bytes((large,)) + pack_u32(len(data) + 4) + pack_u32(count) + data


def _unsigned(zero: bytes, small: int, large: bytes, pack: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda value: zero if value == 0 else bytes((small, value)) if value < 256 else large + pack(value)


def _signed(small: int, large: bytes, pack: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda value: bytes((small, value & 255)) if -128 <= value < 128 else large + pack(value)


def _encoder(prefix: bytes, layout: str) -> Callable[[Any], bytes]:
    pack = struct.Struct(layout).pack
    return lambda value: prefix + pack(value)


def encode_map_items(items: dict[Any, Any]) -> bytes:
    """
    Return the encoded keys and values without the head of a map, so that they can be added to a map that is already encoded.
    """
    return b"".join([encode(key) + encode(value) for key, value in items.items()])


def _encode_map(value: dict[Any, Any]) -> bytes:
    return _compound(encode_map_items(value), len(value) * 2, 0xC1, 0xD1)


def _encode_list(value: list[Any]) -> bytes:
    return _compound(b"".join([encode(item) for item in value]), len(value), 0xC0, 0xD0) if value else b"\x45"


# All elements of an AMQP array share one constructor, so each type is encoded in its widest form.
_ARRAY_ELEMENTS: dict[type, tuple[bytes, Callable[[Any], bytes]]] = {
    primitives.Timestamp: (b"\x83", pack_i64),
    primitives.Long: (b"\x81", pack_i64),
    int: (b"\x81", pack_i64),
    primitives.ULong: (b"\x80", struct.Struct(">Q").pack),
    primitives.Int: (b"\x71", struct.Struct(">i").pack),
    primitives.UInt: (b"\x70", pack_u32),
    primitives.UShort: (b"\x60", struct.Struct(">H").pack),
    primitives.Short: (b"\x61", struct.Struct(">h").pack),
    primitives.UByte: (b"\x50", struct.Struct(">B").pack),
    primitives.Byte: (b"\x51", struct.Struct(">b").pack),
    primitives.Float: (b"\x72", struct.Struct(">f").pack),
    float: (b"\x82", struct.Struct(">d").pack),
    bool: (b"\x56", struct.Struct(">?").pack),
    uuid.UUID: (b"\x98", lambda value: value.bytes),
    primitives.Symbol: (b"\xb3", lambda value: pack_u32(len(value)) + value.encode("ascii")),
    str: (b"\xb1", lambda value: pack_u32(len(value.encode())) + value.encode()),
    bytes: (b"\xb0", lambda value: pack_u32(len(value)) + value),
    dict: (b"\xd1", lambda value: _encode_wide(encode_map_items(value), len(value) * 2)),
    list: (b"\xd0", lambda value: _encode_wide(b"".join([encode(item) for item in value]), len(value))),
}


def _encode_wide(data: bytes, count: int) -> bytes:
    return pack_u32(len(data) + 4) + pack_u32(count) + data


def _encode_array(value: primitives.Array) -> bytes:
    if not value:
        return b"\xe0\x02\x00\x40"
    first, constructor = value[0], b""
    if isinstance(first, primitives.Described):
        constructor = b"\x00" + encode(first.descriptor)
        value = primitives.Array(item.value for item in value)
        first = value[0]
    if type(first) is primitives.Opaque:
        code, body = first.raw[:1], b"".join([item.raw[1:] for item in value])
    elif first is None:
        code, body = b"\x40", b""
    elif type(first) is primitives.Array:
        parts = [_array_body(item) for item in value]
        code, body = b"\xf0", b"".join(parts)
    else:
        code, pack = _ARRAY_ELEMENTS[type(first)]
        body = b"".join([pack(item) for item in value])
    constructor += code
    return b"\xf0" + pack_u32(len(constructor) + len(body) + 4) + pack_u32(len(value)) + constructor + body


def _array_body(value: primitives.Array) -> bytes:
    encoded = _encode_array(value)
    return encoded[1:] if encoded[0] == 0xF0 else b"\x00\x00\x00\x05\x00\x00\x00\x00\x40"


def _encode_described(value: primitives.Described) -> bytes:
    return b"\x00" + encode(value.descriptor) + encode(value.value)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    str: lambda value: _encode_sized(value.encode(), 0xA1, 0xB1),
    primitives.Symbol: lambda value: _encode_sized(value.encode("ascii"), 0xA3, 0xB3),
    bytes: lambda value: _encode_sized(value, 0xA0, 0xB0),
    primitives.ULong: _unsigned(b"\x44", 0x53, b"\x80", struct.Struct(">Q").pack),
    primitives.UInt: _unsigned(b"\x43", 0x52, b"\x70", pack_u32),
    primitives.UShort: _encoder(b"\x60", ">H"),
    primitives.UByte: _encoder(b"\x50", ">B"),
    primitives.Long: _signed(0x55, b"\x81", pack_i64),
    int: _signed(0x55, b"\x81", pack_i64),
    primitives.Int: _signed(0x54, b"\x71", struct.Struct(">i").pack),
    primitives.Short: _encoder(b"\x61", ">h"),
    primitives.Byte: _encoder(b"\x51", ">b"),
    primitives.Timestamp: _encoder(b"\x83", ">q"),
    primitives.Float: _encoder(b"\x72", ">f"),
    float: _encoder(b"\x82", ">d"),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    primitives.Array: _encode_array,
    list: _encode_list,
    dict: _encode_map,
    primitives.Described: _encode_described,
    primitives.Opaque: lambda value: value.raw,
}
