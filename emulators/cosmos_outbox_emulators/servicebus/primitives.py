"""The AMQP 1.0 types that Python has no name for, so that a decoded value encodes to the same type again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Symbol(str):
    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    __slots__ = ()


class Timestamp(int):
    __slots__ = ()


class Float(float):
    __slots__ = ()


class Array(list[Any]):
    """A list whose elements share one type, that of the first; a list proper may mix them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with the descriptor that says how to read it."""

    descriptor: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Opaque:
    """A type Python has no twin for (decimals, char), kept as its encoded bytes."""

    raw: bytes
