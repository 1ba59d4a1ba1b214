"""
Reads and writes the binary bodies of batches: rows of HybridRow in a stream of RecordIO. The SDK for .NET sends operations and
reads results in this format.

A stream begins with a segment row. Each row of content follows in a record, which is a row with the length and CRC-32 of the
content. A row consists of a header, a byte of presence bits for the fixed and variable columns, these columns, and the sparse
columns, each with its type and number. Numbers are little-endian. The schemas are those of `HybridRowBatchSchemas.json` in the
sources of the SDK.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from zlib import crc32

from cosmos_outbox_emulators.cosmos.errors import bad_request

Row = Mapping[str, Any]
VERSION = 0x81
_HEADER = struct.Struct("<BI")
_INT32, _UINT32, _DOUBLE = (struct.Struct(f"<{kind}") for kind in "iId")
_RECORD = struct.Struct("<BIiI")  # a record: its header byte, schema number, length and CRC-32
_SEGMENT_ID, _RECORD_ID = 2_147_473_648, 2_147_473_649
# A stream begins with a segment row. The row has 10 bytes, and one column, which contains this number.
_SEGMENT = struct.pack("<BIBi", VERSION, _SEGMENT_ID, 1, 10)
_FALSE, _TRUE, _I32, _U32, _F64, _TEXT = 2, 3, 7, 11, 16, 20
_NUMBERS = {_I32: _INT32, _U32: _UINT32, _F64: _DOUBLE}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schema:
    """
    The columns of a row. Fixed columns are of type int32, variable columns are text (str) or bytes, and sparse columns are given
    with the code of their type.
    """

    number: int
    fixed: tuple[str, ...]
    variable: Mapping[str, type]
    sparse: Mapping[str, int]


OPERATION = Schema(
    number=2_145_473_648,
    fixed=("operationType", "resourceType"),
    variable={
        "partitionKey": str,
        "effectivePartitionKey": bytes,
        "id": str,
        "binaryId": bytes,
        "resourceBody": bytes,
    },
    sparse={
        "indexingDirective": _TEXT,
        "ifMatch": _TEXT,
        "ifNoneMatch": _TEXT,
        "timeToLiveInSeconds": _I32,
        "minimalReturnPreference": _TRUE,
    },
)
RESULT = Schema(
    number=2_145_473_649,
    fixed=("statusCode", "subStatusCode"),
    variable={"eTag": str, "resourceBody": bytes},
    sparse={"retryAfterMilliseconds": _U32, "requestCharge": _F64},
)


def write(schema: Schema, rows: Iterable[Row]) -> bytes:
    """Return the rows as one binary stream. A column that is missing or None is left out."""
    parts = [_SEGMENT]
    for row in rows:
        content = _encode_row(schema, row)
        parts += _RECORD.pack(VERSION, _RECORD_ID, len(content), crc32(content)), content
    return b"".join(parts)


def read(schema: Schema, stream: bytes) -> list[Row]:
    """Return the rows of a binary stream, each with the columns that it has. Refuse any other input with 400."""
    if not stream.startswith(_SEGMENT):
        raise bad_request("The binary body does not begin with a segment of RecordIO.")
    rows: list[Row] = []
    at = len(_SEGMENT)
    while at < len(stream):
        place = f"Record {len(rows)} of the binary body"
        if len(stream) - at < _RECORD.size:
            raise bad_request(f"{place} is cut off.")
        version, number, length, checksum = _RECORD.unpack_from(stream, at)
        if (version, number) != (VERSION, _RECORD_ID):
            raise bad_request(f"{place} is of schema {number}, not a record of RecordIO.")
        content = stream[at + _RECORD.size : at + _RECORD.size + length]
        if length < 0 or len(content) < length:
            raise bad_request(f"{place} is cut off.")
        if crc32(content) != checksum:
            raise bad_request(f"{place} does not match its CRC-32.")
        rows.append(_Reader(content, place).row(schema))
        at += _RECORD.size + length
    return rows


def _encode_row(schema: Schema, row: Row) -> bytes:
    present = [row.get(name) is not None for name in (*schema.fixed, *schema.variable)]
    bits = sum(1 << index for index, there in enumerate(present) if there)
    parts = [_HEADER.pack(VERSION, schema.number), bytes([bits])]
    parts += (_INT32.pack(row.get(name) or 0) for name in schema.fixed)
    parts += (_encode(row[name]) for name in schema.variable if row.get(name) is not None)
    for token, (name, kind) in enumerate(schema.sparse.items(), start=len(present) + 1):
        value = row.get(name)
        if value is None:
            continue
        code = _FALSE if value is False else kind
        content = _NUMBERS[kind].pack(value) if kind in _NUMBERS else b"" if kind == _TRUE else _encode(value)
        parts.append(bytes([code, token]) + content)
    return b"".join(parts)


def _encode(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    length, size = bytearray(), len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*length, size]) + content


class _Reader:
    """Reads one binary row from its first byte to its last."""

    def __init__(self, content: bytes, place: str) -> None:
        self._content = content
        self._place = place
        self._at = 0

    def row(self, schema: Schema) -> Row:
        version, number = self._number(_HEADER)
        if (version, number) != (VERSION, schema.number):
            self._refuse(f"is of schema {number}, not {schema.number}")
        bits = self._take(1)[0]
        columns = (*schema.fixed, *schema.variable)
        if bits >> len(columns):
            self._refuse("has a column that its schema does not know")
        there = {name for index, name in enumerate(columns) if bits >> index & 1}
        numbers = {name: self._number(_INT32)[0] for name in schema.fixed}
        row: dict[str, Any] = {name: value for name, value in numbers.items() if name in there}
        row |= {name: self._read(kind) for name, kind in schema.variable.items() if name in there}
        sparse = list(schema.sparse.items())
        while self._at < len(self._content):
            code, token = self._take(2)
            index = token - len(columns) - 1
            if not 0 <= index < len(sparse):
                self._refuse("has a column that its schema does not know")
            name, kind = sparse[index]
            if code != kind and (code, kind) != (_FALSE, _TRUE):
                self._refuse(f"has another type than its schema in column {name}")
            row[name] = self._sparse(code)
        return row

    def _sparse(self, code: int) -> Any:
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])[0]
        return self._read(str) if code == _TEXT else code == _TRUE

    def _number(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self._take(form.size))

    def _read(self, kind: type) -> str | bytes:
        size = shift = 0
        while (byte := self._take(1)[0]) & 0x80 and shift < 28:
            size |= (byte & 0x7F) << shift
            shift += 7
        content = self._take(size | byte << shift)
        if kind is bytes:
            return content
        try:
            return content.decode()
        except UnicodeDecodeError:
            self._refuse("has a text that is not UTF-8")

    def _take(self, size: int) -> bytes:
        taken = self._content[self._at : self._at + size]
        if len(taken) < size:
            self._refuse("ends inside of a column")
        self._at += size
        return taken

    def _refuse(self, why: str) -> NoReturn:
        raise bad_request(f"{self._place} {why}.")
