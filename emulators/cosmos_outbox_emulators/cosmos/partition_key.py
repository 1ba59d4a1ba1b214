"""
Reads partition keys from requests and documents, and computes their effective partition keys, which decide the range that holds
an item.

The effective partition key (EPK) of kind Hash, version 2, is the byte-reversed MurmurHash3 (x64, 128 bit) of the typed value, with
its two top bits cleared: 32 hexadecimal digits that compare as strings, from "" up to but excluding "FF". For kind MultiHash (a
hierarchical key), it consists of the hashes of all components, one after the other, so all keys with the same first components lie
next to each other. Version 1 of kind Hash is in `hash_v1`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cosmos_outbox_emulators.cosmos import hash_v1, jsontext
from cosmos_outbox_emulators.cosmos.errors import bad_request

FIRST_EPK = ""
LAST_EPK = "FF"
UNDEFINED: dict[str, Any] = {}  # stands in a partition key for a property that the document does not have

MOST_LEVELS = 3

_KEY_MISMATCH = 1001
_VERSIONS = {"V1": 1, "V2": 2}  # spelled as the client for Java writes them
_SEGMENT = re.compile(r"""/(?:"([^"]+)"|'([^']+)'|([^/"']+))""")
_LONGEST_KEY_BYTES = 2048
_RING = 1 << 126
_MASK = 0xFFFFFFFFFFFFFFFF
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalKey:
    """One partition key value. Equal keys have the same `encoded`: 1 and 1.0 are one key, 1 and true are two."""

    encoded: bytes
    epk: str


def logical_key(components: Sequence[Any], version: int = 2) -> LogicalKey:
    """
    Return the partition key with these components, one for each path. In version 2, kind Hash and kind MultiHash compute the same
    hash of a component.
    """
    encoded = [_encode_component(component) for component in components]
    # The service limits the length of the value. The bytes that `encoded` adds before and after each component do not count.
    if sum(len(one.encode()) for one in components if isinstance(one, str)) > _LONGEST_KEY_BYTES:
        raise bad_request("Partition key value is longer than 2048 bytes.")
    if version == 1:
        return LogicalKey(encoded=encoded[0], epk=hash_v1.effective_partition_key(components[0], encoded[0]))
    return LogicalKey(encoded=b"".join(encoded), epk="".join(map(effective_partition_key, encoded)))


def parse_header(text: str, paths: int, version: int = 2) -> LogicalKey:
    """
    Read the header `x-ms-documentdb-partitionkey`, a JSON array with one component for each path of the container.

    An array with only the first components of a hierarchical key is refused, because clients send such a partial key as a range
    of effective partition keys.
    """
    components = jsontext.decode(text)
    if not isinstance(components, list) or len(components) != paths:
        raise bad_request(
            "Partition key provided either doesn't correspond to definition in the collection or doesn't match partition "
            "key field values specified in the document.",
            substatus=_KEY_MISMATCH,
        )
    return logical_key(components, version)


def parse_path(path: Any) -> tuple[str, ...]:
    """Return the names of the properties in a path such as `/owner/id` or `/"a/b"`. Quotes may also be single."""
    if not isinstance(path, str) or not path or _SEGMENT.sub("", path):
        raise bad_request("A partition key path must start with '/' and name a property.")
    return tuple("".join(forms) for forms in _SEGMENT.findall(path))


def parse_definition(definition: Any) -> jsontext.JsonObject:
    """
    Check the partition key definition of a new container, and return it with defaults filled in. It must have one path of kind
    Hash, or up to three paths of kind MultiHash.
    """
    if not isinstance(definition, dict) or not isinstance(definition.get("paths"), list):
        raise bad_request("The container has no partition key definition with 'paths'.")
    paths, kind, version = definition["paths"], definition.get("kind", "Hash"), definition.get("version", 2)
    version = _VERSIONS.get(version, version) if isinstance(version, str) else version
    most = {"Hash": 1, "MultiHash": MOST_LEVELS}.get(kind, 0) if isinstance(kind, str) else 0
    if most and len(paths) > most:
        raise bad_request(
            f"Too many partition key paths: {len(paths)}. At most {most} are allowed for kind {kind}."
        )
    if not 1 <= len(paths) <= most:
        raise bad_request("A partition key has one path of kind Hash, or up to three of kind MultiHash.")
    if version not in (1, 2) or isinstance(version, bool) or (version == 1 and kind == "MultiHash"):
        raise bad_request("The version of a partition key must be 1 or 2, and 2 for kind MultiHash.")
    if len({parse_path(path) for path in paths}) < len(paths):
        raise bad_request("A partition key must not name a path twice.")
    return {"paths": paths, "kind": kind, "version": version}


