"""
Encodes AMQP values for the scripted peer, one function for each type.

This encoder shares no code with the client under test, so a mistake in the client's encoder is noticed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from uuid import UUID

NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"
_BYTE = 0x100
_U32 = struct.Struct(">I").pack


def ushort(value: int) -> bytes:
    return b"\x60" + value.to_bytes(2, "big")


def uint(value: int) -> bytes:
    return b"\x70" + _U32(value)


def uuid(value: UUID) -> bytes:
    return b"\x98" + value.bytes


def binary(value: bytes) -> bytes:
    return _sized(b"\xa0", b"\xb0", value)


def string(value: str) -> bytes:
    return _sized(b"\xa1", b"\xb1", value.encode())


def symbol(value: str) -> bytes:
    return _sized(b"\xa3", b"\xb3", value.encode("ascii"))


def listed(items: Sequence[bytes]) -> bytes:
    return _compound(b"\xc0", b"\xd0", items)


def mapped(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return _compound(b"\xc1", b"\xd1", [part for pair in pairs for part in pair])


def uuids(values: Iterable[UUID]) -> bytes:
    raw = [value.bytes for value in values]
    return b"\xf0" + _U32(5 + 16 * len(raw)) + _U32(len(raw)) + b"\x98" + b"".join(raw)


def described(code: int, value: bytes) -> bytes:
    """Encode a value with a numeric descriptor, as AMQP does for performatives and for the sections of a message."""
    return b"\x00\x53" + code.to_bytes(1, "big") + value


def _sized(short: bytes, long: bytes, raw: bytes) -> bytes:
    size = len(raw)
    return short + bytes((size,)) + raw if size < _BYTE else long + _U32(size) + raw


def _compound(short: bytes, long: bytes, parts: Sequence[bytes]) -> bytes:
    raw, count = b"".join(parts), len(parts)
    if count < _BYTE and len(raw) + 1 < _BYTE:
        return short + bytes((len(raw) + 1, count)) + raw
    return long + _U32(len(raw) + 4) + _U32(count) + raw


def performative(code: int, *fields: bytes) -> bytes:
    return described(code, listed(fields))


REJECTED = described(0x25, listed([]))
ACCEPTED = described(0x24, listed([]))
MODIFIED = described(0x27, listed([TRUE, FALSE]))


def rejected(condition: str, text: str = "so") -> bytes:
    return described(0x25, listed([described(0x1D, listed([symbol(condition), string(text)]))]))
