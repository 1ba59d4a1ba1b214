"""
Layouts: read all values of a frame or section at once if an earlier one had the same layout.

The messages of a sender differ in a few values, and so do the frames of a broker. A layout remembers the types, sizes and keys of a
list or a map that was decoded value by value: these are the bytes between its values. If the next one has the same bytes in the same
places, `struct` reads all values in one call, for a fourth of the cost. Otherwise they are decoded value by value.
So the result never depends on earlier messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from cosmos_outbox_amqp.decoding import (
    CONSTANTS,
    MALFORMED,
    NUMBERS,
    SMALL_ULONG,
    Described,
    decode_at,
    extent,
)
from cosmos_outbox_amqp.errors import ProtocolError

# Bytes by which layouts are found: the descriptor, the type and the size. So all layouts of one beginning have one size. Where the
# size is short, the count and how the first value begins are among them.
_BEGINNING = 8
_WIDTHS = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}  # of the size and the count of a list or a map
_MAPS = (0xC1, 0xD1)
_TEXTS = {0xA1: 2, 0xA3: 2, 0xB1: 5, 0xB3: 5}  # bytes that come before a text
_BINARIES = {0xA0: 2, 0xB0: 5}
_LEAST_VALUES = 2  # of one, `itemgetter` returns no tuple
# Even the worst peer cannot fill 30 MB: these limit the bytes and items (a key is one) of a layout, the layouts of one beginning,
# and the beginnings.
_LARGEST, _MOST_ITEMS, _MOST_ALIKE, _MOST_BEGINNINGS = 1 << 10, 128, 4, 256
# A layout costs as much as decoding several times, so rare values get none: at first every fourth value without a layout gets one, and
# fewer as more kinds of beginnings come. A beginning loses its layouts when they fit less often than not.
_SELDOM, _MOST_SELDOM, _PATIENCE = 4, 64, 8
_Pick = Callable[[list[Any]], tuple[Any, ...]]


class _Layout(NamedTuple):
    size: int
    unpack: Callable[[bytes, int], tuple[Any, ...]]  # bytes between, a value, bytes between…
    between: tuple[Any, ...]  # the bytes between the values of this layout
    texts: tuple[int, ...]  # which unpacked values are texts, still as bytes
    build: Callable[[list[Any]], Any]  # makes the list or the map from the unpacked values


class _Alike:
    """
    The layouts of one beginning, how much more often they fitted than not, and how often there was none.
    """

    __slots__ = ("balance", "layouts", "missed")
    seldom = _SELDOM

    def __init__(self) -> None:
        self.layouts: list[_Layout] = []
        self.balance, self.missed = 0, 1

    def miss(self, data: bytes, position: int) -> None:
        self.missed += 1
        if self.layouts:
            self.balance -= 1
        if self.balance < -_PATIENCE:
            self.layouts.clear()
        elif self.missed % self.seldom == 0 and len(self.layouts) < _MOST_ALIKE:
            layout = _layout_of(data, position)
            if layout is not None:
                self.layouts.append(layout)


_seen: dict[bytes, _Alike] = {}  # by the beginning


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
    _seen.clear()
    _Alike.seldom = _SELDOM


def described_at(data: bytes, position: int) -> tuple[Any, Any, int]:
    """
    Do as `decode_described`, but fail with one of `MALFORMED`.
    """
    beginning = data[position : position + _BEGINNING]
    alike = _seen.get(beginning)
    if alike is not None:
        for size, unpack, between, texts, build in alike.layouts:
            found = unpack(data, position)
            if found[::2] == between:
                values = [*found[1::2]]
                try:
                    for index in texts:
                        values[index] = values[index].decode()
                except UnicodeDecodeError:  # decoding replaces a broken character
                    break
                alike.balance += 1
                return beginning[2], build(values), position + size
    if data[position] != 0:
        raise ValueError("a value without a descriptor")
    if data[position + 1] != SMALL_ULONG:
        code, start = decode_at(data, position + 1, 1)
        return code, *decode_at(data, start, 1)
    value, end = decode_at(data, position + 3, 1)
    if alike is not None:
        alike.miss(data, position)
    elif data[position + 3] in _WIDTHS and end - position <= _LARGEST:
        _begin(beginning)
    return data[position + 2], value, end


def _begin(beginning: bytes) -> None:
    if len(_seen) >= _MOST_BEGINNINGS:
        _seen.clear()
        _Alike.seldom = min(2 * _Alike.seldom, _MOST_SELDOM)
    _seen[beginning] = _Alike()


def _layout_of(data: bytes, start: int) -> _Layout | None:
    """
    Return the layout of a list or a map; None where it has too few values or too many, or one that itself holds others.
    """
    kind = data[start + 3]
    position, end, count = extent(data, start + 4, _WIDTHS[kind])
    if count > _MOST_ITEMS:
        return None
    form, written = ">", start  # the struct format so far, and the byte where it ends
    # Where each value is found in what was unpacked, followed by the constants: these are counted from the end.
    picked: list[int] = []
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
        elif code in CONSTANTS or (kind not in _MAPS and _is_outcome(value)):
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
    build = _map_of(keys, pick, constants) if kind in _MAPS else _list_of(picked, pick, constants)
    return _Layout(end - start, unpack, unpack(data, start)[::2], tuple(texts), build)


def _list_of(picked: list[int], pick: _Pick, constants: list[Any]) -> Callable[[list[Any]], list[Any]]:
    outcomes = [number for number, at in enumerate(picked) if at < 0 and isinstance(constants[at], Described)]

    def build(values: list[Any]) -> list[Any]:
        return [*pick(values + constants)]

    def build_with_outcomes(values: list[Any]) -> list[Any]:
        fields = build(values)
        for number in outcomes:  # or two readers share the empty list
            fields[number] = Described(fields[number].descriptor, [])
        return fields

    return build_with_outcomes if outcomes else build


def _map_of(keys: list[str], pick: _Pick, constants: list[Any]) -> Callable[[list[Any]], dict[str, Any]]:
    def build(values: list[Any]) -> dict[str, Any]:
        return dict(zip(keys, pick(values + constants) if constants else values))  # noqa: B905 - as many, and a check costs

    return build


def _is_outcome(value: Any) -> bool:
    # Such as `accepted`: its bytes stay the same. A descriptor that is no number could take a thousand times the memory of its bytes.
    return isinstance(value, Described) and type(value.descriptor) is int and value.value == []