def encode_key_of(body: jsontext.JsonObject, paths: Iterable[Sequence[str]]) -> bytes:
    return encode_components([_value_at(body, path) for path in paths])


def _value_at(body: Any, path: Sequence[str]) -> Any:
    for segment in path:
        if not isinstance(body, dict) or segment not in body:
            return UNDEFINED
        body = body[segment]
    return UNDEFINED if isinstance(body, dict | list) else body


def encode_components(components: Iterable[Any]) -> bytes:
    return b"".join(map(_encode_component, components))


def _encode_component(value: Any) -> bytes:
    if isinstance(value, str):
        return b"\x08" + value.encode() + b"\xff"
    if value is True:
        return b"\x03"
    if value is False:
        return b"\x02"
    if value is None:
        return b"\x01"
    if isinstance(value, int | float):
        return b"\x05" + struct.pack("<d", _double(value))
    if value == UNDEFINED:
        return b"\x00"
    raise bad_request(
        "A partition key value must be a string, number, boolean or null.", substatus=_KEY_MISMATCH
    )


def _double(value: float) -> float:
    try:
        number = float(value) + 0.0  # makes -0.0 the same key as 0.0
    except OverflowError as error:
        raise bad_request("A number in the partition key does not fit a double.") from error
    if number in (float("inf"), float("-inf")):
        raise bad_request("A number in the partition key does not fit a double.")
    return number


def effective_partition_key(encoded: bytes) -> str:
    low, high = _murmur3_x64_128(encoded)
    digest = bytearray(struct.pack("<QQ", low, high)[::-1])
    digest[0] &= 0x3F
    return digest.hex().upper()


def even_ranges(count: int) -> list[tuple[str, str]]:
    """
    Divide all effective partition keys into `count` ranges of equal size. Return each range as a pair: its lowest key, and the
    first key beyond it.
    """
    inner = [f"{_RING // count * i:032X}" for i in range(1, count)]
    bounds = [FIRST_EPK, *inner, LAST_EPK]
    return list(pairwise(bounds))


def middle(low: str, high: str) -> str:
    return f"{sum(_bounds(low, high)) // 2:032X}"


def width(low: str, high: str) -> int:
    first, beyond = _bounds(low, high)
    return beyond - first


def _bounds(low: str, high: str) -> tuple[int, int]:
    return int(low.ljust(32, "0"), 16), _RING if high == LAST_EPK else int(high.ljust(32, "0"), 16)


def _rotate(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _MASK


def _mix(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ (value >> 33)


def _murmur3_x64_128(data: bytes) -> tuple[int, int]:
    h1 = h2 = 0
    length = len(data)
    whole = length & ~15
    for offset in range(0, whole, 16):
        k1, k2 = struct.unpack_from("<QQ", data, offset)
        h1 ^= _rotate(k1 * _C1 & _MASK, 31) * _C2 & _MASK
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _rotate(k2 * _C2 & _MASK, 33) * _C1 & _MASK
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    if len(tail) > 8:
        h2 ^= _rotate(int.from_bytes(tail[8:], "little") * _C2 & _MASK, 33) * _C1 & _MASK
    if tail:
        h1 ^= _rotate(int.from_bytes(tail[:8], "little") * _C1 & _MASK, 31) * _C2 & _MASK
    h1 ^= length
    h2 ^= length
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _mix(h1), _mix(h2)
    h1 = (h1 + h2) & _MASK
    return h1, (h2 + h1) & _MASK
