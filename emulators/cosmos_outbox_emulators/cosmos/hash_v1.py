"""
Computes effective partition keys of kind Hash, version 1. Containers that were created on Azure without a `version` use them.
Version 2 is in `partition_key.py`.

The key has two parts: the MurmurHash3 (x86, 32 bit) of the value, written as a number whose digits compare as strings, and after it
the value. Of a string, only the first 100 characters are hashed.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import pairwise
from typing import Any

_CHARACTERS_HASHED = 100
_BYTES_KEPT = 100
_HASHES = 1 << 32
_SIGN = 1 << 63
_MASK = 0xFFFFFFFF
_FIRST, _LAST = "", "FF"


def effective_partition_key(component: Any, encoded: bytes) -> str:
    """
    Return the effective partition key of one value. `encoded` is the value in the form that version 2 hashes; it is not used for a
    string, because version 1 ends strings in another way.
    """
    if isinstance(component, str):
        component = component[:_CHARACTERS_HASHED]
        encoded = b"\x08" + component.encode() + b"\x00"
    return (_number(_murmur3_x86_32(encoded)) + _text_or_type(component, encoded)).hex().upper()


def even_ranges(count: int) -> list[tuple[str, str]]:
    return list(pairwise([_FIRST, *(_bound_of_hash(_HASHES * i // count) for i in range(1, count)), _LAST]))


def middle(low: str, high: str) -> str:
    return _bound_of_hash((_hash(low) + _hash(high)) // 2)


def width(low: str, high: str) -> int:
    return _hash(high) - _hash(low)


def _bound_of_hash(value: int) -> str:
    return _number(value).hex().upper()


def _hash(bound: str) -> int:
    """Return the lowest hash whose effective partition key is not below this bound."""
    return _HASHES if bound == _LAST else bisect_left(range(_HASHES), bound, key=_bound_of_hash)


def _number(value: float) -> bytes:
    """
    Write a number so that its bytes sort as the numbers do. The first byte has eight bits of the number; each following byte has
    seven, and a bit that says whether another byte follows.
    """
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    bits = bits ^ _SIGN if bits < _SIGN else (~bits + 1) % (1 << 64)
    digits = [bits >> 56]
    bits = bits << 8 & (1 << 64) - 1
    while bits:
        digits.append(bits >> 56 | 1)
        bits = bits << 7 & (1 << 64) - 1
    digits[-1] &= 0xFE if len(digits) > 1 else 0xFF
    return bytes([0x05, *digits, *([0] if len(digits) == 1 else [])])


def _text_or_type(component: Any, encoded: bytes) -> bytes:
    if isinstance(component, str):
        raw = component.encode()
        kept = raw if len(raw) <= _BYTES_KEPT else raw[: _BYTES_KEPT + 1]
        return b"\x08" + bytes(byte + 1 for byte in kept) + (b"\x00" if kept is raw else b"")
    if isinstance(component, int | float) and not isinstance(component, bool):
        return _number(component)
    return encoded[:1]


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> 32 - by) & _MASK


def _murmur3_x86_32(data: bytes) -> int:
    state = 0
    whole = len(data) & ~3
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        state ^= _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
        state = (_rotate(state, 13) * 5 + 0xE6546B64) & _MASK
    if tail := int.from_bytes(data[whole:], "little"):
        state ^= _rotate(tail * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
