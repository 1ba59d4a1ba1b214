"""
Layouts: frames and sections that are alike are read at once.

The messages of a sender differ in a few values, and so do the frames of a broker. What was decoded value by value is
remembered as a layout: the bytes between the values, and how `struct` reads all values in one call, which costs a fourth. Bytes
of no known layout are decoded, so what is read does not depend on what was read before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from cosmos_outbox.adapters.amqp.decoding import (
    CONSTANTS,
    MALFORMED,
    NUMBERS,
    SMALL_ULONG,
    Described,
    decode_at,
    extent,
)
from cosmos_outbox.adapters.amqp.errors import ProtocolError

_BEGINNING = 8  # bytes: the descriptor, the type, the size, and at most how the first value begins
_WIDTHS = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}  # of the size and the count of a list or a map
_MAPS = (0xC1, 0xD1)
_TEXTS = {0xA1: 2, 0xA3: 2, 0xB1: 5, 0xB3: 5}  # and how many bytes come before one
_BINARIES = {0xA0: 2, 0xB0: 5}
_LEAST_VALUES = 2  # or `itemgetter` returns no tuple
# What a peer can have remembered is bounded: of bytes that have a layout, of layouts that begin alike, and of beginnings.
_LARGEST, _MOST_ALIKE, _MOST_BEGINNINGS = 1 << 10, 4, 256


class _Layout(NamedTuple):
    size: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]  # what is between the values, and the values, in turn
    between: tuple[Any, ...]
    texts: tuple[int, ...]  # which of the values
    build: Callable[[list[Any]], Any]  # the list or the map of the values


_layouts: dict[bytes, list[_Layout]] = {}  # by the beginning; of one that was seen once, none
_unlike: set[bytes] = set()  # beginnings of what has no layout


def decode_described(data: bytes, position: int = 0) -> tuple[Any, Any, int]:
    """
    Return the descriptor and the value at a position, and where the value ends.

    Raises:
        ProtocolError: there is no such thing.
    """
    try:
        return described_at(data, position)
    except MALFORMED as error:
        raise ProtocolError(f"What the peer sent is not AMQP: {error!r:.200}") from error


def forget() -> None:
    """
    Forget all layouts.
    """
    _layouts.clear()
    _unlike.clear()


def described_at(data: bytes, position: int) -> tuple[Any, Any, int]:
    """
    Do as `decode_described`, but fail with one of `MALFORMED`.
    """
    beginning = data[position : position + _BEGINNING]
    alike = _layouts.get(beginning)
    if alike:
        for size, unpack, between, texts, build in alike:
            found = unpack(data, position)
            if found[::2] == between:
                values = [*found[1::2]]
                try:
                    for index in texts:
                        values[index] = values[index].decode()
                except UnicodeDecodeError:
                    break
                return beginning[2], build(values), position + size
    if data[position] != 0:
        raise ValueError("a value without a descriptor")
    if data[position + 1] != SMALL_ULONG:
        code, start = decode_at(data, position + 1, 1)
        return code, *decode_at(data, start, 1)
    value, end = decode_at(data, position + 3, 1)
    if data[position + 3] in _WIDTHS and end - position <= _LARGEST and beginning not in _unlike:
        _remember(beginning, data, position, alike)
    return data[position + 2], value, end


def _remember(beginning: bytes, data: bytes, position: int, alike: list[_Layout] | None) -> None:
    if alike is None:  # what comes only once is not worth it
        if len(_layouts) >= _MOST_BEGINNINGS:
            forget()
        _layouts[beginning] = []
    elif len(alike) < _MOST_ALIKE and (layout := _layout_of(data, position)) is not None:
        alike.append(layout)
    else:
        _unlike.add(beginning)


def _layout_of(data: bytes, start: int) -> _Layout | None:
    """
    Return the layout of a list or a map; None of one that holds others, or less than two values.
    """
    kind = data[start + 3]
    position, end, count = extent(data, start + 4, _WIDTHS[kind])
    form, written = ">", start  # and up to where it describes the bytes
    picked: list[
        int
    ] = []  # where each value is: among those unpacked, or counted from the end of the constants
    keys: list[str] = []
    constants: list[Any] = []
    texts: list[int] = []
    for number in range(count):
        code = data[position]
        value, after = decode_at(data, position, 1)
        if kind in _MAPS and number % 2 == 0:
            if code not in _TEXTS:
                return None
            keys.append(value)
        elif code in CONSTANTS or (isinstance(value, Described) and value.value == []):
            constants.append(value)
            picked.append(-len(constants))
        else:
            before = 1 if code in NUMBERS else _TEXTS.get(code) or _BINARIES.get(code)
            if before is None:
                return None
            index = len(picked) - len(constants)
            picked.append(index)
            if code in _TEXTS:
                texts.append(index)
            what = NUMBERS[code] if code in NUMBERS else f"{after - position - before}s"
            form += f"{position + before - written}s{what}"
            written = after
        position = after
    if len(picked) < _LEAST_VALUES:
        return None
    unpack = struct.Struct(f"{form}{end - written}s").unpack_from
    constants.reverse()
    pick = itemgetter(*picked)

    def build_list(values: list[Any]) -> list[Any]:
        return [*pick(values + constants)]

    def build_map(values: list[Any]) -> dict[str, Any]:
        return dict(zip(keys, pick(values + constants) if constants else values))  # noqa: B905 - as many, and a check costs

    build = build_map if kind in _MAPS else build_list
    return _Layout(end - start, unpack, unpack(data, start)[::2], tuple(texts), build)
