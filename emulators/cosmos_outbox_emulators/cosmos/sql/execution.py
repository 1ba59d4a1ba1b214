"""
Running a query page by page, with continuations that stay true while the data changes.

A continuation holds the position of the last row given out (and, with ORDER BY, its values), never a row number: a resumed
query goes on behind that position, so rows written meanwhile cannot make it repeat or skip others.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cosmos_outbox_emulators.cosmos import jsontext
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.item import Item, Position
from cosmos_outbox_emulators.cosmos.sql.functions import AGGREGATES
from cosmos_outbox_emulators.cosmos.sql.parser import MOST_ROWS, Query
from cosmos_outbox_emulators.cosmos.sql.values import UNDEFINED, SortKey, sort_key

LARGEST_PAGE_BYTES = 4 * 1024 * 1024
_LONGEST_CONTINUATION = 6000  # clients refuse header lines over 8 KB

Scan = Callable[[Position | None], Iterator[Item]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPage:
    """
    Rows as JSON, and the continuation if there may be more.
    """

    rows: list[bytes]
    continuation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    position: Position
    keys: tuple[SortKey, ...]
    encoded: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resume:
    position: Position | None
    keys: tuple[SortKey, ...]
    skip: int
    left: int | None


def run(query: Query, scan: Scan, *, page_size: int, continuation: str | None = None) -> QueryPage:
    """
    Run a query over `scan(after)`, which yields items in scan order behind a position.
    """
    resume = (
        _decode(continuation, query)
        if continuation
        else _Resume(position=None, keys=(), skip=query.offset, left=query.limit)
    )
    if query.aggregates:
        return QueryPage(rows=list(islice(_aggregate(query, scan(None)), *_slice(resume))))
    if query.order or query.distinct:
        rows: Iterator[_Row] = iter(_behind(_sorted(query, _rows(query, scan(None))), query, resume))
    else:
        rows = _rows(query, scan(resume.position))
    return _page(query, rows, resume, page_size)


def _slice(resume: _Resume) -> tuple[int, int | None]:
    return resume.skip, None if resume.left is None else resume.skip + resume.left


def _page(query: Query, rows: Iterator[_Row], resume: _Resume, page_size: int) -> QueryPage:
    start, stop = _slice(resume)
    chosen = islice(rows, start, stop)
    page: list[_Row] = []
    size = 0
    for row in chosen:
        if len(page) >= page_size or (page and size + len(row.encoded) > LARGEST_PAGE_BYTES):
            left = None if resume.left is None else resume.left - len(page)
            more = _encode(query, _Resume(position=page[-1].position, keys=page[-1].keys, skip=0, left=left))
            return QueryPage(rows=[row.encoded for row in page], continuation=more)
        page.append(row)
        size += len(row.encoded)
    return QueryPage(rows=[row.encoded for row in page])


def _rows(query: Query, items: Iterable[Item]) -> Iterator[_Row]:
    for item in items:
        if query.where is not None and query.where(item.body) is not True:
            continue
        encoded = _project(query, item)
        if encoded is not None:
            keys = tuple(sort_key(expression(item.body)) for expression, _ in query.order)
            yield _Row(position=item.position, keys=keys, encoded=encoded)


def _project(query: Query, item: Item) -> bytes | None:
    if query.columns is None:
        return item.encoded
    if query.value:
        value = query.columns[0].expression(item.body)
        return None if value is UNDEFINED else jsontext.encode(value)
    named = ((column.name, column.expression(item.body)) for column in query.columns)
    return jsontext.encode({name: value for name, value in named if value is not UNDEFINED})


def _aggregate(query: Query, items: Iterable[Item]) -> Iterator[bytes]:
    columns = query.columns or ()
    collected: list[list[Any]] = [[] for _ in columns]
    for item in items:
        if query.where is not None and query.where(item.body) is not True:
            continue
        for column, values in zip(columns, collected, strict=True):
            value = column.expression(item.body)
            if value is not UNDEFINED:
                values.append(value)
    row: dict[str, Any] = {}
    for column, values in zip(columns, collected, strict=True):
        try:
            result = AGGREGATES[column.aggregate or ""](values)
        except ArithmeticError:  # a sum that no double holds
            result = UNDEFINED
        if result is not UNDEFINED:
            row[column.name] = result
    if not query.value:
        yield jsontext.encode(row)
    elif row:
        yield jsontext.encode(next(iter(row.values())))


def _sorted(query: Query, rows: Iterable[_Row]) -> Iterator[_Row]:
    ordered = list(rows)
    for index, (_, descending) in reversed(list(enumerate(query.order))):
        ordered.sort(key=lambda row: row.keys[index], reverse=descending)
    seen: set[bytes] = set()
    for row in ordered:
        if query.distinct and row.encoded in seen:
            continue
        seen.add(row.encoded)
        yield row


def _behind(rows: Iterable[_Row], query: Query, resume: _Resume) -> Iterator[_Row]:
    for row in rows:
        if resume.position is None or _is_behind(row, query, resume):
            yield row


def _is_behind(row: _Row, query: Query, resume: _Resume) -> bool:
    for (_, descending), key, last in zip(query.order, row.keys, resume.keys, strict=True):
        if key != last:
            return key < last if descending else key > last
    return resume.position is None or row.position > resume.position


def _encode(query: Query, resume: _Resume) -> str:
    state = [query.fingerprint, resume.position, resume.keys, resume.left]
    text = base64.b64encode(jsontext.encode(state)).decode()
    if len(text) > _LONGEST_CONTINUATION:
        raise bad_request("The ORDER BY values are too long for a continuation. Ask for larger pages.")
    return text


def _decode(text: str, query: Query) -> _Resume:
    try:
        fingerprint, position, keys, left = jsontext.decode(base64.b64decode(text, validate=True))
        resume = _Resume(
            position=_position(position), keys=tuple(map(_sort_key, keys)), skip=0, left=_left(left)
        )
    except (ValueError, TypeError, CosmosError) as error:
        raise bad_request("The continuation token is malformed.") from error
    if fingerprint != query.fingerprint or len(resume.keys) != len(query.order):
        raise bad_request("The continuation token belongs to another query.")
    return resume


def _position(value: Sequence[Any]) -> Position:
    epk, sequence = value
    if not isinstance(epk, str) or not isinstance(sequence, int):
        raise TypeError(value)
    return epk, sequence


def _sort_key(value: Sequence[Any]) -> SortKey:
    rank, content = value
    expected: dict[int, type | tuple[type, ...]] = {
        0: int,
        1: int,
        2: bool,
        3: (int, float),
        4: str,
        5: str,
        6: str,
    }
    if not isinstance(rank, int) or not isinstance(content, expected.get(rank, ())):
        raise TypeError(value)
    return rank, content


def _left(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or not 0 <= value <= MOST_ROWS):
        raise TypeError(value)
    return value
