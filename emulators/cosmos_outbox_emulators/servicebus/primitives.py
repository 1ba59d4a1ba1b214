"""Python types for AMQP 1.0 types that Python does not have, so that a decoded value is encoded as the same AMQP type again."""

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
    """An AMQP array. All elements have the type of the first element, unlike the elements of an AMQP list."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor, which says how to read the value."""

    descriptor: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value of an AMQP type that has no counterpart in Python (decimals, char), kept as its encoded bytes."""

    raw: bytes
